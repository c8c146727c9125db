"""`robvit compare`: records on the same images, with paired tests."""

from __future__ import annotations

from pathlib import Path
from string import ascii_uppercase
from typing import Annotated

import typer

from robvit.cli.checks import check_record


def compare(
    records: Annotated[
        list[Path],
        typer.Argument(help="Two or more files record.json, or their folders, of the same images."),
    ],
) -> None:
    """Compare models image by image: differences with 95 % intervals, and exact McNemar tests.

    With more than two records p-values are corrected for all tests together (Holm).
    """
    if not 2 <= len(records) <= len(ascii_uppercase):
        raise typer.BadParameter(f"give two records or more, at most 26, got {len(records)}")
    for place in records:
        check_record(place)
    from rich.console import Console
    from rich.table import Table

    from robvit.evaluation.compare import compare_all, differences, open_record

    opened = [open_record(place) for place in records]
    several = len(opened) > 2
    table = Table(box=None, pad_edge=False)
    pairs = ["pair"] if several else []
    for column in ("", *pairs, "A", "B", "only A", "only B", "A - B", "95 % interval", "p"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=bool(column))
    for contrast in compare_all(opened):
        pair = contrast.pair
        names = f"{ascii_uppercase[contrast.first]}, {ascii_uppercase[contrast.second]}"
        table.add_row(
            pair.what,
            *([names] if several else []),
            f"{pair.a:.1%}",
            f"{pair.b:.1%}",
            str(pair.only_a),
            str(pair.only_b),
            f"{100 * pair.difference:+.1f}",
            f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f}",
            f"{contrast.adjusted:.2g}",
        )
    for name, place, record in zip(ascii_uppercase, records, opened, strict=False):
        typer.echo(f"{name}: {record.model.get('name')} ({place})")
    typer.echo(f"{opened[0].data['count']} images\n")
    Console().print(table)
    which = ", corrected for all tests (Holm); A and B are the first and second of a pair" if several else ""
    typer.echo(f"\nonly A: images that A alone gets right; p: exact McNemar test, two-sided{which}")
    for line in dict.fromkeys(line for other in opened[1:] for line in differences(opened[0], other)):
        typer.echo(f"note: {line}")
