"""`robvit demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.backbones import download, zoo
from robvit.cli.attack_checks import check_threat
from robvit.cli.checks import check_model, check_out
from robvit.cli.options import Device, Threads
from robvit.cli.shell import command_line
from robvit.cli.tables import show_table


def demo(
    model: Annotated[
        str, typer.Option(help="Any model of `robvit models` that takes tokens.")
    ] = "dinov2-small",
    out: Annotated[Path, typer.Option(help="Folder for tokens, record, sheet and report.")] = Path(
        "runs/demo"
    ),
    img_size: Annotated[
        int | None, typer.Option(help="Side of the images; the mini models have theirs.")
    ] = 112,
    eps: Annotated[str, typer.Option(help="Budget of the attacks in pixels (L-inf).")] = "2/255",
    head: Annotated[int, typer.Option(min=20, help="Labelled images for the linear head.")] = 512,
    learn: Annotated[int, typer.Option(min=16, help="Images to learn tokens from, without labels.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of the tokens.")] = 44,
    judge: Annotated[int, typer.Option(min=1, help="Images to attack.")] = 40,
    attack_steps: Annotated[int, typer.Option(min=1, help="Steps of the judging attack.")] = 10,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """A real frozen backbone on bundled images: no defence, secret tokens, tuned weights, and two attackers.

    Under five minutes on two cores; interrupted, the same command resumes.
    """
    check_threat("linf", eps, usable=True)
    check_model(model)
    check_out(out)
    _announce(model, out)
    from robvit.demo import Scale, demo
    from robvit.locks import alone_in
    from robvit.threat import Threat

    size = None if model.startswith("robvit-mini") else img_size
    scale = Scale(head, learn, steps, judge, attack_steps)
    threat = Threat.parse("linf", eps)
    with alone_in(out):
        record = demo(model, out, img_size=size, threat=threat, scale=scale, log=typer.echo)
    typer.echo("")
    show_table(record.tables[0])
    typer.echo(f"{record.table()}\n")
    typer.echo(f"{'cosine with the original clean features':<42}{'clean':>7}{'attacked':>10}")
    for scenario in record.scenarios():
        clean, attacked = (record.metrics[f"cosine, {kind}, {scenario}"] for kind in ("clean", "pgd"))
        typer.echo(f"  {scenario:<40}{clean:>7.2f}{attacked:>10.2f}")
    typer.echo("")
    for note in record.notes:
        typer.echo(note)
    made = "tokens.safetensors (made with a seed: no secret)"
    typer.echo(f"\nwritten: {out}/report.html, record.json, sheet.png, {made}")
    own = command_line("robustify", model, "YOUR_IMAGES", img_size=size, out="runs/mine")
    typer.echo(f"next: open {out}/report.html; {command_line('app', demo=out)}; {own}")


def _announce(model: str, out: Path) -> None:
    """Say what will happen before anything slow begins, and what has to be downloaded for it."""
    typer.echo(
        f"the demo hardens {model}, attacks each defence with and without its secrets, and reports to {out}",
        err=True,
    )
    known = zoo.ALIASES.get(model)
    if known and (known.hub or known.registry) and not download.on_disk(known):
        megabytes = f"{known.params * 4:,.0f} MB"
        typer.echo(
            f"its weights, about {megabytes}, are not on this machine and are downloaded first", err=True
        )
    typer.echo("loading PyTorch ...", err=True)
