"""`robvit card`: a model card from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robvit.cli.checks import free_place, read_record
from robvit.cli.options import Force


def card(
    records: Annotated[
        list[Path],
        typer.Argument(
            metavar="RECORD...",
            help="The record of `robvit robustify --method lora | full`, and those of evaluations of its "
            "result and of the original; files, or folders that hold one.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="The Markdown file; printed if left out.")] = None,
    name: Annotated[str, typer.Option(help="What the model is called; MODEL-robust if left out.")] = "",
    force: Force = False,
) -> None:
    """Write a model card of a tuned network: data, eps, cost, what judged it with intervals, and its limits.

    Every number comes from a record. Records of other weights are refused.
    """
    loaded = [read_record(path) for path in records]
    if out is not None:
        free_place(out, force)
    from robvit.files import written_whole
    from robvit.report.card import model_card

    text = model_card(loaded, name=name)
    if out is None:
        typer.echo(text, nl=False)
        return
    with written_whole(out) as aside:
        aside.write_text(text, encoding="utf-8")
    typer.echo(f"written: {out}")
