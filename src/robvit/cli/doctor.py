"""`robvit doctor`: can a robustness figure of this model be believed?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.cli.options import (
    Adapters,
    Architecture,
    BatchSize,
    DataSpec,
    Fit,
    Head,
    ImageSize,
    JudgedSplit,
    Limit,
    Seed,
    Tokens,
)

if TYPE_CHECKING:
    from robvit.record import Finding

COLOURS = {
    "red": typer.colors.RED,
    "amber": typer.colors.YELLOW,
    "green": typer.colors.GREEN,
    "skipped": typer.colors.BRIGHT_BLACK,
}
SHOWN = 4  # images named in a line


def doctor(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="An alias or timm name, a checkpoint's path, torchvision:NAME, or module:function, which is "
            "imported and called.",
        ),
    ],
    data: DataSpec = "sample",
    norm: Annotated[str, typer.Option(help="linf, l2 or l1.")] = "linf",
    eps: Annotated[str, typer.Option(help="The budget in pixels, such as 8/255 or 0.5.")] = "8/255",
    out: Annotated[Path, typer.Option(help="Folder for record and report.")] = Path("runs/doctor"),
    check: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.")] = None,
    surrogate: Annotated[
        str | None,
        typer.Option(help="A model to transfer from; bundled ones that fit if left out."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Judge a randomised model by its mean over so many passes.")
    ] = 1,
    steps: Annotated[int, typer.Option(help="Gradient steps of an attack.")] = 20,
    restarts: Annotated[int, typer.Option(help="Random starts in the check of restarts.")] = 4,
    queries: Annotated[int, typer.Option(help="Queries of the black box.")] = 300,
    draws: Annotated[int, typer.Option(help="Noisy versions of each image.")] = 100,
    head: Head = None,
    tokens: Tokens = None,
    adapters: Adapters = None,
    split: JudgedSplit = None,
    img_size: ImageSize = None,
    fit: Fit = "squash",
    arch: Architecture = None,
    limit: Limit = 64,
    batch: BatchSize = 32,
    seed: Seed = 0,
) -> None:
    """Look for signs that a model only seems robust: masked gradients, blind attacks, undisclosed randomness.

    Every check is red, amber, green or skipped, worst first, with its evidence, the violating images and a
    remedy. The exit code is 1 if any is red, so that it can run in CI.
    """
    from robvit.data import open_data
    from robvit.diagnosis.doctor import doctor as examine
    from robvit.evaluation.classifiers import open_classifier
    from robvit.processes import processes
    from robvit.progress import progress
    from robvit.report.html import write_report
    from robvit.threat import Threat

    judged = open_classifier(model, arch=arch, img_size=img_size, head=head, tokens=tokens, adapters=adapters)
    other = open_classifier(surrogate, img_size=img_size) if surrogate else None
    images = open_data(data, split=split, size=judged.size, resize=fit, limit=limit)
    for classifier in filter(None, (judged, other)):
        classifier.net.to(processes().device)
    with progress(f"doctor: {model}", total=1) as advance:
        record = examine(
            judged,
            images,
            threat=Threat.parse(norm, eps),
            surrogate=other,
            out=out,
            checks=check,
            steps=steps,
            restarts=restarts,
            queries=queries,
            draws=draws,
            samples=samples,
            seed=seed,
            batch=batch,
            command=" ".join(["robvit", *sys.argv[1:]]),
            progress=advance,
        )
    write_report(record, out / "report.html")
    for finding in record.findings:
        _show(finding)
    statuses = [finding.status for finding in record.findings]
    typer.echo("\nchecks: " + ", ".join(f"{statuses.count(status)} {status}" for status in COLOURS))
    typer.echo(", ".join(f"{name} {value:.1%}" for name, value in record.metrics.items()))
    for note in record.notes:
        typer.echo(note)
    typer.echo(f"written: {out}/record.json, {out}/report.html")
    if "red" in statuses:
        raise typer.Exit(1)
    typer.echo(f"next: robvit evaluate {model} {data}")


def _show(finding: Finding) -> None:
    status = typer.style(f"{finding.status:<9}", fg=COLOURS[finding.status])
    typer.echo(f"{status}{finding.title} ({finding.check})")
    typer.echo(f"{'':<9}{finding.evidence}")
    if finding.images:
        more = len(finding.images) - SHOWN
        rest = f" and {more} more in the record" if more > 0 else ""
        typer.echo(f"{'':<9}images: {', '.join(finding.images[:SHOWN])}{rest}")
    if finding.remedy:
        typer.echo(f"{'':<9}remedy: {finding.remedy}")
