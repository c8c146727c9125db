"""`robvit check`: a first look at a model in use."""

from __future__ import annotations

from pathlib import Path

import typer

from robvit.cli.checks import check_data, check_model, check_out
from robvit.cli.options import (
    Architecture,
    BatchSize,
    DataSpec,
    Device,
    Head,
    ImageSize,
    Limit,
    Lora,
    ModelName,
    Resize,
    ShardFolder,
    Split,
    Threads,
    Tokens,
)
from robvit.cli.shell import command_line, typed
from robvit.cli.tables import show_table


def check(
    model: ModelName,
    data: DataSpec = "sample",
    out: ShardFolder = Path("runs/check"),
    tokens: Tokens = None,
    lora: Lora = None,
    head: Head = None,
    split: Split = None,
    img_size: ImageSize = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    batch: BatchSize = 32,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Tell in a few minutes how vulnerable a model is, how fast, and which defences fit it."""
    check_model(model, arch, head=head, tokens=tokens, lora=lora)
    check_data(data, split)
    check_out(out)
    from robvit.checking import check as run
    from robvit.evaluation.classifiers import open_classifier
    from robvit.progress import progress

    classifier = open_classifier(model, arch=arch, img_size=img_size, tokens=tokens, lora=lora, head=head)
    with progress(f"checking {model}", total=1) as advance:
        record = run(
            classifier,
            data,
            out=out,
            split=split,
            resize=resize,
            limit=limit,
            batch=batch,
            log=typer.echo,
            progress=advance,
            command=typed(),
        )
    typer.echo("\n" + record.table() + "\n")
    typer.echo(f"an image takes {1000 * record.metrics['seconds an image']:.1f} ms\n")
    for table in record.tables:
        show_table(table)
    typer.echo(f"written: {out}/record.json")
    own = {"head": head, "tokens": tokens, "lora": lora, "img_size": img_size, "arch": arch}
    typer.echo(f"next: {command_line('review', model, data, **own)} for a verdict that may be quoted")
