"""`robvit tokens`: secret tokens as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_data, check_file, check_model, check_out, check_part, free_place
from robvit.cli.commands import Command, Group
from robvit.cli.options import (
    Architecture,
    CheckpointPath,
    DataSpec,
    Device,
    Force,
    HardenSplit,
    ImageSize,
    Limit,
    Lora,
    OwnModel,
    Resize,
    Threads,
    WithSecret,
    choice,
)
from robvit.cli.shell import tell_device, typed
from robvit.errors import InputError

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Bring in, look at, rotate and bake files of robustness tokens."
)


@app.command("import", cls=Command)
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
    place = free_place(out or Path(file.name).with_suffix(".safetensors"), force)
    check_file(file, "tokens")
    check_model(model)
    from robvit.defenses.tokens import import_published
    from robvit.loading import load

    tokens = import_published(file, None if model is None else load(model))
    tokens.save(place)
    typer.echo(str(tokens))
    if model is None:
        typer.echo("not tied to any weights: name them with --model, so that other weights are refused")
    typer.echo(f"written, for your eyes only: {place}")


@app.command(cls=Command)
def show(file: Annotated[Path, typer.Argument(help="A file of tokens or of a pool.")]) -> None:
    """Tell what a token file is for, and whether it is a secret, without showing tokens or seed."""
    check_part(file, "tokens")
    from robvit.defenses.pool import TokenPool, load_tokens

    found = load_tokens(file)
    sets = found.sets if isinstance(found, TokenPool) else (found,)
    for tokens in sets:
        typer.echo(str(tokens))
    typer.echo(f"weights: {sets[0].fingerprint[:16] or 'not named'}")
    for name, value in sets[0].settings.items():
        if name != "seed":
            typer.echo(f"{name}: {value}")


@app.command(cls=Command)
def rotate(
    old: Annotated[Path, typer.Argument(help="The token file that is to be replaced.")],
    model: OwnModel,
    data: DataSpec = "sample",
    out: Annotated[Path, typer.Option(help="Folder for new tokens and record.")] = Path("runs/rotate"),
    bound: Annotated[
        float, typer.Option(help="Least cosine of clean features, with the new tokens and without.")
    ] = 0.8,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; as before if left out.")] = None,
    judge: Annotated[int, typer.Option(min=1, help="Images kept from the training to judge on.")] = 32,
    head: Annotated[Path | None, typer.Option(help="A head, to tell accuracy as well; needs labels.")] = None,
    lora: Lora = None,
    split: HardenSplit = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Issue new tokens by the old ones' recipe, and tell how far attacks on the old ones carry over.

    What they grow from is drawn in secret. New tokens that change clean features too much are refused.
    """
    check_part(old, "tokens")
    check_model(model, arch, img_size=img_size, head=head, lora=lora)
    check_data(data, split)
    check_out(out)
    from robvit.defenses.rotate import rotate as issue
    from robvit.progress import progress
    from robvit.record import Table

    tell_device()
    with progress("new tokens and attacks on both sets", total=1) as advance:
        rotation = issue(
            old,
            model,
            data,
            out=out,
            bound=bound,
            steps=steps,
            judge=judge,
            head=head,
            lora=lora,
            split=split,
            resize=resize,
            limit=limit,
            img_size=img_size,
            arch=arch,
            progress=advance,
            command=typed(),
        )
    record = rotation.record
    clean = record.metrics["cosine, clean, new tokens"]
    typer.echo(f"{rotation.tokens}; clean cosine {clean:.2f}, the bound is {bound}")
    for row in (record.tables[0].columns, *record.tables[0].rows):
        typer.echo("".join(f"{Table.cell(value):<28}" for value in row).rstrip())
    for note in record.notes:
        typer.echo(note)
    typer.echo(f"written: {out}/tokens.safetensors (a secret, for your eyes only), {out}/record.json")
    typer.echo(f"next: serve the new ones, then remove {old}")


@app.command(cls=Command)
def bake(
    model: OwnModel,
    file: Annotated[Path, typer.Argument(help="A token file.")],
    out: CheckpointPath = Path("baked.safetensors"),
    layout: Annotated[
        str, typer.Option(help="dinov2: the hub's DINOv2 with registers.", **choice("timm", "dinov2"))
    ] = "timm",
    img_size: ImageSize = None,
    with_secret: WithSecret = False,
    force: Force = False,
) -> None:
    """Write a plain checkpoint whose register tokens are the robustness tokens; serving needs no robvit."""
    if not with_secret:
        raise InputError("a baked checkpoint carries the secret tokens; say --with-secret if that is meant")
    free_place(out, force)
    check_model(model, img_size=img_size, tokens=file)
    from robvit.backbones import zoo
    from robvit.defenses.bake import WARNING, save_baked
    from robvit.defenses.tokens import RobustTokens
    from robvit.loading import load

    timm_name = zoo.resolve(model).timm_name.split(".")[0]
    options = save_baked(
        load(model, img_size=img_size), RobustTokens.load(file), out, timm_name=timm_name, format=layout
    )
    typer.echo(f"written: {out}\nwarning: {WARNING}")
    if layout == "timm":
        wishes = ", ".join(f"{name}={value!r}" for name, value in options.items())
        typer.echo("to load it without robvit:")
        typer.echo(f"  net = timm.create_model({timm_name!r}, {wishes})")
        typer.echo(f"  net.load_state_dict(safetensors.torch.load_file({str(out)!r}))")
