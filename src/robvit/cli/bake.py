"""`robvit bake`: a tuned model as a plain checkpoint that needs no robvit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_model, free_place
from robvit.cli.options import (
    Architecture,
    CheckpointPath,
    Device,
    Force,
    ImageSize,
    OwnModel,
    Threads,
    choice,
)

LAYOUTS = ("timm", "huggingface")


def bake(
    model: OwnModel,
    lora: Annotated[
        Path | None, typer.Argument(metavar="LORA", help="Factors of `robvit robustify --method lora`.")
    ] = None,
    out: CheckpointPath = Path("baked.safetensors"),
    layout: Annotated[
        str, typer.Option(**choice(*LAYOUTS), help="timm's, or Hugging Face's: the state of a Dinov2Model.")
    ] = "timm",
    img_size: ImageSize = None,
    arch: Architecture = None,
    force: Force = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Merge factors into a plain checkpoint of timm's or Hugging Face's; inference costs what it did.

    The file is compared with the model on real images before it gets its name. A model of --method full is
    given without LORA.
    """
    check_model(model, arch, lora=lora)
    free_place(out, force)
    from robvit.backbones import weights
    from robvit.data import open_data
    from robvit.exporting import export, loading_lines
    from robvit.loading import load

    net = load(model, lora=lora, img_size=img_size, arch=arch)
    images, _ = open_data("sample", size=net.input_size[0], limit=4).tensors()
    parity = export(net, out, layout, images=images, arch=weights.architecture(model, arch))
    typer.echo(f"compared with the model: {parity}")
    typer.echo(f"written: {out}")
    typer.echo("next, to use it without robvit:")
    for line in loading_lines(out, layout):
        typer.echo(f"  {line}")
