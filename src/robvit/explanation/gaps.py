"""How far the largest score stands above the second before every softmax: where attention saturates."""

from __future__ import annotations

from typing import Any

import torch

from robvit.attention.hooks import watch
from robvit.attention.saturation import histogram, score_gaps
from robvit.backbones.model import Model
from robvit.evaluation.record import Curve
from robvit.explanation.attention import spread
from robvit.explanation.subject import Subject, figure

MOST = 12  # blocks shown
TAIL = 0.995  # the share of all gaps that the axis covers


@torch.no_grad()
def gaps(model: Model, x: torch.Tensor) -> list[torch.Tensor]:
    """Delta of every row that enters a softmax, largest minus second largest score, one (rows,) a block."""
    with watch(model, scores=True) as seen:
        model.tokens(x)
    return [score_gaps(scores) for scores in seen.scores]


@figure(
    "gaps",
    title="The gap before the softmax, block by block",
    caption="Rows far to the right are all but one-hot: their softmax passes hardly any gradient on.",
)
def gap_histograms(subject: Subject) -> dict[str, Any]:
    """A histogram a block over all images, heads and rows; what lies beyond the axis is left out."""
    found = {view.name: gaps(view.model, view.x) for view in subject.views()}
    blocks = len(next(iter(found.values())))
    curves = []
    for block in (int(name) for name in spread([str(i) for i in range(blocks)], MOST)):
        everything = torch.cat([each[block] for each in found.values()]).double()
        top = float(everything.sort().values[int(TAIL * (len(everything) - 1))])
        lines = {name: histogram(each[block], top) for name, each in found.items()}
        curves.append(Curve(f"block {block + 1}", "gap", "fraction of rows", lines))
    return {"curves": curves}
