"""`robvit tokens`: secret tokens as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.options import Force, free_place

app = typer.Typer(no_args_is_help=True, help="Bring in and look at files of robustness tokens.")


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="A .pt file of the paper's project.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; FILE with .safetensors if left out.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model they are for; ties them to its exact weights.")
    ] = None,
    force: Force = False,
) -> None:
    """Turn published tokens into robvit's format; nothing in the file is executed."""
    from robvit.defenses.tokens import import_published
    from robvit.loading import load

    place = free_place(out or Path(file.name).with_suffix(".safetensors"), force)
    tokens = import_published(file, None if model is None else load(model))
    tokens.save(place)
    typer.echo(f"{tokens.count} tokens of width {tokens.width}, key {tokens.key_id}")
    if model is None:
        typer.echo("not tied to any weights: name them with --model, so that other weights are refused")
    typer.echo(f"written, for your eyes only: {place}")


@app.command()
def show(file: Annotated[Path, typer.Argument(help="A token file.")]) -> None:
    """Tell what a token file is for, without showing the tokens."""
    from robvit.defenses.tokens import RobustTokens

    tokens = RobustTokens.load(file)
    typer.echo(f"{tokens.count} tokens of width {tokens.width}, key {tokens.key_id}")
    typer.echo(f"weights: {tokens.fingerprint[:16] or 'not named'}")
    for name, value in tokens.settings.items():
        typer.echo(f"{name}: {value}")
