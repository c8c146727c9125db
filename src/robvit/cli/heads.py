"""`robvit heads`: heads as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from robvit.cli.checks import check_file, check_model, free_place
from robvit.cli.commands import Command, Group
from robvit.cli.options import Architecture, Force, ImageSize, OwnModel
from robvit.cli.shell import tell_next

app = typer.Typer(cls=Group, no_args_is_help=True, help="Bring in linear heads that you have.")


@app.callback()
def _group() -> None:
    """Keeps `import` a command of its own."""


@app.command("import", cls=Command)
def import_(
    model: OwnModel,
    file: Annotated[Path, typer.Argument(help="The state dict of an nn.Linear: .safetensors, .pt or .pth.")],
    on: Annotated[
        Literal["class", "mean", "both"] | None,
        typer.Option(help="What it sees: class token, mean patch, or both; told by its width if left out."),
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="A text file with the name of a class a line, in their order.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the head is written.")] = Path("head.safetensors"),
    img_size: ImageSize = None,
    arch: Architecture = None,
    force: Force = False,
) -> None:
    """Turn a linear layer that you trained on a backbone's features into a head of robvit's.

    Nothing in the file is executed. The head is tied to the backbone's exact weights.
    """
    free_place(out, force)
    check_model(model, arch, img_size=img_size)
    check_file(file, "linear layer")
    from robvit.backbones.heads import import_linear
    from robvit.files import read_text
    from robvit.loading import load

    called = read_text(names, "a list of classes").split("\n") if names else []
    called = [line.strip() for line in called if line.strip()]
    head = import_linear(file, load(model, arch=arch, img_size=img_size), on=on, names=called or None)
    head.save(out)
    typer.echo(f"{head.kind} head for {head.classes} classes\nwritten: {out}")
    tell_next("evaluate", model, "DATA", head=out, img_size=img_size, arch=arch)
