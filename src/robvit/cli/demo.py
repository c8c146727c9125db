"""`robvit demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    model: Annotated[str, typer.Option(help="Any model of `robvit models`.")] = "dinov2-small",
    out: Annotated[Path, typer.Option(help="Folder for the record and the sheet.")] = Path("runs/demo"),
    img_size: Annotated[int | None, typer.Option(help="Side of the pictures in pixels.")] = 112,
    eps: Annotated[str, typer.Option(help="Budget of the attack in pixels.")] = "3/255",
    learn: Annotated[int, typer.Option(min=20, help="Pictures to train the head on.")] = 512,
    judge: Annotated[int, typer.Option(min=1, help="Pictures to attack.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the attack.")] = 10,
) -> None:
    """Attack a real frozen backbone on bundled pictures and show what happens, in a few minutes."""
    from robvit.demo import Scale, demo
    from robvit.threat import Threat

    size = None if model.startswith("robvit-mini") else img_size
    scale = Scale(learn, judge, steps)
    record = demo(model, out, img_size=size, threat=Threat.parse("linf", eps), scale=scale, say=typer.echo)
    typer.echo(f"\n{record.table()}")
    for name, value in record.figures.items():
        typer.echo(f"{name}: {value:.2f}")
    typer.echo(
        "\nThis shows the open problem: the backbone alone. Hardening it with robustness tokens is not part\n"
        "of the demo yet."
    )
    typer.echo(f"written: {out}/record.json, {out}/sheet.png")
    typer.echo("next: robvit attack robvit-mini-robust sample --eps 8/255")
