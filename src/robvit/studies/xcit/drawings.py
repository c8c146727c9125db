"""Figure 12 of the XCiT thesis: what a network's gradient alone draws from noise, and who recognises it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from robvit.backbones.model import Model
from robvit.drawing.grid import Grid, Row, Tile, draw_grid
from robvit.drawing.images import photo, save_png
from robvit.explanation.figures.accumulation import accumulate_gradient, noise
from robvit.progress import progress
from robvit.record import Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import with_interval
from robvit.studies.xcit.common import PAPER
from robvit.studies.xcit.semantic import (
    BATCH,
    NETWORKS,
    SHOWN,
    Networks,
    answers,
    opened,
    own_judge_note,
    scale_note,
)
from robvit.threat import Threat
from robvit.verdict import claim_of


@study("xcit-fig12", paper=PAPER, title="Fig. 12: classes drawn from noise by the gradient", effort=NETWORKS)
def accumulated(
    context: StudyContext,
    networks: Networks,
    *,
    judges: Sequence[str] = (),
    steps: int = 100,
    eps: float = 15.0,
) -> Record:
    """Targeted ascent from uniform noise within L2 15; the other network judges what came out.

    So do `judges`, which draw nothing.
    """
    models, count = networks.pair(context), context.count(40)
    images = context.part("sample", "test", models["robust"].input_size[0], count)
    target = torch.arange(count) % len(images.classes)
    start = noise(count, models["robust"].input_size, seed=context.seed)
    drawings = {"noise": start} | {
        name: _draw(name, model, target, start, steps, Threat("l2", eps)) for name, model in models.items()
    }
    seen_by = {"the robust network": models["robust"], "the standard one": models["standard"]}
    seen_by |= {judge.partition("+")[0]: opened(judge) for judge in judges}
    rows: list[list[Any]] = []
    seen = dict[tuple[str, str], list[bool]]()
    for name, drawn in drawings.items():
        row: list[Any] = [name]
        for judge, model in seen_by.items():
            seen[name, judge], sure = _target(model, drawn, target)
            row += [with_interval(seen[name, judge]), sure]
        rows.append(row)
    # Of the two that drew, each judges the other's: what it sees in its own is what the ascent optimised.
    robust, standard, *_ = seen_by
    own = networks.own(context, judges)
    strangers = [judge.partition("+")[0] for judge in judges if judge not in own]
    pairs = {"the other network": (standard, robust)} | {judge: (judge, judge) for judge in strangers}
    claims = [
        claim_of(
            f"{judge} recognises drawings of the robust network over the standard one's",
            seen["robust", first],
            seen["standard", second],
        )
        for judge, (first, second) in pairs.items()
    ]
    columns = ["drawn by"]
    for judge in seen_by:
        columns += [f"seen by {judge} %", "mean probability"]
    few = range(min(2 * SHOWN, len(target)))
    tiles = [Row([Tile(photo(drawn[i])) for i in few], name) for name, drawn in drawings.items()]
    classes = [images.classes[int(target[i])] for i in few]
    save_png(draw_grid(Grid(tiles, classes)), context.out / "fig12.png")
    note = (
        "What a network sees in its own drawing is what the ascent optimised; the other networks are "
        "independent judges. The thesis shows images only."
    )
    record = context.record(models["robust"], images, claims=claims)
    table = Table("Fig. 12: who recognises the target class", columns, rows, note)
    record.tables = [table, claims_table(claims)]
    size = f"{count} starts, {steps} steps within L2 {eps:g}; of the data only the classes' names are used."
    record.notes = [size, *scale_note(context, "")]
    record.notes += [own_judge_note(judge, "drawings led") for judge in own]
    return record


def _draw(
    name: str, model: Model, target: torch.Tensor, start: torch.Tensor, steps: int, threat: Threat
) -> torch.Tensor:
    """What a network's gradient makes of the starts (N 3 H W)."""
    parts = []
    with progress(f"gradients of the {name} network", total=len(target)) as advance:
        for some, from_ in zip(target.split(BATCH), start.split(BATCH), strict=True):
            parts.append(accumulate_gradient(model, some, start=from_, steps=steps, threat=threat))
            advance(len(some))
    return torch.cat(parts)


def _target(model: Model, x: torch.Tensor, target: torch.Tensor) -> tuple[list[bool], float]:
    """Whether a network's answer is the target, image by image, and the mean probability that it gives it."""
    logits = answers(model, x)
    sure = logits.softmax(1).gather(1, target[:, None]).mean()
    return (logits.argmax(1) == target).tolist(), float(sure)
