"""Names from strangers' files and folders steer no terminal, whichever command prints them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

import robvit.cli
from helpers.report_samples import rich_record
from robvit.cli import app, main
from robvit.record import Record
from robvit.texts import printable

ESCAPE = "\x1b]0;owned\x07"  # another title of the window
SHOWN = r"\x1b]0;owned\x07"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A record whose every name would change the title of the window."""
    record = rich_record(count=2)
    record.model["name"] = record.command = f"net{ESCAPE}"
    record.notes = [f"note{ESCAPE}"]
    record.trials = [
        replace(trial, scenario=f"as{ESCAPE}", settings={f"steps{ESCAPE}": 1}, shards="")
        for trial in record.trials
    ]
    record.tables = [
        replace(table, title=f"table{ESCAPE}", note=ESCAPE, columns=[f"{c}{ESCAPE}" for c in table.columns])
        for table in record.tables
    ]
    record.save(tmp_path / "record.json")
    return tmp_path


@pytest.mark.parametrize("command", ["compare", "verify", "table", "report"])
def test_a_record_steers_no_terminal(command: str, folder: Path) -> None:
    more = [str(folder)] if command == "compare" else []
    done = CliRunner().invoke(app, [command, str(folder), *more])
    assert "\x1b" not in done.output
    assert command == "report" or SHOWN in done.output, done.output


def test_a_table_steers_no_terminal_and_has_no_markup(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Record.load(folder / "record.json").tables[0]
    robvit.cli.tables.show_table(
        replace(table, title=f"[link=https://evil.example]x[/link]{ESCAPE}", note="")
    )
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert f"[link=https://evil.example]x[/link]{SHOWN}" in shown


def test_classes_of_a_folder_steer_no_terminal(tmp_path: Path) -> None:
    for name in (f"cat{ESCAPE}", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / name / "1.png")
    (tmp_path / "dog" / f"bad{ESCAPE}.png").write_bytes(b"no image")
    done = CliRunner().invoke(app, ["data", "show", str(tmp_path)])
    assert "\x1b" not in done.output
    assert f"bad{SHOWN}.png" in done.output


def test_errors_and_warnings_steer_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["robvit", "report", f"nothing{ESCAPE}"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert SHOWN in (said := capsys.readouterr().err)
    assert "\x1b" not in said
    assert robvit.cli._warning(f"a{ESCAPE}") == f"warning: a{SHOWN}\n"


def test_what_is_printable_stays() -> None:
    text = "naïve 猫 – ±\u00a01/255\n\tε"
    assert printable(text) == text
    assert printable("\u202egnp.exe\x9b31m\ud800") == "\\u202egnp.exe\\x9b31m\\ud800"


def test_commands_print_by_the_console_that_knows_strangers() -> None:
    rooms = Path(robvit.cli.__file__).parent
    users = [path.name for path in rooms.glob("*.py") if "rich.console" in path.read_text()]
    assert users == ["tables.py"]
