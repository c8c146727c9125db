"""`robvit attack`: adversarial pictures from a data set, a record of what they did, and a sheet."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from robvit.cli.options import (
    Architecture,
    BatchSize,
    DataSpec,
    Fit,
    ImageSize,
    Limit,
    ModelName,
    parse_settings,
)

if TYPE_CHECKING:
    from robvit.backbones.model import Model
    from robvit.data import PictureSet
    from robvit.evaluate.crafting import Job

SHOWN = 8  # panels on the sheet


def attack(
    model: ModelName,
    data: DataSpec = "sample",
    attack: Annotated[str, typer.Option(help="One of the attacks of `robvit attacks`.")] = "pgd",
    norm: Annotated[str, typer.Option(help="linf, l2 or l1.")] = "linf",
    eps: Annotated[str, typer.Option(help="The budget in pixels, such as 8/255 or 0.5.")] = "8/255",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the attack, such as --set steps=20.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for pictures, record and sheet.")] = Path("runs/attack"),
    victim: Annotated[
        str | None, typer.Option(help="Craft on MODEL, but judge on this model (transfer).")
    ] = None,
    head: Annotated[Path | None, typer.Option(help="A head from `robvit train head`.")] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Tokens that harden the judged model: MODEL's, or the victim's.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="The part of the data; its judging part if left out.")
    ] = None,
    img_size: ImageSize = None,
    fit: Fit = "squash",
    arch: Architecture = None,
    limit: Limit = 64,
    batch: BatchSize = 32,
    precision: Annotated[
        str, typer.Option(help="fp32, or bf16 or fp16 for a faster search whose successes fp32 confirms.")
    ] = "fp32",
    seed: Annotated[int, typer.Option(help="Decides every random draw.")] = 0,
) -> None:
    """Attack every picture of a data set and write pictures that still fool the model when read back.

    Interrupted, the same command goes on where it stopped. Under `accelerate launch` several processes
    share the work; the result is the same.
    """
    from robvit.data import open_data
    from robvit.evaluate.crafting import Job, craft
    from robvit.loading import load
    from robvit.progress import progress
    from robvit.threat import Threat

    own: dict[str, Any] = {"head": head, "img_size": img_size, "arch": arch}
    crafted_on = load(model, **own, tokens=None if victim else tokens)
    judged = load(victim, **{**own, "arch": None}, tokens=tokens) if victim else None
    pictures = open_data(data, split=split, size=crafted_on.input_size[0], how=fit, limit=limit)
    for classifier in filter(None, (crafted_on, judged)):
        _check_classes(classifier, pictures)
    identity = "+".join(m.identity() for m in (crafted_on, judged) if m is not None)
    settings = _settings(attack, setting or [], seed)
    job = Job(
        attack, Threat.parse(norm, eps), settings, crafted_on, identity, pictures, judged, batch, precision
    )
    with progress(f"{attack} on {model}", total=len(pictures)) as advance:
        trial = craft(job, out / "shards", advance)
    _finish(job, trial, out, victim or model, data)


def _check_classes(classifier: Model, pictures: PictureSet) -> None:
    """Refuse a model that has no classifier, or one for other classes than the pictures'."""
    from robvit.errors import InputError

    if classifier.classes == 0:
        raise InputError(
            f"{classifier.name} has no classifier; `robvit train head` makes one, then give --head"
        )
    if pictures.classes and classifier.classes != len(pictures.classes):
        raise InputError(
            f"{classifier.name} tells {classifier.classes} classes apart, the pictures have "
            f"{len(pictures.classes)}; choose other pictures, or train a head on them"
        )


def _settings(attack: str, given: list[str], seed: int) -> dict[str, Any]:
    from robvit.attacks import ATTACKS

    known = ATTACKS.entry(attack).facts["defaults"]
    return ({"seed": seed} if "seed" in known else {}) | parse_settings(given, known, attack)


def _finish(job: Job, trial: Any, out: Path, judged: str, data: str) -> None:
    """Write pictures, sheet and record; only the first of several processes does."""
    from accelerate import PartialState

    import robvit.attacks as library
    from robvit.evaluate.crafting import clean_trial
    from robvit.evaluate.record import Record

    if not PartialState().is_main_process:
        return
    _write_pictures(job, out)
    record = Record(
        kind="attack",
        model={"judged": judged, "crafted on": str(getattr(job.model, "name", "")), "identity": job.identity},
        data={"spec": data, "digest": job.pictures.digest(), "count": len(job.pictures),
              "names": job.pictures.names, "labels": job.pictures.labels},
        trials=[clean_trial(job), trial],
        command=" ".join(["robvit", *sys.argv[1:]]),
    )  # fmt: skip
    record.save(out / "record.json")
    typer.echo(record.table())
    for name in trial.warnings:
        typer.echo(f"warning: {name}: {getattr(library, name).__doc__}")
    typer.echo(f"written: {out}/pictures (PNG), {out}/sheet.png, {out}/record.json")


def _write_pictures(job: Job, out: Path) -> None:
    from PIL import Image

    from robvit.evaluate.crafting import levels, shards
    from robvit.files import written_whole
    from robvit.report.panels import Panel, attack_sheet

    panels: list[Panel] = []
    names = job.pictures.classes
    for some, shard in zip(job.batches(), shards(out / "shards", len(job.batches())), strict=True):
        for place, pixels in enumerate(shard.adv.permute(0, 2, 3, 1).numpy()):
            path = (out / "pictures" / some.names[place]).with_suffix(".png")
            with written_whole(path) as aside:
                Image.fromarray(pixels).save(aside, format="PNG")
            if len(panels) < SHOWN:
                x, y = some[place]
                clean = levels(x).permute(1, 2, 0).numpy()
                after = names[shard.facts["predicted"][place]]
                panels.append(Panel(clean, pixels, names[int(y)], after, shard.facts["right"][place]))
    attack_sheet(panels, out / "sheet.png", title=f"{job.attack} within {job.threat}")


def attacks() -> None:
    """List the attacks, the norms they work in, and their settings."""
    from rich.console import Console
    from rich.table import Table

    from robvit.attacks import ATTACKS

    table = Table(box=None, pad_edge=False)
    for column in ("attack", "norms", "paper", "settings"):
        table.add_column(column, no_wrap=column != "settings")
    for entry in ATTACKS:
        settings = ", ".join(f"{k}={v}" for k, v in entry.facts["defaults"].items() if _plain(v))
        table.add_row(entry.name, " ".join(entry.facts["norms"]), entry.facts["paper"], settings)
    Console().print(table)
    typer.echo("\nnext: robvit attack robvit-mini-robust sample --attack apgd_ce --set steps=20")


def _plain(value: object) -> bool:
    """Whether a setting can be given as text."""
    return value is None or isinstance(value, bool | int | float | str)
