"""`robvit robustify --method lora | full`: label-free adversarial fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robvit.cli.options import choice
from robvit.cli.shell import tell_device, tell_next, typed

if TYPE_CHECKING:
    from robvit.hardening import Hardening

PANEL = "Fine-tuning (lora, full)"

Rank = Annotated[int | None, typer.Option(min=1, help="Rank of the factors; 16.", rich_help_panel=PANEL)]
GoOn = Annotated[
    Path | None,
    typer.Option("--lora", help="Factors of an earlier tuning to go on from.", rich_help_panel=PANEL),
]
Extra = Annotated[
    str | None,
    typer.Option(
        help="More images, for a share of each batch (--set extra_share=0.5).", rich_help_panel=PANEL
    ),
]
Minutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="In place of --steps: for how long, by a probe.", rich_help_panel=PANEL),
]
TuningLoss = Annotated[
    str | None,
    typer.Option(
        "--loss",
        **choice("features", "task", "trades"),
        help="features: no labels. task, trades: the loss of --head or the model's classifier, or TRADES.",
        rich_help_panel=PANEL,
    ),
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any other setting: blocks=4, clean_weight=0.5, clean_cosine=0.97, distance=cosine, step=0.75, "
        "keep=0.5, hide=14, norms=true, class_weight=null (0.5 where there is a class token), "
        "judge_steps=20, add_steps=false, or a recipe's key such as ema=0.99.",
        rich_help_panel=PANEL,
    ),
]


def tune(
    model: str,
    data: str,
    out: Path,
    *,
    options: dict[str, Any],
    setting: list[str],
    minutes: float | None,
    **place: Any,
) -> None:
    """Tune, write the result and its record to `out`, and say what there is now."""
    from robvit.hardening import robustify
    from robvit.processes import processes
    from robvit.progress import progress
    from robvit.training.tuning import Tuning

    tuning = Tuning.of(options, setting)
    tell_device()
    with progress(f"robustify {model}", total=1) as advance:
        result = robustify(
            model,
            data,
            method=options["method"],
            out=out,
            tuning=tuning,
            minutes=minutes,
            log=typer.echo,
            progress=advance,
            command=typed(),
            **place,
        )
    if processes().is_main_process:
        _tell(result, model, place["img_size"], place["arch"])


def _tell(result: Hardening, model: str, img_size: int | None, arch: str | None) -> None:
    """Say what there is now."""
    for name, value in result.record.metrics.items():
        typer.echo(f"  {name}: {value:.3f}")
    for finding in result.record.findings:
        typer.echo(f"{'warning' if finding.status == 'red' else finding.check}: {finding.evidence}")
    typer.echo(f"written: {result.file} (no secret: it is meant for attackers who have it), record.json")
    judged = {"head": "HEAD", "protocol": "linf-1-white-box@1", "img_size": img_size}
    if result.lora is not None:
        tell_next("evaluate", model, "DATA", lora=result.file, **judged, arch=arch)
    else:
        tell_next("evaluate", result.file, "DATA", **judged)
