"""`robvit review`: one command for a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import check_classifier, check_data, check_model, check_out, parse_normalise
from robvit.cli.options import (
    Architecture,
    BatchSize,
    DataSpec,
    Device,
    Head,
    ImageSize,
    Limit,
    Lora,
    ModelName,
    Normalise,
    Resize,
    Split,
    Threads,
    protocol_option,
)
from robvit.cli.recipe_checks import check_protocol
from robvit.cli.shell import typed


def review(
    model: ModelName,
    data: DataSpec = "sample",
    protocol: Annotated[
        str | None, protocol_option("linf-4-audited@1, or linf-4-black-box@1 for ONNX and TorchScript")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the verdict and both records.")] = Path("runs/review"),
    lora: Lora = None,
    head: Head = None,
    split: Split = None,
    img_size: ImageSize = None,
    normalise: Normalise = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    batch: BatchSize = 32,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Evaluate a model, look for reasons not to believe the figure, and say what may be written about it.

    Writes review.md, report.html, junit.xml and review.sarif, which hold no local paths. Of an ONNX or
    TorchScript file only answers are used, so no white-box claim can be made. The exit code is 1 if a finding
    is red.
    """
    if protocol is not None:
        check_protocol(protocol)
    check_model(model, arch, img_size=img_size, programs=True, head=head, lora=lora)
    check_data(data, split)
    check_classifier(model, data, head)
    statistics = parse_normalise(normalise)
    check_out(out)
    from robvit.evaluation.classifiers import open_classifier
    from robvit.progress import progress
    from robvit.reviewing import review as run

    classifier = open_classifier(
        model, arch=arch, img_size=img_size, normalise=statistics, head=head, lora=lora
    )
    with progress(f"reviewing {classifier.name}", total=1) as advance:
        made = run(
            classifier,
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
    robust = made.headline
    typer.echo(
        f"\nrobust accuracy {robust.share:.1%} (95 % interval {robust.low:.1%} to {robust.high:.1%}), "
        f"{robust.threat}"
    )
    typer.echo(f"can it be believed? {made.believable}")
    for finding in made.findings:
        if finding.status in ("red", "amber"):
            typer.echo(f"{finding.status}: {finding.title or finding.check}: {finding.evidence}")
            typer.echo(f"  remedy: {finding.remedy}")
    typer.echo(f"\nyou may write:\n{made.to_paste()}")
    typer.echo(f"\nwritten: {out}/report.html, review.md, junit.xml, review.sarif")
    if made.reds:
        raise typer.Exit(1)
