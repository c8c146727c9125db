"""`robvit attack`: adversarial images from a dataset, a record of what they did, and a sheet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robvit.cli.attack_checks import check_attack, check_compiler, check_target, check_task
from robvit.cli.checks import check_classifier, check_data, check_model, check_out, parse_normalise
from robvit.cli.options import (
    Adapters,
    Architecture,
    AttackSettings,
    BatchSize,
    Compiler,
    DataSpec,
    Device,
    Eps,
    Head,
    ImageSize,
    Limit,
    Lora,
    ModelName,
    Normalise,
    NormOrPatch,
    Precision,
    Resize,
    Seed,
    Split,
    Threads,
    Tokens,
)
from robvit.cli.shell import tell_device, tell_next, typed
from robvit.cli.tables import console, show_table
from robvit.names import facts
from robvit.plugins import offered
from robvit.settings import parse_settings

if TYPE_CHECKING:
    from robvit.record import Record


def attack(
    model: ModelName,
    data: DataSpec = "sample",
    attack: Annotated[str, typer.Option(help="One of the attacks of `robvit attacks`.")] = "pgd",
    norm: NormOrPatch = "linf",
    eps: Eps = "8/255",
    setting: AttackSettings = None,
    out: Annotated[Path, typer.Option(help="Folder for images, record and sheet.")] = Path("runs/attack"),
    surrogate: Annotated[
        str | None,
        typer.Option(help="Make the images on this model; MODEL judges them (transfer)."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Aim at a class: random, least-likely or most-likely (wrong ones), or its name or number."
        ),
    ] = None,
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
    compiler: Compiler = None,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Attack images of a dataset and write images that still fool the model when read back.

    64 images are taken unless --limit says otherwise; a line tells how many there are.
    Images with masks take a segmentation head and `--attack segpgd`; they are judged by mean IoU.
    Interrupted, the same command resumes where it stopped. Under `accelerate launch` several processes
    share the work; the result is the same.
    """
    check_attack(attack, norm, eps, setting)
    check_model(
        model, arch, img_size=img_size, programs=True, head=head, tokens=tokens, lora=lora, adapters=adapters
    )
    check_model(surrogate)
    check_data(data, split)
    check_task(attack, setting, data)
    check_classifier(model, data, head, adapters)
    if surrogate != model:
        check_classifier(surrogate, data)
    check_target(target, attack, model, data, own=head is not None or adapters is not None)
    check_compiler(compiler)
    statistics = parse_normalise(normalise)
    check_out(out)
    from robvit.attacks import ATTACKS
    from robvit.evaluation.attack import attack as attack_data
    from robvit.evaluation.classifiers import open_classifier
    from robvit.processes import processes
    from robvit.progress import progress, silent
    from robvit.threat import Threat

    own: dict[str, Any] = {"arch": arch, "head": head}
    defence: dict[str, Any] = {"tokens": tokens, "lora": lora, "adapters": adapters}
    judged = open_classifier(model, img_size=img_size, normalise=statistics, **own, **defence)
    source = None
    if surrogate:  # MODEL without its defence, or another model, which has classes of its own
        source = open_classifier(surrogate, img_size=img_size, **(own if surrogate == model else {}))
    tell_device()
    main = processes().is_main_process
    with progress(f"{attack} on {surrogate or model}", total=1) as advance:
        record = attack_data(
            judged,
            data,
            attack=attack,
            threat=Threat.parse(norm, eps),
            settings=parse_settings(setting or [], ATTACKS.info(attack).defaults, attack),
            surrogate=source,
            target=target,
            out=out,
            split=split,
            resize=resize,
            limit=limit,
            batch=batch,
            precision=precision,
            compiler=compiler,
            seed=seed,
            log=typer.echo if main else silent,
            progress=advance,
            command=typed(),
        )
    if main:
        _tell(record, out)


def _tell(record: Record, out: Path) -> None:
    """What came of it and where it is."""
    import robvit.attacks as library

    if record.trials:
        typer.echo(record.table())
    for name, value in record.metrics.items():
        typer.echo(f"{name}: {value:.1%}")
    for table in record.tables if record.trials else ():
        typer.echo()
        show_table(table)
    for name in {name for trial in record.trials for name in trial.warnings}:
        typer.echo(f"warning: {name}: {getattr(library, name).__doc__}")
    for note in record.notes:
        typer.echo(f"- {note}")
    typer.echo(f"written: {out}/images (PNG), {out}/sheet.png, {out}/record.json")
    tell_next("report", out)


def attacks() -> None:
    """List the attacks, the norms they work in, and their settings."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("attack", "norms", "paper", "settings"):
        table.add_column(column, no_wrap=column != "settings")
    for name, about in facts("attack").items():
        settings = ", ".join(f"{k}={v}" for k, v in about["defaults"].items() if not isinstance(v, list))
        table.add_row(name, " ".join(about["norms"]), about["paper"], settings)
    for name in offered("attack"):
        table.add_row(name, "", "", "of an installed package")
    console().print(table)
    typer.echo("\nnext: robvit attack robvit-mini-robust sample --attack apgd_ce --set steps=20")
