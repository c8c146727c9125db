"""`robvit reproduce`: the papers' tables and figures, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.cli.checks import check_data, check_model, check_out
from robvit.cli.given import refuse_given
from robvit.cli.options import Device, ImageSize, Resize, Seed, Threads
from robvit.cli.recipe_checks import check_study
from robvit.cli.shell import typed
from robvit.cli.tables import WIDE, console, show_table
from robvit.names import facts

if TYPE_CHECKING:
    from robvit.record import Record

# Options of a run, which records that are pooled have behind them.
OF_A_RUN = ("model", "data", "images", "img_size", "resize", "setting", "seed", "check", "device", "threads")


def reproduce(
    context: typer.Context,
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
    resize: Resize = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the study, such as --set steps=10.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for record, report and intermediate results.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="STUDY is a result in results/: repeat it with fewer images, compare."),
    ] = False,
    pool: Annotated[
        list[Path] | None,
        typer.Option(help="A record of STUDY with one seed, once for each: all are taken together."),
    ] = None,
    results: Annotated[Path, typer.Option(help="With --check, the folder of kept results.")] = Path(
        "results"
    ),
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Repeat a table or figure of a paper and print our figures beside the paper's, or run another study.

    Without a name, the studies are listed. Every study runs on any backbone and images you name. With
    --check, a record that the project keeps is made anew by its own command with fewer images (--images; a
    quarter if left out), and the exit code tells whether both agree within intervals. With --pool, runs of
    one study whose trainings had other seeds become one record, with every claim tested over all seeds.
    """
    if name is None:
        _list()
        return
    if pool:
        refuse_given(context, "is decided by the records of --pool", *OF_A_RUN)
    if check:
        _check(name, results, images, out)
        return
    settings = check_study(name, setting)
    folder = out or Path("runs") / name
    check_model(model)
    check_data(data)
    check_out(folder)
    if pool:
        _show(_pooled(name, pool, folder), folder)
        return
    from robvit.studies import reproduce as run

    record = run(
        name,
        model=model,
        data=data,
        images=images,
        img_size=img_size,
        resize=resize or "squash",
        seed=seed,
        out=folder,
        command=typed(),
        **settings,
    )
    _show(record, folder)


def _pooled(name: str, places: list[Path], folder: Path) -> Record:
    """Runs of the study with other seeds as one record."""
    from robvit.errors import InputError
    from robvit.evaluation.compare import open_record
    from robvit.studies import pool

    records = [open_record(place) for place in places]
    for place, record in zip(places, records, strict=True):
        if (got := record.protocol.get("study")) != name:
            raise InputError(f"{place}: expected a record of {name}, got one of {got or record.kind}")
    return pool(records, out=folder, command=typed())


def _show(record: Record, folder: Path) -> None:
    from robvit.report.html import write_report

    write_report(record, folder / "report.html", images=sorted(folder.glob("*.png")))
    for table in record.tables:
        show_table(table)
    for note in record.notes:
        typer.echo(note)
    typer.echo(f"written: {folder}/record.json\nopen:    {folder}/report.html")


def _check(name: str, results: Path, images: int | None, out: Path | None) -> None:
    """Make a kept record anew with fewer images and tell whether both agree."""
    import tempfile

    from robvit.cli import app
    from robvit.record import Record
    from robvit.studies.kept import agreement, read_kept

    kept = read_kept(name, results)
    with tempfile.TemporaryDirectory() as aside:
        folder = out or Path(aside)
        words = kept.command(images or kept.fewer, folder)
        typer.echo(f"robvit {' '.join(words)}")
        app(words, standalone_mode=False)
        found = agreement(kept.record, Record.load(folder / "record.json"))
    show_table(found.table)
    typer.echo(str(found))
    raise typer.Exit(1 if found.disagree else 0 if found.compared else 2)


def _list() -> None:
    from itertools import groupby

    from rich.markup import escape
    from rich.table import Table

    entries = sorted(facts("study").items(), key=lambda entry: (entry[1]["paper"], entry[0]))
    for paper, studies in groupby(entries, key=lambda entry: entry[1]["paper"]):
        table = Table(box=None, pad_edge=False, show_header=False)
        for column in ("study", "what it repeats", "settings"):
            table.add_column(column, no_wrap=column == "study")
        for name, about in studies:
            settings = ", ".join(f"{k}={_plainly(k, v)}" for k, v in about["defaults"].items())
            table.add_row(f"  {name}", about["title"], f"[dim]{escape(settings)}[/dim]")
        console(WIDE).print(f"[bold]{paper}[/bold]", table, "")
    typer.echo("next: robvit reproduce STUDY, such as robvit reproduce rob-table2 --images 32 --set steps=40")


def _plainly(name: str, value: object) -> str:
    """A setting as it is typed: budgets in grey levels, lists as JSON has them."""
    if name == "eps" and isinstance(value, float):
        return f"{value * 255:g}/255"
    return str(value).replace(" ", "") if isinstance(value, list) else str(value)
