"""`robvit challenge`: a test-time defence against attackers who know it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.attack_checks import check_threat
from robvit.cli.checks import check_classifier, check_data, check_model, check_out
from robvit.cli.options import (
    Architecture,
    BatchSize,
    DataSpec,
    Device,
    Eps,
    Head,
    ImageSize,
    Limit,
    Lora,
    Norm,
    OwnModel,
    Resize,
    Seed,
    Split,
    Threads,
)
from robvit.cli.shell import tell_device, typed
from robvit.cli.tables import show_table
from robvit.plugins import check_there, is_spec


def challenge(
    model: OwnModel,
    data: DataSpec = "sample",
    defence: Annotated[
        str,
        typer.Option(
            help="module:function from the model to a defended one; the module is imported, so trust it."
        ),
    ] = "",
    norm: Norm = "linf",
    eps: Eps = "8/255",
    steps: Annotated[int, typer.Option(min=1, help="Gradient steps of an attack.")] = 40,
    samples: Annotated[
        int, typer.Option(min=1, help="Draws over which a randomised defence is averaged.")
    ] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Of who sees answers only.")] = 300,
    out: Annotated[Path, typer.Option(help="Folder for record and report.")] = Path("runs/challenge"),
    head: Head = None,
    lora: Lora = None,
    split: Split = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = 64,
    batch: BatchSize = 32,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Attack a test-time defence as someone would who knows it: randomness, purification, optimisation.

    The doctor looks for what the defence hides; then images are made on the model without it (transfer), by
    gradients through it, averaged over its draws (EOT), with the model's gradient in place of its own (BPDA),
    at the image or where the defence moves it, and from answers only. What all of them leave is the figure to
    quote.
    """
    if not is_spec(defence):
        raise typer.BadParameter(f"give module:function, got {defence!r}", param_hint="--defence")
    check_there(defence)
    check_threat(norm, eps, usable=True)
    check_model(model, arch, img_size=img_size, head=head, lora=lora)
    check_data(data, split)
    check_classifier(model, data, head)
    check_out(out)
    from robvit.challenging.challenge import challenge as run
    from robvit.evaluation.classifiers import open_classifier
    from robvit.progress import progress
    from robvit.report.html import write_report
    from robvit.threat import Threat

    plain = open_classifier(model, arch=arch, img_size=img_size, head=head, lora=lora)
    tell_device()
    with progress(f"challenging {defence}", total=1) as advance:
        record = run(
            plain,
            data,
            defence,
            threat=Threat.parse(norm, eps),
            steps=steps,
            samples=samples,
            queries=queries,
            out=out,
            split=split,
            resize=resize,
            limit=limit,
            batch=batch,
            seed=seed,
            progress=advance,
            command=typed(),
        )
    write_report(record, out / "report.html")
    show_table(record.tables[0])
    for finding in record.findings:
        if finding.status == "red":
            typer.echo(f"red: {finding.title or finding.check}: {finding.evidence}")
    for note in record.notes:
        typer.echo(note)
    typer.echo(f"\nwritten: {out}/record.json\nopen:    {out}/report.html")
