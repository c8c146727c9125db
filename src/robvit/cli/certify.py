"""`robvit certify`: what no patch, or no small change in L2, can take from a ViT."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.certification.windows import patch_sides, window_counts
from robvit.cli.attack_checks import check_patch
from robvit.cli.checks import check_data, check_model, check_out
from robvit.cli.given import refuse_given
from robvit.cli.options import (
    Architecture,
    BatchSize,
    DataSpec,
    Device,
    Head,
    ImageSize,
    Limit,
    Lora,
    OwnModel,
    ReportFolder,
    Resize,
    Seed,
    Split,
    Threads,
    Tokens,
)
from robvit.cli.shell import command_line, tell_device, typed
from robvit.cli.tables import show_table
from robvit.errors import InputError

if TYPE_CHECKING:
    from robvit.record import Record


def certify(
    context: typer.Context,
    model: OwnModel,
    data: DataSpec = "sample",
    patch: Annotated[
        str | None,
        typer.Option(
            help="Side of a square patch: pixels (32), a share of the area (2%), or several (7,14,28)."
        ),
    ] = None,
    windows: Annotated[
        str, typer.Option(help="Windows along each side (3), or rows x columns (1x7); more hide less.")
    ] = "3",
    maps: Annotated[
        bool, typer.Option("--maps", help="Also draw where a patch could succeed; costs more passes.")
    ] = False,
    attack_steps: Annotated[
        int, typer.Option(min=0, help="Also attack the defence itself, with patches of so many steps.")
    ] = 0,
    l2: Annotated[float | None, typer.Option(help="In place of a patch, an L2 radius in pixels.")] = None,
    embedding: Annotated[
        bool, typer.Option("--embedding", help="With --l2, bound the class embedding's cosine; no labels.")
    ] = False,
    sigma: Annotated[
        float | None, typer.Option(help="Noise of the smoothing; the radius if left out.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="Noisy copies that certify an image.")] = 1000,
    alpha: Annotated[float, typer.Option(help="Chance of error an image.")] = 0.001,
    out: ReportFolder = Path("runs/certify"),
    tokens: Tokens = None,
    lora: Lora = None,
    head: Head = None,
    split: Split = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    batch: BatchSize = 32,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Certify a ViT: guarantees for every image that hold against any attacker, known or not yet.

    --patch: windows of tokens are dropped, and an answer that all pairs of windows agree on is certified;
    the backbone needs no training, and a model without classes gets a head first. --l2: randomised smoothing,
    of labels or of the embedding. Interrupted, the same command resumes where it stopped.
    """
    if (patch is None) == (l2 is None):
        raise typer.BadParameter("give --patch or --l2, one of them", param_hint="--patch")
    if l2 is not None:
        refuse_given(context, "is for --patch", "windows", "maps", "attack_steps")
    else:
        refuse_given(context, "is for --l2", "embedding", "sigma", "samples", "alpha")
    counts = window_counts(windows)
    if sigma is not None and not sigma > 0:
        raise InputError(f"--sigma must be above 0, got {sigma:g}")
    if not 0 < alpha < 1:
        raise InputError(f"--alpha must be a chance between 0 and 1, got {alpha:g}")
    for side in [] if patch is None else patch.split(","):
        check_patch(side, windows, model)
    if l2 is not None and not l2 > 0:
        raise InputError(f"--l2 must be a radius above 0, such as 0.5, got {l2:g}")
    check_model(model, arch, img_size=img_size, head=head, tokens=tokens, lora=lora)
    check_data(data, split)
    check_out(out)
    from robvit.certification.certify import certify as run
    from robvit.loading import load
    from robvit.progress import progress
    from robvit.report.html import write_report

    net = load(model, img_size=img_size, arch=arch, tokens=tokens, lora=lora, head=head)
    tell_device()
    with progress(f"certifying {model}", total=1) as advance:
        record = run(
            net,
            data,
            patch=None if patch is None else patch_sides(patch, net.input_size),
            windows=counts,
            maps=maps,
            attack_steps=attack_steps,
            l2=l2,
            embedding=embedding,
            sigma=sigma,
            samples=samples,
            alpha=alpha,
            out=out,
            split=split,
            resize=resize,
            limit=limit,
            batch=batch,
            seed=seed,
            progress=advance,
            command=typed(),
        )
    write_report(record, out / "report.html", images=[out / "places.png"] if maps else [])
    _show(record)
    typer.echo(f"\nwritten: {out}/record.json\nopen:    {out}/report.html")
    if patch is not None:
        largest = max(patch_sides(patch, net.input_size))
        learn = command_line("train", "head", model, data, patch=largest, windows=windows, img_size=img_size)
        typer.echo(f"next: {learn}\n      unless your head has seen dropped tokens: that certifies more")


def _show(record: Record) -> None:
    """The table of accuracies, the other figures, and what was certified, in words."""
    if record.trials:
        typer.echo("\n" + record.table() + "\n")
    for table in record.tables:
        show_table(table)
    if not record.tables:
        for name, value in record.metrics.items():
            typer.echo(f"  {name}: {value:.3f}")
    for note in record.notes:
        typer.echo(f"- {note}")
