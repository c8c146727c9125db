"""`robvit bake`: a tuned model as a plain checkpoint that needs no robvit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_model, free_place
from robvit.cli.options import Architecture, Device, Force, Head, ImageSize, OwnModel, Threads, choice
from robvit.cli.shell import tell_device

LAYOUTS = ("timm", "huggingface")


def bake(
    model: OwnModel,
    lora: Annotated[
        Path | None, typer.Argument(metavar="LORA", help="Factors of `robvit robustify --method lora`.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where it is written; baked.safetensors, or for Hugging Face's the folder baked."),
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            **choice(*LAYOUTS), help="timm's, or Hugging Face's: a folder that transformers' networks open."
        ),
    ] = "timm",
    head: Head = None,
    img_size: ImageSize = None,
    arch: Architecture = None,
    force: Force = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Merge factors into a plain checkpoint of timm's or Hugging Face's; inference costs what it did.

    What is written is compared with the model on real images before it gets its name. A model of --method
    full is given without LORA. Transformers' networks take a linear --head as their classifier.
    """
    check_model(model, arch, img_size=img_size, lora=lora, head=head)
    out = free_place(out or Path("baked.safetensors" if layout == "timm" else "baked"), force)
    from robvit.backbones import weights
    from robvit.data import open_data
    from robvit.exporting import export, loading_lines
    from robvit.loading import load

    net = load(model, lora=lora, head=head, img_size=img_size, arch=arch)
    tell_device(net)
    images, _ = open_data("sample", size=net.input_size[0], limit=4).tensors()
    parity = export(net, out, layout, images=images, arch=weights.architecture(model, arch))
    typer.echo(f"compared with the model: {parity}")
    typer.echo(f"written: {out}")
    typer.echo("next, to use it without robvit:")
    for line in loading_lines(out, layout):
        typer.echo(f"  {line}")
