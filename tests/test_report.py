"""The report page: escaped, self-contained, and true to its record."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from robvit.evaluate.record import Record, Trial
from robvit.report.html import write_report

EVIL = '<script>alert("x")</script>'


def record(name: str = "small") -> Record:
    trials = [
        Trial("clean", "none", {}, [True, True, True, False], [0, 1, 2, 3], [0.0] * 4, rung="bare"),
        Trial(
            "pgd",
            "linf 8/255",
            {"steps": 2},
            [True, False, True, False],
            [0, 9, 2, 3],
            [0.03] * 4,
            rung="bare",
        ),
        Trial("square", "linf 8/255", {}, [False, True, True, False], [7, 1, 2, 3], [0.03] * 4, rung="bare"),
    ]
    data = {"spec": "sample", "digest": "ab" * 32, "count": 4}
    return Record("evaluate", {"name": name}, data, trials, {"cosine": 0.5}, notes=[EVIL], command="robvit x")


class Page(HTMLParser):
    """The tags and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_worst_case_is_the_mean_of_worst_cases_and_not_the_worst_mean() -> None:
    rows = record().rows()
    assert [row.attack for row in rows] == ["clean", "pgd", "square", "worst case"]
    assert [row.share for row in rows] == [0.75, 0.5, 0.5, 0.25]
    assert all(row.low <= row.share <= row.high for row in rows)
    assert "25.0%" in record().table()


def test_text_from_a_record_stays_text_and_nothing_is_fetched(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "p.png")
    write_report(record(EVIL), tmp_path / "report.html", pictures=[tmp_path / "p.png"])
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert page.addresses
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert "25.0 %" in text
    assert "bare" in text


def test_records_survive_saving(tmp_path: Path) -> None:
    record().save(tmp_path / "r.json")
    assert Record.load(tmp_path / "r.json").trials == record().trials
