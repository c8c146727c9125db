"""`robvit train tora`: adapters for accuracy and robustness on a frozen ViT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robvit.cli.options import Architecture, Fit, Limit

if TYPE_CHECKING:
    from robvit.training.tora import Plan

OWN = ("trade", "trades", "tuning", "knob", "fusion_epochs", "start")


def tora(
    recipe: Annotated[str, typer.Option(help="tora, tora-imagenet, or a YAML file of yours.")] = "tora",
    model: Annotated[
        str | None, typer.Option(help="A ViT with a class token; the recipe's own if left out.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A data set or a folder of images; the recipe's own if left out.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for adapters, phases and record.")] = Path("runs/tora"),
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="trade=0.5; trades=[0.1,0.5,0.9] for a model with a knob; knob=path or states; "
            "tuning=tora, adapterfusion, single or heads; fusion_epochs=2; start=mixed or fresh; "
            "or a key of the recipe, such as lr=1e-3 or inner.eps=4/255.",
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="The part of the data set to learn from.")] = "train",
    fit: Fit = "squash",
    arch: Architecture = None,
    limit: Limit = None,
) -> None:
    """Train TORA adapters: each adapter for its own objective, then the fusion for every trade-off.

    Interrupted, the same command goes on; another trade-off in the same folder takes phase 1 as it is.
    """
    from robvit.files import alone_in
    from robvit.progress import progress
    from robvit.report.html import write_report
    from robvit.training.tora import train_job
    from robvit.training.train import job_of

    plan = _plan(recipe, setting or [])
    job = job_of(plan.recipe, model, data, split=split, resize=fit, limit=limit, arch=arch)
    with alone_in(out), progress("train tora", total=plan.phases) as advance:
        record = train_job(job, plan, out, report=advance, say=_say)
    record.command = " ".join(["robvit", *sys.argv[1:]])
    record.save(out / "record.json")
    write_report(record, out / "report.html")
    for row in record.tables[0].rows:
        typer.echo(f"  trade-off {row[0]}: {row[1]:.1f} % clean, {row[2]:.1f} % under attack")
    typer.echo(f"on {record.data['count']} held-out training images; {record.tables[0].note}")
    typer.echo(f"written: {out}/adapters.safetensors, {out}/record.json, {out}/report.html")
    typer.echo(f"next: robvit attack {job.model} {job.data} --adapters {out}/adapters.safetensors")


def _plan(recipe: str, settings: list[str]) -> Plan:
    from robvit.training.recipe import changes_of, load_recipe
    from robvit.training.tora import Plan

    changes: dict[str, Any] = changes_of(settings)
    own = {name: changes.pop(name) for name in OWN if name in changes}
    if "trade" in own:
        own["trades"] = [own.pop("trade")]
    if "trades" in own:
        own["trades"] = tuple(float(value) for value in own["trades"])
        if len(own["trades"]) > 1 and own.get("tuning") not in ("heads", "single"):
            own.setdefault("knob", "path")  # measured better than "states" at equal cost (docs/tora.md)
    return Plan(load_recipe(recipe, **changes), **own)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
