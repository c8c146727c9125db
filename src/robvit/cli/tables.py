"""How a record's tables look in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from robvit.texts import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from robvit.record import Table

WIDE = 140  # enough for pages that quote tables


def console(elsewhere: int | None = None) -> Console:
    """Where tables are printed: as wide as the terminal, or `elsewhere` so wide where there is none.

    It writes beneath the stream that writes out what steers a terminal, for its own colours are meant: text
    from elsewhere goes through `plain`.
    """
    from rich.console import Console

    beneath = getattr(sys.stdout, "beneath", sys.stdout)
    return Console(file=beneath, width=None if beneath.isatty() else elsewhere, highlight=False)


def plain(text: object) -> Text:
    """Text from elsewhere for a console: no colours, and nothing that steers a terminal."""
    from rich.text import Text

    return Text(printable(str(text)))


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
        shown.add_column(plain(column), justify="right" if place and figures else "left")
    for row in table.rows:
        shown.add_row(*(plain(table.cell(value)) for value in row))
    console(WIDE).print(plain(table.title), style="bold")
    console(WIDE).print(shown)
    if table.note:
        typer.echo(f"{table.note}\n")
