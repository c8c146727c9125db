"""Measured figures in README and docs come from the records in results/, and say what those say."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from helpers.scripts import load_script
from robvit.budget import Budget
from robvit.record import Record, Table, Trial

ROOT = Path(__file__).parents[2]
MEASURED = re.compile(r"\d ?%|\d\.\d|± ?\d")
# Pages that still show tables from before there were records; a page that leaves this list stays off it.
BEFORE_RECORDS = {
    "docs/aas.md",
    "docs/attacks.md",
    "docs/deployment.md",
    "docs/evaluation.md",
    "docs/robustness-tokens.md",
    "docs/threat-model.md",
    "docs/tora.md",
    "docs/training.md",
    "docs/tutorials/review.md",
    "docs/xcit.md",
}


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load_script("fill_docs", monkeypatch)


@pytest.fixture
def results(fill: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results with an evaluation and a study in it."""
    monkeypatch.setattr(fill, "ROOT", tmp_path)
    monkeypatch.setattr(fill, "RESULTS", tmp_path / "results")
    clean = Trial("clean", None, {}, [True, True, True, False], [0, 1, 2, 0], [0.0] * 4)
    attacked = Trial("pgd", Budget("linf", 1 / 255), {}, [True, False, True, False], [0, 0, 2, 0], [0.0] * 4)
    data = {"count": 4, "spec": "sample", "labels": [0, 1, 2, 3]}
    keep(tmp_path / "results" / "mine", Record("evaluate", {"name": "net"}, data, [clean, attacked]))
    table = Table("Table 2: under attack", ["", "ours"], [["cosine", 0.5]], "A note.")
    keep(tmp_path / "results" / "study", Record("study", {"name": "net"}, data, [], tables=[table]))
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
    text = fill.filled(page("my net: mine"))
    assert "| my net | linf 1/255 | pgd | 4 | 75.0 (30.1 to 95.4) | 50.0 (15.0 to 85.0) |" in text
    assert "Records: `results/mine`; 2 processor minutes in all." in text
    assert fill.filled(text) == text


@pytest.mark.usefixtures("results")
def test_a_study_is_shown_by_its_own_table(fill: ModuleType) -> None:
    text = fill.filled(page("table 2: study", shown="stale figures\n"))
    assert "Table 2: under attack:\n\n|  | ours |\n| --- | --- |\n| cosine | 0.50 |\n\nA note." in text
    assert "stale" not in text


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(
    ("row", "message"),
    [("net: nowhere", "no result is called nowhere"), ("table 7: study", "no table that begins with")],
)
def test_what_is_not_there_cannot_be_shown(fill: ModuleType, row: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        fill.filled(page(row))


def test_pages_say_what_the_records_say(fill: ModuleType) -> None:
    for path in fill.pages():
        text = path.read_text("utf-8")
        assert fill.filled(text) == text, f"{path.name} is stale; run `python scripts/fill_docs.py`"


def test_no_measured_table_stands_without_a_record(fill: ModuleType) -> None:
    loose = set()
    for path in fill.pages():
        rest = fill.BLOCK.sub("", path.read_text("utf-8"))
        cells = [line for line in rest.splitlines() if line.startswith("|")]
        if any(MEASURED.search(re.sub(r"`[^`]*`", "", line)) for line in cells):
            loose.add(str(path.relative_to(ROOT)))
    assert loose == BEFORE_RECORDS
