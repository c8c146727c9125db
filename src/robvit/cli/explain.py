"""`robvit explain`: what a model sees in images, clean and attacked, as figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.cli.attack_checks import check_attack, check_output
from robvit.cli.checks import check_figures, check_image, check_model, check_out
from robvit.cli.options import (
    Adapters,
    Architecture,
    AttackSettings,
    Device,
    Eps,
    Head,
    ImageSize,
    Lora,
    NormOrPatch,
    OwnModel,
    Resize,
    Seed,
    Threads,
)
from robvit.cli.shell import typed
from robvit.explanation.figures import NAMES
from robvit.settings import parse_settings

if TYPE_CHECKING:
    from robvit.record import Record


def explain(
    model: OwnModel,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE",
            help="Image files, or DATA:NUMBER for an image of a dataset's test split, counted from 0, "
            "such as sample:3 or camvid:FOLDER:0.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for PNG files, record and report.")] = Path(
        "runs/explain"
    ),
    figure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only this figure; repeatable. One of {', '.join(NAMES)}."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Tokens: every figure also shows the hardened model.")
    ] = None,
    head: Head = None,
    lora: Lora = None,
    adapters: Adapters = None,
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="A second model, a robust one say, beside the first where it helps."
        ),
    ] = None,
    attack: Annotated[
        str,
        typer.Option(
            help="An attack of `robvit attacks`; if left out pgd on classes, feature on a model without a "
            "head, segpgd on masks."
        ),
    ] = "",
    norm: NormOrPatch = "linf",
    eps: Eps = "8/255",
    setting: AttackSettings = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Draw what a model does with images, clean and attacked: attention, activations, features, gradients.

    Every figure is a PNG and stands in the report, where charts are read with the mouse and surfaces are
    turned. What needs tokens, adapters, a head or a second model is left out where there is none.
    """
    check_figures(figure)
    check_attack(attack or "pgd", norm, eps, setting if attack else None)
    check_model(model, arch, img_size=img_size, head=head, tokens=tokens, lora=lora, adapters=adapters)
    check_model(beside)
    check_output(attack, model, head)
    for image in images:
        check_image(image)
    check_out(out)
    from robvit.attacks import ATTACKS
    from robvit.explanation.explain import explain as draw
    from robvit.explanation.subject import attack_for
    from robvit.loading import load
    from robvit.progress import progress
    from robvit.threat import Threat

    explained = load(model, head=head, lora=lora, adapters=adapters, arch=arch, img_size=img_size)
    attack = attack or attack_for(explained)
    with progress(f"explaining {model}", total=len(figure or NAMES)) as advance:
        record = draw(
            explained,
            images,
            figures=figure,
            threat=Threat.parse(norm, eps),
            attack=attack,
            settings=parse_settings(setting or [], ATTACKS.info(attack).defaults, attack),
            tokens=tokens,
            beside=beside,
            resize=resize,
            seed=seed,
            out=out,
            command=typed(),
            progress=advance,
        )
    _tell(record, out)


def _tell(record: Record, out: Path) -> None:
    """What was drawn, what was not and why, and where it is."""
    for name in record.protocol["figures"]:
        typer.echo(f"drawn: {out / name}.png")
    for name, why in record.protocol["not drawn"].items():
        typer.echo(f"not drawn: {name}: {why}")
    typer.echo(f"written: {out}/report.html, {out}/record.json")
    typer.echo(f"next: open {out}/report.html")
