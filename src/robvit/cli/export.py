"""`robvit export`: a model as a file that other programs run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.cli.attack_checks import check_patch
from robvit.cli.checks import check_data, check_model, free_place
from robvit.cli.given import refuse_given
from robvit.cli.options import (
    Adapters,
    Architecture,
    Device,
    Force,
    Head,
    ImageSize,
    Lora,
    OwnModel,
    Resize,
    Threads,
    WithSecret,
    choice,
)
from robvit.cli.shell import tell_device
from robvit.names import facts

SUFFIXES = {name: known["suffix"] for name, known in facts("format").items()}

if TYPE_CHECKING:
    from robvit.exporting.parity import Parity


def export(
    context: typer.Context,
    model: OwnModel,
    format: Annotated[
        str,
        typer.Option(
            **choice(*SUFFIXES),
            help="onnx; torch, a torch.export program; timm, a plain checkpoint; huggingface, a folder for "
            "transformers' from_pretrained.",
        ),
    ] = "onnx",
    out: Annotated[
        Path | None,
        typer.Option(help="Where it is written; MODEL with the format's ending, or the folder MODEL-hf."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Tokens that harden it; the file then carries them.")
    ] = None,
    with_secret: WithSecret = False,
    head: Head = None,
    lora: Lora = None,
    adapters: Adapters = None,
    trade_off: Annotated[
        float | None, typer.Option(help="Where adapters shall stand: 0 accuracy, 1 robustness.")
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(help="Logits that no patch of so many pixels (14) or share (2%) changes; onnx, torch."),
    ] = None,
    windows: Annotated[
        str, typer.Option(help="With --patch, windows along each side (3), or rows x columns (1x7).")
    ] = "3",
    data: Annotated[
        str, typer.Option(help="Images on which the file is compared with the model.")
    ] = "sample",
    limit: Annotated[int, typer.Option(min=1, help="How many of them.")] = 16,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    force: Force = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Write a model for other runtimes, after comparing the file's answers with the model's.

    ONNX and torch files take pixels (batch 3 H W) in [0,1] in batches of any size, normalise inside, and
    answer with features (class and patch tokens) and, where there are classes, logits. The file must give
    features within 1e-4 of their length and the same predictions on real images, or it is not kept. With
    --patch the file answers with the logits of the defended inference alone, and asks all pairs of windows.
    """
    named = Path(model.partition(":")[2] or model).stem
    place = free_place(out or Path(named + (SUFFIXES[format] or "-hf")), force)
    check_model(model, arch, img_size=img_size, head=head, tokens=tokens, lora=lora, adapters=adapters)
    check_data(data)
    check_patch(patch, windows, model)
    if patch is None:
        refuse_given(context, "goes with --patch", "windows")
    from robvit.backbones import weights
    from robvit.backbones.trained_on import fitting
    from robvit.certification.patches import open_defense
    from robvit.data import open_data
    from robvit.exporting import export as write
    from robvit.loading import load

    net = load(model, tokens=tokens, head=head, lora=lora, adapters=adapters, img_size=img_size, arch=arch)
    if trade_off is not None:
        net = net.replace(trade_off=trade_off)
    net = net.replace(usual_resize=fitting(net, resize))
    tell_device(net)
    images, _ = open_data(data, size=net.input_size[0], resize=net.usual_resize, limit=limit).tensors()
    parity = write(
        net,
        place,
        format,
        images=images,
        with_secret=with_secret,
        arch=weights.architecture(model, arch),
        defense=None if patch is None else open_defense(net, patch, windows).exportable(),
    )
    _tell(place, format, parity, secret=tokens is not None)


def _tell(place: Path, format: str, parity: Parity, *, secret: bool) -> None:
    """What was compared, where the file is, how it is opened."""
    from robvit.exporting import WARNING, loading_lines

    typer.echo(f"compared with the model: {parity}")
    typer.echo(f"written{', for your eyes only' if secret else ''}: {place}")
    if secret:
        typer.echo(f"warning: {WARNING}")
    typer.echo("next, to use it without robvit:")
    for line in loading_lines(place, format):
        typer.echo(f"  {line}")
