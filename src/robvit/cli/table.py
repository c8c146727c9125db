"""`robvit table`: records as CSV, Markdown or LaTeX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from robvit.cli.checks import check_record


def table(
    records: Annotated[list[Path], typer.Argument(help="Files record.json, or the folders that hold them.")],
    style: Annotated[
        Literal["text", "csv", "markdown", "latex"], typer.Option("--format", help="How it is written.")
    ] = "text",
    seeds: Annotated[
        bool,
        typer.Option(
            "--seeds",
            help="The records are of one setting trained with several seeds: mean, standard deviation and "
            "95 % interval of the mean over the seeds.",
        ),
    ] = False,
) -> None:
    """Print one table of several records: accuracy under each attack with its 95 % interval."""
    for place in records:
        check_record(place)
    from robvit.evaluation.compare import open_record
    from robvit.evaluation.tables import formatted

    typer.echo(formatted([open_record(place) for place in records], style, seeds=seeds), nl=False)
