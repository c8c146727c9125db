"""How far the largest score stands above the second before every softmax: where attention saturates."""

from __future__ import annotations

import torch

from robvit.attention import watch
from robvit.backbones.model import Model
from robvit.explanation.figures.attention import spread
from robvit.explanation.subject import Subject, figure
from robvit.measuring.saturation import histogram, score_gaps
from robvit.record import Curve
from robvit.report.figure import Figure

MOST = 12  # blocks shown
TAIL = 0.995  # the share of all gaps that the axis covers


@torch.no_grad()
def gaps(model: Model, x: torch.Tensor) -> list[torch.Tensor]:
    """Delta of every row that enters a softmax, largest minus second largest score, one (rows,) a block."""
    with watch(model, scores=True) as seen:
        model.tokens(x)
    return [score_gaps(scores) for scores in seen.scores]


@figure(
    title="The gap before the softmax, block by block",
    caption="Rows far to the right are all but one-hot: their softmax passes hardly any gradient on.",
    order=50,
)
def gap_histograms(subject: Subject) -> Figure:
    """A histogram a block over all images, heads and rows; what lies beyond the axis is left out."""
    by_view = {view.name: gaps(view.model, view.x) for view in subject.views()}
    blocks = len(next(iter(by_view.values())))
    curves = []
    for block in (int(name) for name in spread([str(i) for i in range(blocks)], MOST)):
        everything = torch.cat([each[block] for each in by_view.values()]).double()
        top = float(everything.sort().values[int(TAIL * (len(everything) - 1))])
        lines = {name: histogram(each[block], top) for name, each in by_view.items()}
        curves.append(Curve(f"block {block + 1}", "gap", "fraction of rows", lines))
    return Figure(curves=curves)
