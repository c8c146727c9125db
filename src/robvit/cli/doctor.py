"""`robvit doctor`: can a robustness figure of this model be believed?"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.cli.attack_checks import check_threat
from robvit.cli.checks import check_classifier, check_data, check_model, check_out, parse_normalise
from robvit.cli.options import (
    Adapters,
    Architecture,
    BatchSize,
    DataSpec,
    Device,
    Eps,
    Head,
    ImageSize,
    Limit,
    Lora,
    ModelName,
    Norm,
    Normalise,
    Precision,
    ReportFolder,
    Resize,
    Seed,
    Split,
    Threads,
    Tokens,
)
from robvit.cli.shell import tell_device, tell_next, typed
from robvit.names import check_name

if TYPE_CHECKING:
    from robvit.evaluation.classifiers import Classifier
    from robvit.record import Finding

COLOURS = {
    "red": typer.colors.RED,
    "amber": typer.colors.YELLOW,
    "green": typer.colors.GREEN,
    "skipped": typer.colors.BRIGHT_BLACK,
}
SHOWN = 4  # images named in a line


def doctor(
    model: ModelName,
    data: DataSpec = "sample",
    norm: Norm = "linf",
    eps: Eps = "8/255",
    out: ReportFolder = Path("runs/doctor"),
    check: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.")] = None,
    surrogate: Annotated[
        str | None,
        typer.Option(help="A model to transfer from, with --head if that fits; bundled ones if left out."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Judge a randomised model by its mean over so many passes.")
    ] = 1,
    steps: Annotated[int, typer.Option(min=4, help="Gradient steps of an attack.")] = 20,
    restarts: Annotated[int, typer.Option(min=2, help="Random starts in the check of restarts.")] = 4,
    queries: Annotated[int, typer.Option(min=1, help="Queries of the black box.")] = 300,
    draws: Annotated[int, typer.Option(min=1, help="Noisy versions of each image.")] = 100,
    head: Head = None,
    tokens: Tokens = None,
    lora: Lora = None,
    adapters: Adapters = None,
    split: Split = None,
    img_size: ImageSize = None,
    normalise: Normalise = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = 64,
    batch: BatchSize = 32,
    precision: Precision = "auto",
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Look for signs that a model only seems robust: masked gradients, blind attacks, undisclosed randomness.

    Every check is red, amber, green or skipped, worst first, with its evidence, the violating images and a
    remedy. The exit code is 1 if any is red, so that it can run in CI.
    """
    for name in check or []:
        check_name("check", name)
    check_threat(norm, eps, usable=True)
    check_model(
        model, arch, img_size=img_size, programs=True, head=head, tokens=tokens, lora=lora, adapters=adapters
    )
    check_model(surrogate)
    check_data(data, split)
    check_classifier(model, data, head, adapters)
    check_classifier(surrogate, data, head)
    statistics = parse_normalise(normalise)
    check_out(out)
    from robvit.diagnosis.doctor import doctor as examine
    from robvit.evaluation.classifiers import open_classifier
    from robvit.progress import progress
    from robvit.report.html import write_report
    from robvit.threat import Threat

    judged = open_classifier(
        model,
        arch=arch,
        img_size=img_size,
        normalise=statistics,
        head=head,
        tokens=tokens,
        lora=lora,
        adapters=adapters,
    )
    other = _surrogate(surrogate, img_size, head) if surrogate else None
    tell_device()
    with progress(f"doctor: {model}", total=1) as advance:
        record = examine(
            judged,
            data,
            threat=Threat.parse(norm, eps),
            surrogate=other,
            out=out,
            checks=check,
            steps=steps,
            restarts=restarts,
            queries=queries,
            draws=draws,
            samples=samples,
            split=split,
            resize=resize,
            limit=limit,
            seed=seed,
            batch=batch,
            precision=precision,
            log=typer.echo,
            command=typed(),
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
    own = {"head": head, "tokens": tokens, "lora": lora, "adapters": adapters}
    tell_next("evaluate", model, data, **own, img_size=img_size, arch=arch)


def _surrogate(name: str, img_size: int | None, head: Path | None) -> Classifier:
    """The model to transfer from, with the examined model's head where that was learned on its features."""
    from robvit.errors import InputError, WrongBackbone
    from robvit.evaluation.classifiers import open_classifier

    with suppress(InputError, WrongBackbone):
        return open_classifier(name, img_size=img_size, head=head)
    return open_classifier(name, img_size=img_size)


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
