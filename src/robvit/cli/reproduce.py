"""`robvit reproduce`: the papers' tables and figures, ours beside theirs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.options import Fit, ImageSize, Seed, parse_settings
from robvit.cli.tables import show_table


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="STUDY", help="Such as rob-table2; left out, all are listed.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The backbone (`robvit models`); the study's own if left out.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The images (`robvit data list`); the study's own if left out.")
    ] = None,
    images: Annotated[
        int | None, typer.Option(min=1, help="How many images are judged: the scale of the run.")
    ] = None,
    img_size: ImageSize = None,
    fit: Fit = "squash",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the study, such as --set steps=10.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for record, report and intermediate results.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Repeat a table or figure of one of the four papers and print our figures beside the paper's.

    Without a name, the studies are listed. Every study runs on any backbone and images you name.
    """
    from robvit.report.html import write_report
    from robvit.studies import STUDIES
    from robvit.studies import reproduce as run

    if name is None:
        _list()
        return
    known = STUDIES.info(name).defaults
    settings = parse_settings(setting or [], known, name)
    folder = out or Path("runs") / name
    record = run(
        name,
        model=model,
        data=data,
        images=images,
        img_size=img_size,
        resize=fit,
        seed=seed,
        out=folder,
        command=" ".join(["robvit", *sys.argv[1:]]),
        **settings,
    )
    write_report(record, folder / "report.html", images=sorted(folder.glob("*.png")))
    for table in record.tables:
        show_table(table)
    for note in record.notes:
        typer.echo(note)
    typer.echo(f"written: {folder}/record.json\nopen:    {folder}/report.html")


def _list() -> None:
    from itertools import groupby

    from rich.console import Console
    from rich.table import Table

    from robvit.studies import STUDIES

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    entries = sorted(STUDIES, key=lambda entry: (entry.info.paper, entry.name))
    for paper, studies in groupby(entries, key=lambda entry: entry.info.paper):
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in ("study", "what it repeats", "settings"):
            table.add_column(column, no_wrap=column == "study")
        for entry in studies:
            settings = ", ".join(f"{k}={_plainly(k, v)}" for k, v in entry.info.defaults.items())
            table.add_row(f"  {entry.name}", entry.info.title, f"[dim]{settings}[/dim]")
        console.print(f"[bold]{paper}[/bold]", table, "")
    typer.echo("next: robvit reproduce STUDY, such as robvit reproduce rob-table2 --images 32 --set steps=40")


def _plainly(name: str, value: object) -> str:
    """A setting as it is typed: budgets in grey levels, lists as JSON has them."""
    if name == "eps" and isinstance(value, float):
        return f"{value * 255:g}/255"
    return str(list(value)).replace(" ", "") if isinstance(value, tuple) else str(value)
