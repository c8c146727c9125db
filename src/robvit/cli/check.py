"""`robvit check`: a first look at a model in use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from robvit.cli.checks import check_classifier, check_data, check_model, check_out, parse_normalise
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
    Normalise,
    Resize,
    ShardFolder,
    Split,
    Threads,
    Tokens,
)
from robvit.cli.shell import command_line, options_of, tell_next, typed
from robvit.cli.tables import show_table

if TYPE_CHECKING:
    from robvit.record import Table


def check(
    model: ModelName,
    data: DataSpec = "sample",
    out: ShardFolder = Path("runs/check"),
    tokens: Tokens = None,
    lora: Lora = None,
    head: Head = None,
    split: Split = None,
    img_size: ImageSize = None,
    normalise: Normalise = None,
    resize: Resize = None,
    arch: Architecture = None,
    limit: Limit = None,
    batch: BatchSize = 32,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Tell in a few minutes how vulnerable a model is, how fast, which defences fit it and what they buy.

    Of an ONNX or TorchScript file only answers are used.
    """
    check_model(model, arch, img_size=img_size, programs=True, head=head, tokens=tokens, lora=lora)
    check_data(data, split)
    check_classifier(model, data, head)
    statistics = parse_normalise(normalise)
    check_out(out)
    from robvit.checking import check as run
    from robvit.evaluation.classifiers import open_classifier
    from robvit.progress import progress

    classifier = open_classifier(
        model, arch=arch, img_size=img_size, normalise=statistics, tokens=tokens, lora=lora, head=head
    )
    own = {"head": head, "img_size": img_size, "arch": arch}
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
            name=model,
            options=options_of(**own),
        )
    typer.echo(f"\n{record.notes[0]}\n\n{record.table()}\n")
    for note in record.notes[1:]:
        typer.echo(f"- {note}")
    typer.echo(f"\nLatency: {1000 * record.metrics['seconds an image']:.1f} ms an image\n")
    _tell_defences(*record.tables)
    typer.echo(f"\nwritten: {out}/record.json")
    own |= {"lora": lora, "split": split, "normalise": normalise, "resize": resize}
    if tokens is not None:
        tell_next("evaluate", model, data, **own, tokens=tokens, protocol="rob-tokens@2")
    else:
        typer.echo(f"next: {command_line('review', model, data, **own)} for a verdict that may be quoted")


def _tell_defences(fitting: Table, *measured: Table) -> None:
    """Which defences fit and what was measured of them; commands and figures by the line, uncut."""
    commands = {row[0]: (row[-2], row[-1]) for row in fitting.rows if row[-1].startswith("robvit ")}
    rows = [[*row[:-2], "yes" if row[0] in commands else f"no: {row[-1]}"] for row in fitting.rows]
    show_table(replace(fitting, columns=[*fitting.columns[:-2], "fits"], rows=rows))
    for table in measured:
        show_table(table)
    for defence, (figures, line) in commands.items():
        typer.echo(f"{defence}: {line}\n  figures: {figures}")
