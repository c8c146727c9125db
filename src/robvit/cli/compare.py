"""`robvit compare`: two records on the same images, with paired tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_record


def compare(
    a: Annotated[Path, typer.Argument(help="A record.json, or the folder that holds it.")],
    b: Annotated[Path, typer.Argument(help="Another, on the same images.")],
) -> None:
    """Compare two models image by image: differences with 95 % intervals, and exact McNemar tests."""
    for place in (a, b):
        check_record(place)
    from rich.console import Console
    from rich.table import Table

    from robvit.evaluation.compare import compare as pairs
    from robvit.evaluation.compare import differences, open_record

    first, second = open_record(a), open_record(b)
    table = Table(box=None, pad_edge=False)
    for column in ("", "A", "B", "only A", "only B", "A - B", "95 % interval", "p"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=bool(column))
    for pair in pairs(first, second):
        table.add_row(
            pair.what,
            f"{pair.a:.1%}",
            f"{pair.b:.1%}",
            str(pair.only_a),
            str(pair.only_b),
            f"{100 * pair.difference:+.1f}",
            f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f}",
            f"{pair.p:.2g}",
        )
    for name, place, record in (("A", a, first), ("B", b, second)):
        typer.echo(f"{name}: {record.model.get('name')} ({place})")
    typer.echo(f"{first.data['count']} images\n")
    Console().print(table)
    typer.echo("\nonly A: images that A alone gets right; p: exact McNemar test, two-sided")
    for line in differences(first, second):
        typer.echo(f"note: {line}")
