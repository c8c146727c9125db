"""The report in a real browser: no error, no network, filters and plots that work, phone and dark mode.

These tests fail, and do not skip, where Chromium is missing: apt-get install chromium.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from helpers.browsing import Visit
from helpers.report_samples import gallery_items, poisoned, rich_record
from robvit.drawing.grid import Grid, Row, Tile
from robvit.drawing.surfaces import Surface
from robvit.record import Curve
from robvit.report import GalleryItem, write_report
from robvit.report.figure import Figure

pytestmark = pytest.mark.browser
DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(rich_record(), path, galleries=[list(gallery_items(60, 48, attention=True))])
    return path


def visit(browser: Browser, path: Path, **settings: object) -> Visit:
    """A page from the disk, which asks nobody for anything."""
    return Visit(browser, path.as_uri(), allowed=("file:",), **{"viewport": DESKTOP, **settings})


def test_filters_choose_images_and_pages_turn(browser: Browser, report: Path) -> None:
    with visit(browser, report) as page:
        count = page.locator(".gallery output")
        expect(count).to_have_text("1–24 of 60")
        page.get_by_role("button", name="next").click()
        expect(count).to_have_text("25–48 of 60")
        page.get_by_label("outcome").select_option("wrong")
        wrong = sum(not correct for correct in rich_record().trials[0].correct)
        expect(page.locator(".item")).to_have_count(wrong)
        expect(count).to_have_text(f"1–{wrong} of {wrong}, from 60")
        page.get_by_label("outcome").select_option("")
        page.locator("select[name=label]").select_option("kind 3")
        expect(page.locator(".item")).to_have_count(6)
        page.get_by_label("name").fill("no such name")
        expect(page.locator(".item")).to_have_count(0)
        expect(page.get_by_text("No image fits")).to_be_visible()
        assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")


def test_a_image_can_be_enlarged_and_the_keys_move_on(browser: Browser, report: Path) -> None:
    with visit(browser, report) as page:
        page.locator(".item button").first.click()
        viewer = page.locator("#viewer")
        expect(viewer.locator("strong")).to_have_text("test/0000")
        expect(viewer.locator("img")).to_have_count(5)
        page.keyboard.press("ArrowRight")
        expect(viewer.locator("strong")).to_have_text("test/0001")
        expect(viewer.locator("tbody tr")).to_have_count(len(rich_record().trials))
        page.keyboard.press("Escape")
        expect(viewer).to_be_hidden()


def test_a_plot_reads_its_figures_and_its_legend_hides_lines(browser: Browser, report: Path) -> None:
    with visit(browser, report) as page:
        budget = page.locator(".chart").first
        budget.scroll_into_view_if_needed()
        box = budget.locator("svg").bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] - 16, box["y"] + 60)
        share = sum(rich_record().trials[4].correct) / 60
        expect(budget.locator(".tip")).to_contain_text(f"{100 * share:.1f} %")
        gap = page.locator(".chart", has_text="Attention gap")
        expect(gap.locator("path.line")).to_have_count(2)
        expect(gap.get_by_role("button")).to_have_text(["ours", "bare"])
        gap.get_by_role("button", name="ours").click()
        expect(gap.locator("path.line")).to_have_count(1)
        gap.locator(".plot").focus()
        page.keyboard.press("ArrowRight")
        expect(gap.locator(".tip")).to_contain_text("bare2")


def test_the_phone_has_no_sideways_scrolling(browser: Browser, report: Path) -> None:
    with visit(browser, report, viewport=PHONE, is_mobile=True, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        wide = "[...document.querySelectorAll('.stack')].filter(t => t.scrollWidth > innerWidth).length"
        assert page.evaluate(wide) == 0
        expect(page.locator(".item")).to_have_count(8)


def test_dark_and_light_follow_the_system_and_the_switch(browser: Browser, report: Path) -> None:
    def ground(page: Page) -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    with visit(browser, report, color_scheme="light") as page:
        light = ground(page)
        page.locator("#theme").click()
        dark = ground(page)
        page.reload()
        assert ground(page) == dark != light
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
    with visit(browser, report, color_scheme="dark") as page:
        assert ground(page) == dark


def test_tables_sort_and_commands_are_copied(browser: Browser, report: Path) -> None:
    with visit(browser, report) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator(".copy").click()
        assert page.evaluate("navigator.clipboard.readText()") == rich_record().command
        table = page.locator(".sortable")
        for order in ("ascending", "descending"):
            table.get_by_role("button", name="under attack").click()
            shares = [float(text.split()[0]) for text in table.locator("td:nth-child(4)").all_inner_texts()]
            assert shares == sorted(shares, reverse=order == "descending")


def test_a_hostile_record_changes_nothing(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "evil.html"
    write_report(poisoned(rich_record()), path, galleries=[list(gallery_items(30, 16))])
    with visit(browser, path) as page:
        expect(page.locator(".item")).to_have_count(24)
        page.locator(".item button").first.click()
        page.keyboard.press("Escape")
        page.locator(".plot").first.hover()
        for select in page.locator("select").all():
            select.select_option(index=1)
        page.wait_for_timeout(200)
        assert page.title() != "owned"
        assert page.locator("script:not([type])").count() == 1
        assert page.locator("img[src=x]").count() == 0


# Everything that a surface tells when the pointer passes over all of it.
POINTED_AT = """canvas => {
  const box = canvas.getBoundingClientRect(), tip = canvas.parentElement.querySelector(".tip");
  const told = new Set();
  for (let x = 2; x < box.width; x += 6) for (let y = 2; y < box.height; y += 6) {
    canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + x, clientY: box.top + y }));
    if (!tip.hidden) told.add(tip.textContent);
  }
  return [...told].sort();
}"""


def test_surfaces_turn_together_and_tell_their_heights(browser: Browser, tmp_path: Path) -> None:
    stems = [[3.0, 2.0, 5.0], [1.0, 0.0, 2.0]]
    names = ["class token", "patch 1/1", "patch 1/2"]
    pair = [
        Surface(title, "channel", "token", "height", 8, 3, 5.0, stems, row_names=names)
        for title in ("before", "after")
    ]
    hills = Surface("loss", "way", "other", "loss", 3, 3, 2.0, mesh=[[0.0, 1.0, 2.0]] * 3, x_ends=(-1.0, 2.0))
    curve = Curve("course", "block", "value", {"one": [[1.0, 2.0], [2.0, 3.0]]})
    tiles = [Tile(Image.new("RGB", (40, 20), "red"), f"note <i> {i}") for i in range(7)]
    grid = Grid([Row(tiles, "a row"), Row(tiles, "another")], [f"column {i}" for i in range(7)])
    figures = [
        Figure(grid, [curve], pair, name="towers", title="Towers <b>", caption="Look up."),
        Figure(surfaces=[hills], name="hills", title="Hills", caption="Look around."),
    ]
    write_report(rich_record(), tmp_path / "figures.html", figures=figures)
    drawn = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter(v => v).length"
    with visit(browser, tmp_path / "figures.html", color_scheme="light") as page:
        towers = page.locator(".figure", has_text="Towers <b>")
        first, second = towers.locator("canvas").all()
        first.scroll_into_view_if_needed()
        assert first.evaluate(drawn) > 1000
        assert page.locator("#r0-hills canvas").evaluate(drawn) > 1000
        before = first.get_attribute("data-turn")
        box = first.bounding_box()
        assert box
        page.mouse.move(box["x"] + 100, box["y"] + 100)
        page.mouse.down()
        page.mouse.move(box["x"] + 220, box["y"] + 120, steps=4)
        page.mouse.up()
        turned = first.get_attribute("data-turn")
        assert turned != before
        assert second.get_attribute("data-turn") == turned
        assert page.locator("#r0-hills canvas").get_attribute("data-turn") == before
        first.focus()
        page.keyboard.press("ArrowLeft")
        assert float(first.get_attribute("data-turn") or 0) == pytest.approx(
            float(turned or 0) + 0.1, abs=2e-3
        )
        first.dblclick(position={"x": 5, "y": 5})
        assert first.get_attribute("data-turn") == before
        assert first.evaluate(POINTED_AT) == ["class token, channel 12", "patch 1/2, channel 35"]
        page.locator("#theme").click()
        assert towers.locator("img").first.evaluate("i => i.naturalWidth") == 40
        assert len({round(image.bounding_box()["y"]) for image in towers.locator("img").all()}) == 2
        expect(towers.get_by_text("column 6")).to_have_count(2)
        expect(towers.get_by_text("column 6").last).to_be_hidden()  # named once, above
    with visit(browser, tmp_path / "figures.html", viewport=PHONE, is_mobile=True, has_touch=True) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        # No strip of tiny tiles: they wrap, and each says what it is.
        assert all(image.bounding_box()["width"] >= 100 for image in page.locator(".tiles img").all())
        expect(page.locator(".tiles").get_by_text("column 6").last).to_be_visible()
        expect(page.locator(".tiles").get_by_text("note <i> 6").last).to_be_visible()


def test_a_thousand_images_open_at_once(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "thousand.html"
    record = rich_record(count=1000)
    few = list(gallery_items(20, 112))
    many = [GalleryItem(i, 7, few[i % 20].adversarial, few[i % 20].clean) for i in range(1000)]
    write_report(record, path, galleries=[many])
    assert 5e6 < path.stat().st_size < 15e6
    with visit(browser, path) as page:
        expect(page.locator(".gallery output")).to_have_text("1–24 of 1000")
        assert page.evaluate("document.querySelectorAll('*').length") < 6000
        page.get_by_label("name").fill("test/0999")
        expect(page.locator(".item img")).to_have_count(3)
