"""`robvit compare`: records on the same images, with paired tests."""

from __future__ import annotations

from pathlib import Path
from string import ascii_uppercase
from typing import Annotated

import typer

from robvit.cli.checks import check_record
from robvit.cli.tables import console, plain, show_table


def compare(
    records: Annotated[
        list[Path],
        typer.Argument(help="Two or more files record.json, or their folders, of the same images."),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(
            help="A record of a second setting, once for each of its seeds; the others are the seeds of the "
            "first."
        ),
    ] = None,
) -> None:
    """Compare models image by image: differences with 95 % intervals, and exact McNemar tests.

    With more than two records p-values are corrected for all tests together (Holm). With --against two
    settings are compared, each trained with several seeds: means over seeds, by Welch's test.
    """
    if against:
        _compare_seeds(records, against)
        return
    if not 2 <= len(records) <= len(ascii_uppercase):
        raise typer.BadParameter(f"give two records or more, at most 26, got {len(records)}")
    for place in records:
        check_record(place)
    from robvit.evaluation.compare import comparison_table, differences, open_record

    opened = [open_record(place) for place in records]
    table = comparison_table(opened)
    for name, place, record in zip(ascii_uppercase, records, opened, strict=False):
        typer.echo(f"{name}: {record.model.get('name')} ({place})")
    typer.echo(f"{opened[0].data['count']} images\n")
    show_table(table)
    for line in dict.fromkeys(line for other in opened[1:] for line in differences(opened[0], other)):
        typer.echo(f"note: {line}")


def _compare_seeds(first: list[Path], second: list[Path]) -> None:
    """Two settings, each with the spread over its seeds."""
    for place in (*first, *second):
        check_record(place)
    from rich.table import Table

    from robvit.evaluation.compare import open_record
    from robvit.evaluation.seeds import compare_seeds

    a, b = ([open_record(place) for place in places] for places in (first, second))
    table = Table(box=None, pad_edge=False)
    for column in ("", "A", "B", "A - B", "95 % interval", "p"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=bool(column))
    for one in compare_seeds(a, b):
        table.add_row(
            plain(" ".join(part for part in one.a.line if part and part != "none")),
            *(f"{100 * side.mean:.1f} ± {100 * side.deviation:.1f}" for side in (one.a, one.b)),
            f"{100 * one.difference:+.1f}",
            f"{100 * one.low:+.1f} to {100 * one.high:+.1f}",
            f"{one.adjusted:.2g}",
        )
    for name, places in (("A", first), ("B", second)):
        typer.echo(f"{name}: {len(places)} seeds ({', '.join(map(str, places))})")
    typer.echo(f"{a[0].data['count']} images\n")
    console().print(table)
    typer.echo(
        "\nmean ± standard deviation over seeds, in per cent; p: Welch's test over seeds, two-sided, "
        "corrected for all tests (Holm); it speaks of other seeds on these images"
    )
