"""`robvit tokens`: secret tokens as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.options import Force, ImageSize, ModelName, free_place

app = typer.Typer(no_args_is_help=True, help="Bring in, look at and bake files of robustness tokens.")


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


@app.command()
def bake(
    model: ModelName,
    file: Annotated[Path, typer.Argument(help="A token file.")],
    out: Annotated[Path, typer.Option(help="Where the checkpoint is written.")] = Path("baked.safetensors"),
    layout: Annotated[
        str, typer.Option(help='"timm", or "dinov2": the hub\'s DINOv2 with registers.')
    ] = "timm",
    img_size: ImageSize = None,
    with_secret: Annotated[
        bool, typer.Option("--with-secret", help="Yes, the file shall carry the secret tokens.")
    ] = False,
    force: Force = False,
) -> None:
    """Write a plain checkpoint whose register tokens are the robustness tokens; serving needs no robvit."""
    from robvit.backbones import zoo
    from robvit.defenses.bake import WARNING, save_baked
    from robvit.defenses.tokens import RobustTokens
    from robvit.errors import InputError
    from robvit.loading import load

    if not with_secret:
        raise InputError("a baked checkpoint carries the secret tokens; say --with-secret if that is meant")
    free_place(out, force)
    timm_name = zoo.resolve(model).timm_name.split(".")[0]
    options = save_baked(
        load(model, img_size=img_size), RobustTokens.load(file), out, timm_name=timm_name, form=layout
    )
    typer.echo(f"written: {out}\nwarning: {WARNING}")
    if layout == "timm":
        wishes = ", ".join(f"{name}={value!r}" for name, value in options.items())
        typer.echo("to load it without robvit:")
        typer.echo(f"  net = timm.create_model({timm_name!r}, {wishes})")
        typer.echo(f"  net.load_state_dict(safetensors.torch.load_file({str(out)!r}))")
