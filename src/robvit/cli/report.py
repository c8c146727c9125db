"""`robvit report`: a record as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    record: Annotated[Path, typer.Argument(help="A record.json.")],
    out: Annotated[
        Path | None, typer.Option(help="The page; report.html beside the record if left out.")
    ] = None,
) -> None:
    """Turn a record into one self-contained page that opens from disk."""
    from robvit.evaluate.record import Record
    from robvit.report.html import write_report

    place = out or record.with_name("report.html")
    sheet = record.with_name("sheet.png")
    write_report(Record.load(record), place, pictures=[sheet] if sheet.exists() else [])
    typer.echo(f"written: {place}")
