"""`robvit train`: what learns from pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.options import (
    Architecture,
    BatchSize,
    DataSpec,
    Fit,
    Force,
    ImageSize,
    Limit,
    ModelName,
    free_place,
)

app = typer.Typer(no_args_is_help=True, help="Train a head on a frozen backbone.")


@app.callback()
def _group() -> None:
    """Keep `head` a command of its own, also while it is the only one."""


@app.command()
def head(
    model: ModelName,
    data: DataSpec,
    out: Annotated[Path, typer.Option(help="Where the head is written.")] = Path("head.safetensors"),
    kind: Annotated[str, typer.Option(help="linear, knn or segmentation.")] = "linear",
    split: Annotated[str, typer.Option(help="The part of the data set to learn from.")] = "train",
    test_split: Annotated[str | None, typer.Option(help="The part to judge on; its own if left out.")] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Learn from features hardened with these tokens.")
    ] = None,
    img_size: ImageSize = None,
    fit: Fit = "squash",
    arch: Architecture = None,
    limit: Limit = None,
    batch: BatchSize = 64,
    force: Force = False,
) -> None:
    """Train a head on a frozen backbone's features and tell how good it is on other pictures."""
    from robvit.backbones.heads import HEADS
    from robvit.data import open_data
    from robvit.evaluate.clean import clean_score
    from robvit.loading import load
    from robvit.progress import progress

    free_place(out, force)
    head_class = HEADS[kind]
    net = load(model, img_size=img_size, arch=arch, tokens=tokens)
    train = open_data(data, split=split, size=net.input_size[0], how=fit, limit=limit)
    test = open_data(data, split=test_split, size=net.input_size[0], how=fit, limit=limit)
    with progress("features", total=len(train)) as advance:
        trained = head_class.fit(
            net, train.batches(batch), len(train.classes), names=train.classes, report=advance
        )
    net.head = trained
    score = clean_score(net, test, batch=batch)
    trained.save(out)
    typer.echo(f"{kind} head on {model}: {score} on {len(test)} pictures it did not learn from ({data})")
    typer.echo(f"written: {out}")
    how = " --attack segmentation" if train.kind == "masks" else ""
    typer.echo(f"next: robvit attack {model} {data} --head {out}{how}")
