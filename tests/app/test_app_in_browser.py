"""The playground in a real browser, as a visitor uses it: no console error, no request to anyone else."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from helpers.browsing import Visit
from helpers.playground import ServedPlayground, served

pytestmark = [pytest.mark.browser, pytest.mark.slow]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE = 90_000  # milliseconds; the machine may be busy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPlayground]:
    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


def visit(browser: Browser, server: ServedPlayground, **settings: object) -> Visit:
    """The playground, which asks nobody but its own server."""
    settings = {"viewport": DESKTOP, **settings}
    allowed = (f"{server.address}/", "blob:")
    opened = Visit(browser, server.address, allowed=allowed, patience=PATIENCE, **settings)
    expect(opened.page.locator("#attack")).to_be_visible(timeout=PATIENCE)
    return opened


def seen(image: Locator) -> np.ndarray:
    """The pixels of an image in the page, as the file inside it has them."""
    return np.asarray(Image.open(io.BytesIO(_decoded(image.get_attribute("src")))))


def _decoded(address: str | None) -> bytes:
    assert address is not None
    head, _, text = address.partition(",")
    assert head == "data:image/png;base64"
    return base64.b64decode(text)


def attack(page: Page) -> None:
    """Press the button and wait for the result."""
    page.locator("#attack").click()
    expect(page.locator(".verdict.busy")).to_have_count(0, timeout=PATIENCE)
    expect(page.locator(".numbers")).to_be_visible(timeout=PATIENCE)


def test_a_image_is_attacked_slid_over_and_downloaded(
    browser: Browser, server: ServedPlayground, tmp_path: Path
) -> None:
    with visit(browser, server) as page:
        expect(page.get_by_text("has no tokens here")).to_have_count(0)
        page.locator(".thumbs button").nth(6).click()
        expect(page.locator(".chosen figcaption")).to_have_text("chosen: cat")
        attack(page)
        figures = page.locator(".images figure")
        expect(figures).to_have_count(5)
        expect(figures.nth(2)).to_contain_text("difference ×")
        expect(page.locator(".verdict")).to_contain_text("The attack succeeded on the model: cat")
        expect(page.locator(".predictions li")).to_have_count(10)
        expect(page.locator(".numbers")).to_contain_text("PSNR")
        page.get_by_label("before and after").fill("80")
        assert "80%" in str(page.locator(".both").get_attribute("style"))
        with page.expect_download() as waiting:
            page.get_by_role("link", name="Download adversarial.png").click()
        kept = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(kept)
        assert kept.name == "adversarial.png"
        assert np.array_equal(np.asarray(Image.open(kept)), seen(figures.nth(1).locator("img")))
        page.locator("#script").click()
        expect(page.locator(".cm-content")).to_contain_text('robvit.load("robvit-mini")')


def test_tokens_are_toggled_and_the_budget_is_swept(browser: Browser, server: ServedPlayground) -> None:
    with visit(browser, server) as page:
        page.get_by_label("on, secret").check()
        attack(page)
        expect(page.locator(".predictions section")).to_have_count(2)
        expect(page.locator(".verdict")).to_contain_text("secret tokens")
        page.locator("#sweep").click()
        sweep = page.locator(".chart", has_text="ε in grey levels")
        expect(sweep.locator("circle")).to_have_count(12, timeout=PATIENCE)
        expect(sweep.locator("polyline")).to_have_count(2)
        page.get_by_role("combobox", name="Model").click()
        page.get_by_role("option", name="robvit-mini-robust").click()
        expect(page.get_by_text("has no tokens here")).to_be_visible()
        expect(page.get_by_label("on, secret")).to_have_count(0)
        attack(page)
        expect(page.locator(".predictions section")).to_have_count(1)


def test_good_and_bad_uploads(browser: Browser, server: ServedPlayground, tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.fromarray(pixels).resize((64, 64)).save(good)
    bad.write_bytes(b"this is no image")
    with visit(browser, server) as page:
        chooser = page.locator("input[type=file]")
        chooser.set_input_files(bad)
        expect(page.get_by_text("not an image in any of the formats")).to_be_visible(timeout=PATIENCE)
        expect(page.get_by_text("Traceback")).to_have_count(0)
        expect(page.locator(".chosen figcaption")).to_have_text("chosen: frog")
        chooser.set_input_files(good)
        expect(page.locator(".chosen figcaption")).to_have_text("chosen: your image", timeout=PATIENCE)
        attack(page)
        assert seen(page.locator(".images img").first).shape == (32, 32, 3)
        page.locator("#script").click()
        expect(page.locator(".cm-content")).to_contain_text('read_image("clean.png")')


def test_every_control_explains_itself(browser: Browser, server: ServedPlayground) -> None:
    with visit(browser, server) as page:
        for name in ("upload", "attack", "sweep", "certificate", "stop", "script"):
            control = page.locator(f"#{name}")
            expect(control).to_have_attribute("title", re.compile(".{20,}"), timeout=PATIENCE)
        for text in (
            "The network under attack",
            "Trained tokens",
            "pgd climbs",
            "How far each",
            "More steps",
        ):
            expect(page.get_by_text(text)).to_be_visible()
        page.keyboard.press("Tab")
        page.locator(".thumbs button").nth(3).focus()
        page.keyboard.press("Enter")
        expect(page.locator(".chosen figcaption")).to_have_text("chosen: airplane")


def test_who_waits_sees_the_queue_and_stop_frees_it(browser: Browser, server: ServedPlayground) -> None:
    with visit(browser, server) as first, visit(browser, server) as second:
        first.get_by_label("Attack", exact=True).click()
        first.get_by_role("option", name="apgd_t").click()
        first.get_by_label("number input for Steps").fill("100")
        first.locator("#attack").click()
        expect(first.locator(".verdict.busy")).to_be_visible()
        second.locator("#attack").click()
        expect(second.get_by_text("queue: 1/1")).to_be_visible()
        first.locator("#stop").click()
        expect(second.locator(".numbers")).to_be_visible(timeout=PATIENCE)
        expect(first.locator(".numbers")).to_have_count(0)


def test_the_phone_has_no_sideways_scrolling(browser: Browser, server: ServedPlayground) -> None:
    with visit(browser, server, viewport=PHONE, is_mobile=True, has_touch=True) as page:
        attack(page)
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        expect(page.locator(".verdict")).to_be_in_viewport(timeout=PATIENCE)
