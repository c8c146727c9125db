"""Records as tables for other programs."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from robvit.budget import Budget
from robvit.cli import app
from robvit.errors import InputError
from robvit.evaluation.tables import formatted, rows_of
from robvit.record import Record, Trial


def record(name: str = "my_net & co") -> Record:
    clean = Trial("clean", None, {}, [True, True, True, False], [0, 1, 0, 1], [0.0] * 4)
    pgd = Trial("pgd", Budget("linf", 8 / 255), {}, [True, False, False, False], [0, 0, 1, 1], [0.03] * 4)
    data = {"count": 4, "spec": "sample", "labels": [0, 1, 0, 0], "names": list("abcd")}
    return Record("evaluate", {"name": name}, data, [clean, pgd])


def test_csv_keeps_every_digit_and_runs_no_formula() -> None:
    read = list(csv.DictReader(io.StringIO(formatted([record("=1+1"), record()], "csv"))))
    assert [row["model"] for row in read] == ["'=1+1"] * 2 + ["my_net & co"] * 2
    assert float(read[1]["accuracy"]) == 25
    assert float(read[1]["low"]) == pytest.approx(rows_of([record()])[1]["low"], abs=1e-12)
    assert "scenario" not in read[0]


def test_markdown_and_latex_are_escaped() -> None:
    assert formatted([record("a|b")], "markdown").splitlines()[2].startswith("| a\\|b | sample | 4 | clean |")
    latex = formatted([record()], "latex")
    assert r"my\_net \& co & sample & 4 & pgd & linf 8/255 & 25.0" in latex
    assert latex.startswith("\\begin{tabular}{llrllrrr}\n\\toprule")


def test_a_format_that_is_none_and_a_record_without_attacks_are_refused() -> None:
    with pytest.raises(InputError, match="text, csv, markdown, latex, got 'excel'"):
        formatted([record()], "excel")
    with pytest.raises(InputError, match="no table"):
        formatted([Record("train", {}, {"count": 0}, [])])


def test_the_command_joins_records(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        record(name).save(tmp_path / name / "record.json")
    done = CliRunner().invoke(app, ["table", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "csv"])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == 5


def test_a_data_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        record().to_dataframe()


def test_a_data_frame_has_the_tables_rows() -> None:
    pytest.importorskip("pandas")
    frame = record().to_dataframe()
    assert frame["share"].tolist() == [75, 25]
    assert frame["attack"].tolist() == ["clean", "pgd"]


def test_tables_of_records_are_quick_for_they_need_no_torch() -> None:
    code = "import sys, robvit.evaluation.tables; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
