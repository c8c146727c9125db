"""The built documentation: every page, nothing from elsewhere, how it works in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import robvit
from helpers.browsing import Visit
from helpers.docs_blocks import ROOT
from robvit.names import facts

pytestmark = [pytest.mark.slow, pytest.mark.browser]
PHONE = {"width": 390, "height": 844}
# The least contrast of any word of code with its ground.
FAINTEST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrasts = [...document.querySelectorAll(".highlight pre, .highlight pre span")].map((word) => {
    const ground = getComputedStyle(word.closest("pre")).backgroundColor;
    const [a, b] = [getComputedStyle(word).color, ground].map(light);
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
  return Math.min(21, ...contrasts);
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built documentation; warnings, such as dead links and pages in no navigation, fail it."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "scripts" / "build_docs.py"), str(place)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place


def test_the_documentation_builds_with_every_page_recipe_and_public_name(site: Path) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        assert (site / path.relative_to(ROOT / "docs").with_suffix(".html")).is_file()
    for path in (ROOT / "src" / "robvit" / "training" / "recipes").glob("*.yaml"):
        text = (site / "reference" / "recipes" / f"{path.stem}.html").read_text("utf-8")
        assert "Expect:" in text
    reference = (site / "reference" / "python.html").read_text("utf-8")
    for name in robvit.__all__:
        if callable(getattr(robvit, name)):
            assert re.search(rf'id="robvit\.[\w.]*\b{name}"', reference), name
    commands = (site / "reference" / "commands.html").read_text("utf-8")
    assert "--trade-off" in commands
    for page, kind in (("attacks", "attack"), ("data", "dataset")):
        text = (site / "reference" / f"{page}.html").read_text("utf-8")
        # The package's own names: other tests of this process may have registered theirs.
        assert [name for name in facts(kind) if name not in text] == []


def test_a_built_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:)?//', page.read_text("utf-8")
        )
        assert not loaded, page
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()[\s\"']*https?:", style.read_text("utf-8")), style


def test_the_search_works_from_the_disk(browser: Browser, site: Path) -> None:
    with Visit(browser, (site / "index.html").as_uri(), allowed=("file:",)) as page:
        page.locator("input[name=q]").fill("certificate")
        page.keyboard.press("Enter")
        found = page.locator("#search-results li a")
        expect(found.filter(has_text="Certificates").first).to_be_visible()
        found.filter(has_text="Certificates").first.click()
        expect(page.locator("h1")).to_contain_text("Certificates")


def test_the_first_page_has_an_image_and_commands_to_copy(browser: Browser, site: Path) -> None:
    with Visit(browser, (site / "index.html").as_uri(), allowed=("file:",), viewport=PHONE) as page:
        assert page.evaluate("document.querySelector('article img').naturalWidth") > 300
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        command = page.locator("div.highlight").first
        command.get_by_role("button", name="Copy").click()
        assert page.evaluate("navigator.clipboard.readText()") == (
            "pip install .\nrobvit demo --model robvit-mini --out runs/demo\n"
        )
        words = page.locator(".highlight .whole").all_inner_texts()
        assert "--out" in words  # which a browser would break after its hyphens
        assert page.locator(".highlight-text .copy").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_scrolls_sideways_and_code_can_be_read(browser: Browser, site: Path, scheme: str) -> None:
    first = (site / "index.html").as_uri()
    with Visit(
        browser, first, allowed=("file:",), viewport=PHONE, color_scheme=scheme, is_mobile=True
    ) as page:
        for path in sorted([*site.glob("*.html"), *site.glob("*/*.html")]):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], path
            assert page.evaluate(
                "[...document.querySelectorAll('pre')].every(p => p.scrollWidth <= p.clientWidth + 1)"
            ), path
            wide = "[...document.querySelectorAll('table')].filter(t => t.scrollWidth > innerWidth).length"
            assert page.evaluate(wide) == 0, path
            assert page.evaluate(FAINTEST) > 4.5, path  # the least contrast of WCAG 2 for small text
