"""`robvit review`: one command for a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_data, check_model, check_out, check_protocol
from robvit.cli.options import (
    Architecture,
    BatchSize,
    DataSpec,
    Device,
    Head,
    ImageSize,
    Limit,
    Lora,
    Resize,
    Split,
    Threads,
)
from robvit.cli.shell import typed


def review(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An alias or timm name, a checkpoint's path, torchvision:NAME, or module:function.",
        ),
    ],
    data: DataSpec = "sample",
    protocol: Annotated[
        str, typer.Option(help="A protocol (`robvit evaluate --list`), or a YAML file.")
    ] = "linf-4-audited@1",
    out: Annotated[Path, typer.Option(help="Folder for the verdict and both records.")] = Path("runs/review"),
    lora: Lora = None,
    head: Head = None,
    split: Split = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    batch: BatchSize = 32,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Judge a model, look for reasons not to believe the figure, and say what may be written of it.

    Writes review.md, report.html, junit.xml and review.sarif. The exit code is 1 if a finding is red.
    """
    check_protocol(protocol)
    check_model(model, arch, head=head, lora=lora)
    check_data(data)
    check_out(out)
    from robvit.evaluation.classifiers import open_classifier
    from robvit.progress import progress
    from robvit.reviewing import review as run

    given = any(value is not None for value in (arch, img_size, head, lora))
    subject = open_classifier(model, arch=arch, img_size=img_size, head=head, lora=lora) if given else model
    with progress(f"reviewing {model}", total=1) as advance:
        made = run(
            subject,
            data,
            protocol=protocol,
            out=out,
            split=split,
            resize=resize,
            limit=limit,
            batch=batch,
            log=typer.echo,
            progress=advance,
            command=typed(),
        )
    robust = made.evaluation.headline()
    typer.echo(
        f"\nrobust accuracy {robust.share:.1%} ({robust.low:.1%} to {robust.high:.1%}), {robust.threat}"
    )
    typer.echo(f"can it be believed? {made.believable}")
    for finding in made.reds:
        typer.echo(f"red: {finding.title or finding.check}: {finding.evidence}")
    typer.echo(f"\nyou may write:\n{made.to_paste()}")
    typer.echo(f"\nwritten: {out}/review.md, report.html, junit.xml, review.sarif")
    if made.reds:
        raise typer.Exit(1)
