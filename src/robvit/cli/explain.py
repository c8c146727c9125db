"""`robvit explain`: what a model sees in images, clean and attacked, as figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from robvit.cli.options import Adapters, Architecture, Fit, Head, ImageSize, ModelName, Seed, parse_settings
from robvit.explanation.figures import NAMES

if TYPE_CHECKING:
    from robvit.record import Record


def explain(
    model: ModelName,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE",
            help="Image files, or DATA:NUMBER for an image of a data set's test split, counted from 0, "
            "such as sample:3 or camvid:FOLDER:0.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for PNG files, record and report.")] = Path(
        "runs/explain"
    ),
    figure: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"Only this figure; may be repeated: {', '.join(NAMES)}."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Tokens: every figure also shows the hardened model.")
    ] = None,
    head: Head = None,
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
    norm: Annotated[str, typer.Option(help="linf, l2 or l1.")] = "linf",
    eps: Annotated[str, typer.Option(help="The budget in pixels, such as 8/255 or 0.5.")] = "8/255",
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the attack, such as --set steps=50.")
    ] = None,
    img_size: ImageSize = None,
    fit: Fit = "squash",
    arch: Architecture = None,
    seed: Seed = 0,
) -> None:
    """Draw what a model does with images, clean and attacked: attention, activations, features, gradients.

    Every figure is a PNG and stands in the report, where charts are read with the mouse and surfaces are
    turned. What needs tokens, adapters, a head or a second model is left out where there is none.
    """
    from robvit.attacks import ATTACKS
    from robvit.explanation.explain import explain as draw
    from robvit.explanation.subject import attack_for
    from robvit.loading import load
    from robvit.progress import progress
    from robvit.threat import Threat

    explained = load(model, head=head, adapters=adapters, arch=arch, img_size=img_size)
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
            resize=fit,
            seed=seed,
            out=out,
            command=" ".join(["robvit", *sys.argv[1:]]),
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
