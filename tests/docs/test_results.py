"""Tables and figures in README and docs come from the records in results/, and say what those say."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest

from helpers.scripts import load_script
from robvit.audit import Audit
from robvit.budget import Budget
from robvit.errors import InputError
from robvit.record import Curve, Finding, Record, Table, Trial

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "page.md"
MEASURED = re.compile(r"\d ?%|\d\.\d|± ?\d")
COUNT = re.compile(r"\d[\d,+ ]*")  # a cell that is a number, or passes as in 62 + 60
# What a table that is not taken from a record must say of itself, on the line above.
OTHERWISE = re.compile(r"<!-- (published: \S.*|counted: (?P<file>\S+)|no measurement) -->")
IMAGE = re.compile(r"!\[[^\]]*\]\((?P<place>[^)]+)\)")


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_script("fill_docs", monkeypatch)


@pytest.fixture
def results(fill: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with an evaluation and a study in it."""
    monkeypatch.setattr(fill, "ROOT", tmp_path)
    monkeypatch.setattr(fill, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(fill, "FIGURES", tmp_path / "docs" / "figures")
    clean = Trial("clean", None, {}, [True, True, True, False], [0, 1, 2, 0], [0.0] * 4)
    attacked = Trial("pgd", Budget("linf", 1 / 255), {}, [True, False, True, False], [0, 0, 2, 0], [0.0] * 4)
    data = {"count": 4, "spec": "sample", "labels": [0, 1, 2, 3], "names": list("abcd"), "digest": "d"}
    keep(tmp_path / "results" / "mine", Record("evaluate", {"name": "net"}, data, [clean, attacked]))
    table = Table("Table 2: under attack", ["", "ours"], [["cosine", 0.5]], "A note.")
    curve = Curve("Accuracy by steps", "steps", "accuracy", {"net": [[1, 0.5], [2, 0.25]]})
    study = Record("study", {"name": "net"}, data, [], tables=[table], curves=[curve])
    keep(tmp_path / "results" / "study", study)
    return tmp_path / "results"


def keep(folder: Path, record: Record) -> None:
    folder.mkdir(parents=True)
    record.save(folder / "record.json")
    (folder / "record.json.gz").write_bytes(gzip.compress((folder / "record.json").read_bytes()))
    about = {"seconds": 200, "cpu_seconds": 120, "command": "robvit evaluate"}
    (folder / "about.json").write_text(json.dumps(about))


def page(*rows: str, shown: str = "") -> str:
    return (
        "# Page\n\n<!-- results\n"
        + "".join(f"{row}\n" for row in rows)
        + f"-->\n{shown}<!-- end of results -->\n"
    )


@pytest.mark.usefixtures("results")
def test_a_record_is_shown_by_its_clean_accuracy_and_worst_case(fill: ModuleType) -> None:
    text = fill.filled(page("my net: mine"), PAGE)
    assert "| my net | linf 1/255 | pgd | 4 | 75.0 (30.1 to 95.4) | 50.0 (15.0 to 85.0) |" in text
    assert "Records: `results/mine`; 2 processor minutes in all." in text
    assert fill.filled(text, PAGE) == text


@pytest.mark.usefixtures("results")
def test_what_a_study_cost_is_told_in_a_sentence_and_in_a_row(fill: ModuleType) -> None:
    told = fill.filled("It took <!-- minutes of mine and study -->9<!-- end --> minutes.", PAGE)
    assert told == "It took <!-- minutes of mine and study -->4<!-- end --> minutes."
    assert "| net in 2 minutes | linf" in fill.filled(page("net in {minutes of mine} minutes: mine"), PAGE)
    with pytest.raises(InputError, match="no result is called nowhere"):
        fill.filled("<!-- minutes of nowhere -->9<!-- end -->", PAGE)


@pytest.mark.usefixtures("results")
def test_a_record_that_is_awaited_is_shown_when_it_is_there(fill: ModuleType, results: Path) -> None:
    awaited = page("my net: mine", "tuned: later?")
    assert "tuned" not in fill.filled(awaited, PAGE).partition("-->")[2]
    (results / "mine").rename(results / "later")
    assert "| tuned |" in fill.filled(page("tuned: later?"), PAGE)


@pytest.mark.usefixtures("results")
def test_a_study_is_shown_by_its_own_table(fill: ModuleType) -> None:
    text = fill.filled(page("table 2: study", shown="stale figures\n"), PAGE)
    assert "Table 2: under attack:\n\n|  | ours |\n| --- | --- |\n| cosine | 0.50 |\n\nA note." in text
    assert "stale" not in text


@pytest.mark.usefixtures("results")
def test_several_records_are_one_table(fill: ModuleType, results: Path) -> None:
    compared = fill.filled(page("choices:", "  base: mine", "  other: mine", "  third: later?"), PAGE)
    assert "| against base, points | p (McNemar, Holm) |" in compared
    assert "| other | linf 1/255 | pgd | 4 | 75.0 (30.1 to 95.4) | 50.0 (15.0 to 85.0) | +0.0 (" in compared
    joined = fill.filled(page("table 2:", "  one: study", "  two: study"), PAGE)
    assert "| one | cosine | 0.50 |\n| two | cosine | 0.50 |\n\nA note." in joined
    tuned = replace(fill.read_kept("mine", results).record, model={"name": "net", "tuned from": "f"})
    keep(results / "tuned", tuned)
    defences = fill.filled(page("defences: [mine, tuned]"), PAGE)
    assert "| attacker | knows | threat | no defence | tuned |" in defences


@pytest.mark.usefixtures("results")
def test_certificates_are_compared_image_by_image(fill: ModuleType, results: Path) -> None:
    record = fill.read_kept("mine", results).record
    proven = replace(record.trials[1], attack="certificate", threat=Budget("patch", 14))
    keep(results / "proof", replace(record, kind="certify", trials=[record.trials[0], proven]))
    compared = fill.filled(page("heads:", "  base: proof", "  other: proof"), PAGE)
    assert "| certified, % | against base, points | p (McNemar, Holm) |" in compared
    assert (
        "| other | patch 14 | certificate | 4 | 75.0 (30.1 to 95.4) | 50.0 (15.0 to 85.0) | +0.0 ("
        in compared
    )


def test_a_doctor_is_shown_by_its_findings_and_an_audit_by_its_bound(fill: ModuleType, results: Path) -> None:
    findings = [Finding("more_steps", "green", "all is well", title="More steps")]
    keep(results / "doctor", Record("doctor", {}, {}, [], findings=findings))
    assert "| More steps | green | all is well |" in fill.filled(page("doctor: doctor"), PAGE)
    audit = Audit(["square"], 2, 0, 4, 2, bound=0.5)
    keep(results / "judged", replace(fill.read_kept("mine", results).record, audits=[audit]))
    assert f"\n\nmy net: {audit}" in fill.filled(page("my net: judged"), PAGE)


def test_a_curve_is_drawn_from_its_record(fill: ModuleType, results: Path) -> None:
    at = results.parent / "docs" / "page.md"
    text = fill.filled(page("curve accuracy: study"), at)
    (shown,) = IMAGE.finditer(text)
    image = at.parent / shown["place"]
    assert image.is_file()
    image.unlink()
    assert fill.filled(text, at) == text
    assert image.is_file()  # the name follows from what is drawn


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(
    ("row", "message"),
    [("table 7: study", "no table that begins with"), ("curve loss: study", "no curve that begins with")],
)
def test_what_a_record_does_not_have_cannot_be_shown(fill: ModuleType, row: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        fill.filled(page(row), PAGE)


@pytest.mark.usefixtures("results")
def test_what_was_not_measured_shows_no_figure(fill: ModuleType) -> None:
    text = fill.filled(page("net: nowhere", shown="| 50.0 % |\n"), PAGE)
    assert "Not measured yet: `results/nowhere`" in text
    assert not MEASURED.search(text)


def test_pages_say_what_the_records_say(fill: ModuleType) -> None:
    for path in fill.pages():
        text = path.read_text("utf-8")
        assert fill.filled(text, path) == text, f"{path.name} is stale; run `python scripts/fill_docs.py`"


def tables(text: str) -> Iterator[tuple[str, list[str]]]:
    """The tables of a page, each with the nearest line above that is not empty."""
    above = ""
    for first, group in groupby(text.splitlines(), key=lambda line: line.startswith("|")):
        lines = list(group)
        if first:
            yield above, lines
        above = next((line for line in reversed(lines) if line.strip()), above)


def has_figures(lines: list[str]) -> bool:
    """Whether a table tells of something measured or counted; the first cell of a row names what."""
    rows = [re.sub(r"`[^`]*`", "", line) for line in lines]
    cells = [cell.strip() for row in rows for cell in row.strip().strip("|").split("|")[1:]]
    return any(map(MEASURED.search, rows)) or any(map(COUNT.fullmatch, cells))


def test_whole_numbers_are_figures_too() -> None:
    assert has_figures(["| command | kills |", "|---|---|", "| `train` | 14 |"])
    assert has_figures(["| attack | passes |", "|---|---|", "| pgd | 62 + 60 |"])
    assert not has_figures(["| status | when |", "|---|---|", "| 401 | more than 32 scans, `8` |"])


def test_no_measured_table_stands_without_a_record(fill: ModuleType) -> None:
    for path in fill.pages():
        for above, lines in tables(fill.BLOCK.sub("", path.read_text("utf-8"))):
            if not has_figures(lines):
                continue
            otherwise = OTHERWISE.fullmatch(above)
            assert otherwise, f"{path.name}: a measured table without a record in results/: {lines[0]}"
            assert not otherwise["file"] or (ROOT / otherwise["file"]).is_file(), above


def test_every_image_is_drawn_from_a_record_or_made_by_the_gallerys_script(fill: ModuleType) -> None:
    script = (ROOT / "scripts" / "make_gallery.py").read_text("utf-8")
    for path in fill.pages():
        text = path.read_text("utf-8")
        by_hand = [match["place"] for match in IMAGE.finditer(fill.BLOCK.sub("", text))]
        for place in by_hand:
            image = (path.parent / place).resolve()
            assert image.parent == ROOT / "docs" / "gallery", f"{path.name}: {place} comes from no record"
            assert f'"{image.stem}"' in script, f"{place} is not made by scripts/make_gallery.py"
        for match in IMAGE.finditer(text):
            assert (path.parent / match["place"]).is_file(), match["place"]


def test_a_long_table_is_folded_under_its_title(fill: ModuleType) -> None:
    rows = [[str(n)] for n in range(fill.FOLDED + 1)]
    assert fill._titled(Table("a < b", ["n"], rows[:-1], "A note."))[0] == "a < b:"
    folded = fill._titled(Table("a < b", ["n"], rows, "A note."))
    assert folded[0] == "<details><summary>a &lt; b: 11 rows</summary>"
    assert folded[-3:] == ["A note.", "", "</details>"]
