"""`robvit train`: what learns from images."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robvit.certification.windows import window_counts
from robvit.cli.checks import check_data, check_head, check_model, check_out, free_place
from robvit.cli.commands import Command, Group
from robvit.cli.given import refuse_given
from robvit.cli.options import (
    Architecture,
    BatchSize,
    DataSpec,
    Device,
    Force,
    ImageSize,
    Limit,
    Lora,
    OwnModel,
    Resize,
    Threads,
    Tokens,
    TrainingPrecision,
    TrainSplit,
)
from robvit.cli.recipe_checks import check_recipe
from robvit.cli.shell import tell_device, tell_next, typed
from robvit.errors import InputError

if TYPE_CHECKING:
    from robvit.record import Record
    from robvit.training.job import Job
    from robvit.training.recipe import Recipe


class _RecipeOrCommand(Group):
    """`robvit train NAME`: a command of that name, or else the recipe of that name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["recipe", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_RecipeOrCommand,
    no_args_is_help=True,
    help="Train a network by a recipe: `robvit train RECIPE --model MODEL --data DATA --out DIR` "
    "(`robvit train recipes` lists them, `robvit train RECIPE --help` has the options). "
    "The recipe tora trains adapters on a frozen backbone; or train a head on one.",
)


@app.command(cls=Command)
def recipes() -> None:
    """List the recipes: what each reproduces, how long it takes, what to expect."""
    from robvit.training.recipe import load_recipe, names

    for name in names():
        recipe = load_recipe(name)
        typer.echo(f"{name}\n  {recipe.about}\n  takes: {recipe.takes}\n  expect: {recipe.expects}")
    typer.echo("\nnext: robvit train mini --out runs/mini")


@app.command(hidden=True, cls=Command)
def recipe(
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a YAML file.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="An alias, a timm name, a checkpoint, or module:function; the recipe's own if left out."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A dataset or a folder of images; the recipe's own if left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the result; runs/RECIPE if left out.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another value for a key: --set lr=1e-3 --set inner.eps=4/255."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="A loss in place of the recipe's: a name, or module:function, which is imported."),
    ] = None,
    extra: Annotated[
        str | None, typer.Option(help="Synthetic images for a share of each batch (--set extra_share=0.5).")
    ] = None,
    split: TrainSplit = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    precision: TrainingPrecision = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done and what it would cost, and stop.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a network, or adapters on a frozen one, by a recipe.

    The best checkpoint is chosen on held-out training images. Interrupted or killed, the same command
    resumes where it stopped, to the same weights. Under `accelerate launch -m robvit train ...` several
    processes or GPUs share every batch.
    """
    options = {"loss": loss, "precision": precision}
    setting = [*(setting or []), *(f"{key}={value}" for key, value in options.items() if value is not None)]
    chosen = check_recipe(name, setting)
    _check_extra(chosen, extra)
    check_model(model, arch)
    check_data(data, split)
    check_data(extra)
    check_out(out)
    from robvit.training.job import job_of

    job = job_of(
        chosen,
        model,
        data,
        extra=extra,
        split=split or "train",
        resize=resize,
        limit=limit,
        arch=arch,
    )
    if dry_run:
        import yaml

        typer.echo(yaml.safe_dump(job.recipe.model_dump(mode="json"), sort_keys=False, width=110).rstrip())
        _forecast(job)
        return
    _train(job, name, out or Path("runs") / Path(name).stem)


def _check_extra(recipe: Recipe, extra: str | None) -> None:
    """Refuse extra images of which no batch takes any, and a share of them without images."""
    if extra is not None and recipe.adapters is not None:
        raise InputError("adapters learn from the data alone; leave --extra out")
    if (extra is None) != (recipe.extra_share == 0):
        got = f"got --extra {extra} and extra_share={recipe.extra_share:g}"
        raise InputError(f"--extra and --set extra_share=0.5, say, go together; {got}")


def _train(job: Job, name: str, out: Path) -> None:
    from robvit.processes import processes
    from robvit.progress import progress
    from robvit.report.html import write_report
    from robvit.training.train import run_job

    tell_device()
    try:
        _forecast(job)
    except RuntimeError as error:  # what counts operations may not follow a model that can be trained
        _log(f"no forecast: {error}")
    with progress(f"train {name}", total=1) as advance:
        record = run_job(job, out, log=_log, progress=advance, command=typed())
    if processes().is_main_process:
        write_report(record, out / "report.html")
        _tell(record, job, out)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _tell(record: Record, job: Job, out: Path) -> None:
    from robvit.data.opening import HELD_OUT, LEARN

    count, written = record.data["count"], f"{out}/record.json, {out}/report.html"
    if job.recipe.adapters is not None:
        place = f"{out}/{record.model['adapters']}"
        for row in record.tables[0].rows:
            typer.echo(f"  trade-off {row[0]}: {row[1]:.1f} % clean, {row[2]:.1f} % under attack")
        typer.echo(f"on {count} held-out training images; {record.tables[0].note}")
        typer.echo(f"written: {place}, {written}")
        size = job.recipe.img_size
        split = HELD_OUT if record.data.get("split") == LEARN else None
        named = {"img_size": size, "arch": job.arch, "split": split}
        tell_next("attack", job.model_name, job.data, adapters=place, **named)
        return
    typer.echo(f"on {count} held-out training images, on which the checkpoint was chosen:")
    for name, value in record.metrics.items():
        typer.echo(f"  {name}: {value:.1%}" if name.startswith("accuracy") else f"  {name}: {value:.3f}")
    for finding in record.findings:
        if finding.status == "red":
            typer.echo(f"warning: {finding.evidence}")
    typer.echo(f"written: {out}/model.safetensors, {written}")
    if record.trials:
        split = HELD_OUT if record.data.get("split") == LEARN else None
        tell_next("evaluate", f"{out}/model.safetensors", job.data, split=split)


def _forecast(job: Job) -> None:
    """Tell what the training will cost; every process takes part in finding out."""
    from robvit.processes import processes
    from robvit.training.forecast import forecast

    for name, value in forecast(job).items():
        if processes().is_main_process:
            typer.echo(f"{name}: {value}")


@app.command(cls=Command)
def head(
    context: typer.Context,
    model: OwnModel,
    data: DataSpec,
    out: Annotated[Path, typer.Option(help="Where the head is written.")] = Path("head.safetensors"),
    kind: Annotated[str, typer.Option(help="linear, knn or segmentation.")] = "linear",
    split: TrainSplit = None,
    test_split: Annotated[str | None, typer.Option(help="The part to judge on; its own if left out.")] = None,
    tokens: Tokens = None,
    lora: Lora = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    batch: BatchSize = 64,
    patch: Annotated[
        int | None,
        typer.Option(min=1, help="Teach a linear head dropped tokens, for `robvit certify --patch`; pixels."),
    ] = None,
    windows: Annotated[str, typer.Option(help="With --patch, windows along each side, or 1x7.")] = "3",
    draws: Annotated[int, typer.Option(min=1, help="With --patch, pairs of windows for an image.")] = 4,
    force: Force = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a head on a frozen backbone's features and tell how good it is on other images."""
    if patch is None:
        refuse_given(context, "goes with --patch", "windows", "draws")
    counts = window_counts(windows)
    if patch is not None and kind != "linear":
        raise typer.BadParameter(
            f"only a linear head learns dropped tokens, got {kind}", param_hint="--patch"
        )
    free_place(out, force)
    check_head(kind, data)
    check_model(model, arch, img_size=img_size, tokens=tokens, lora=lora)
    check_data(data, split)
    check_data(data, test_split)
    from robvit.certification.head import fit_dropped_head
    from robvit.loading import load
    from robvit.processes import processes
    from robvit.progress import progress
    from robvit.training.head import train_head

    fit = None
    if patch is not None:
        fit = partial(fit_dropped_head, patch=patch, windows=counts, draws=draws, batch=batch)
    net = load(model, img_size=img_size, arch=arch, tokens=tokens, lora=lora).to(processes().device)
    tell_device(net)
    with progress("features", total=1) as advance:
        trained = train_head(
            net,
            data,
            kind=kind,
            fit=fit,
            passes=1 if patch is None else draws + 1,
            out=out,
            split=split,
            test_split=test_split,
            resize=resize,
            limit=limit,
            batch=batch,
            progress=advance,
        )
    seen = f"of which it learned from {trained.learned}" if trained.learned else "it did not learn from"
    typer.echo(f"{kind} head on {model}: {trained.score} on {trained.judged} images {seen} ({data})")
    if trained.learned:
        typer.echo("warning: this is no test; choose another --test-split")
    if trained.split:
        typer.echo(f"{data} has no splits: a fixed fifth of it (--split {trained.split}) was kept apart")
    typer.echo(f"written: {out}")
    attack = "segpgd" if trained.kind == "masks" else None
    own = {"attack": attack, "head": out, "tokens": tokens, "lora": lora, "split": trained.split}
    tell_next("attack", model, data, **own, img_size=img_size, arch=arch)
