"""`robvit curve`: accuracy under attack against eps, from the smallest eps at which each image falls."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from robvit.cli.attack_checks import check_attack, check_threat
from robvit.cli.checks import check_classifier, check_data, check_model, check_out
from robvit.cli.options import (
    Adapters,
    Architecture,
    BatchSize,
    DataSpec,
    Device,
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
    Tokens,
)
from robvit.cli.shell import tell_next, typed
from robvit.cli.tables import show_table
from robvit.errors import InputError
from robvit.names import facts
from robvit.settings import parse_settings


def curve(
    model: OwnModel,
    data: DataSpec = "sample",
    norm: Norm = "linf",
    eps: Annotated[
        str | None,
        typer.Option(help="Budgets in pixels, such as 1/255,2/255,4/255; a usual list if left out."),
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="An attack for the smallest perturbation: pgd_min, fab, fab_t or cw_l2; of several an image "
            "falls to the best. If left out pgd_min, in L1 fab.",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the attacks, such as --set steps=40; repeatable.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for record, report and chart.")] = Path("runs/curve"),
    head: Head = None,
    tokens: Tokens = None,
    lora: Lora = None,
    adapters: Adapters = None,
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
    """Draw accuracy under attack against eps, and tell at which eps each image falls.

    Every image is attacked once for the smallest perturbation, by bisection from the nearest success so
    far; it falls at that size and at every larger eps. 64 images are taken unless --limit says otherwise; a
    line tells how many there are. Interrupted, the same command resumes.
    """
    names = attack or ["fab" if norm == "l1" else "pgd_min"]
    budgets = None if eps is None else [part.strip() for part in eps.split(",")]
    for name in names:
        _check_minimum(name, norm)
        check_attack(name, norm, "inf", _of(name, setting, names))
    for budget in budgets or []:
        check_threat(norm, budget)
    check_model(model, arch, img_size=img_size, head=head, tokens=tokens, lora=lora, adapters=adapters)
    check_data(data, split)
    check_classifier(model, data, head, adapters)
    check_out(out)
    from robvit.attacks import ATTACKS
    from robvit.evaluation.classifiers import open_classifier
    from robvit.evaluation.curve import curve as draw
    from robvit.processes import processes
    from robvit.progress import progress, silent
    from robvit.report.html import write_report

    parts: dict[str, Any] = {"head": head, "tokens": tokens, "lora": lora, "adapters": adapters}
    judged = open_classifier(model, arch=arch, img_size=img_size, **parts)
    own = {
        name: parse_settings(_of(name, setting, names), ATTACKS.info(name).defaults, name) for name in names
    }
    main = processes().is_main_process
    with progress(f"curve of {model}", total=1) as advance:
        record = draw(
            judged,
            data,
            norm=norm,
            eps=budgets,
            attacks=names,
            settings=own,
            out=out,
            split=split,
            resize=resize,
            limit=limit,
            batch=batch,
            seed=seed,
            log=typer.echo if main else silent,
            progress=advance,
            command=typed(),
        )
    if main:
        write_report(record, out / "report.html")
        show_table(record.tables[0])
        for note in record.notes:
            typer.echo(f"- {note}")
        typer.echo(f"written: {out}/record.json, {out}/curve.png, {out}/smallest_eps.csv")
        typer.echo(f"open:    {out}/report.html")
        tell_next("compare", out, "OTHER-CURVE")


def _check_minimum(name: str, norm: str) -> None:
    """Refuse an attack that works within a budget given."""
    known = facts("attack")
    able = [one for one, about in known.items() if about["kind"] == "minimum" and norm in about["norms"]]
    if name in known and name not in able:
        raise InputError(
            f"a curve needs attacks for the smallest perturbation in {norm}: {', '.join(able)}; got {name}"
        )


def _of(name: str, settings: list[str] | None, names: list[str]) -> list[str]:
    """The settings that an attack has; of several attacks each takes its own."""
    known = facts("attack").get(name, {}).get("defaults")
    if known is None or len(names) == 1:
        return settings or []
    return [item for item in settings or [] if item.partition("=")[0] in known]
