"""How a record's tables look in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from robvit.record import Table


def console() -> Console:
    """Where tables are printed: as wide as the terminal, or wide enough for pages that quote them."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def _is_figure(text: str) -> bool:
    """Whether a cell is a number, with what may follow one, or a dash for none."""
    return not text or text[0] in "0123456789+-–−<>~"


def show_table(table: Table) -> None:
    """Print one: text on the left, figures flush right, its note beneath."""
    from rich import box
    from rich.table import Table as Printed

    shown = Printed(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(table.columns):
        figures = all(_is_figure(table.cell(row[place])) for row in table.rows)
        shown.add_column(column, justify="right" if place and figures else "left")
    for row in table.rows:
        shown.add_row(*(table.cell(value) for value in row))
    console().print(table.title, style="bold")
    console().print(shown)
    if table.note:
        typer.echo(f"{table.note}\n")
