"""Carlini and Wagner's smallest L2 perturbation with a search for the weight of success (1608.04644).

The paper keeps pixels in their range by a tanh scale, on which black and white ones can't move. Here
they are clamped after each step, which lets every pixel move.
"""

from __future__ import annotations

import torch

from robvit.attacks.best import Nearest
from robvit.attacks.core import AttackCheck, Model, attack, gradient, misclassified, require_labels
from robvit.attacks.losses import margin
from robvit.errors import InputError
from robvit.threat import Threat

RATES = (0.9, 0.999)  # Adam's, of its two averages


@attack(
    kind="minimum",
    norms=("l2",),
    paper="1608.04644",
    check=AttackCheck({"steps": 8, "searches": 2}, {"steps": 100, "searches": 6}),
)
def cw_l2(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 200,
    searches: int = 8,
    rate: float = 0.01,
    weight: float = 1.0,
    confidence: float = 0.0,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """The smallest L2 perturbation, by Adam on pixels. x (B 3 H W) in [0,1], y (B,).

    Each search minimises `|delta|^2 + weight * (gap + confidence)` where the image is not yet
    misclassified by so much; the weight falls where that succeeds and grows where it does not, for each
    image.

    steps: steps of Adam a search.
    searches: searches, each with another weight.
    rate: of Adam, in pixels; it falls to zero over the steps of each search.
    weight: of success in the first search.
    confidence: the margin by which images are to be misclassified.
    early_stop: an image is done as soon as it is misclassified inside a finite budget.
    seed: taken as by every attack; nothing here is random.
    """
    if steps < 1 or searches < 1:
        raise InputError(f"steps and searches must be at least 1, got {steps} and {searches}")
    labels, nearest = require_labels(y, "cw_l2"), Nearest(x, threat, early_stop)
    low, high = torch.zeros(len(x)).to(x), torch.full((len(x),), torch.inf).to(x)
    trade = torch.full_like(low, weight)
    for _ in range(searches):
        rows = nearest.survivors()
        if not len(rows):
            break
        succeeded = _minimise(model, x, labels, nearest, rows, trade[rows], steps, rate, confidence)
        high[rows] = torch.where(succeeded, trade[rows], high[rows])
        low[rows] = torch.where(succeeded, low[rows], trade[rows])
        trade = torch.where(high.isfinite(), (low + high) / 2, 10 * low)
    return nearest.finish(lambda rows, point: _beyond(model(point), labels[rows], confidence), 4)


def _beyond(output: torch.Tensor, y: torch.Tensor, confidence: float) -> torch.Tensor:
    """Which images are misclassified, and by such a margin: (b,) bool."""
    return misclassified(output, y) & (margin(output, y) >= confidence)


def _minimise(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor,
    nearest: Nearest,
    rows: torch.Tensor,
    trade: torch.Tensor,
    steps: int,
    rate: float,
    confidence: float,
) -> torch.Tensor:
    """One run of Adam for the given rows; which of them were misclassified on the way (b,)."""
    original, labels = x[rows], y[rows]
    point = original
    first, second = torch.zeros_like(point), torch.zeros_like(point)
    succeeded = torch.zeros(len(rows), dtype=torch.bool, device=x.device)
    for step in range(1, steps + 2):

        def cost(output: torch.Tensor) -> torch.Tensor:
            return trade * (confidence - margin(output, labels)).clamp_min(0)

        if step > steps:
            output = model(point)
        else:
            output, _, grad = gradient(model, point, cost)
        success = _beyond(output, labels, confidence)
        nearest.offer(rows, point, success)
        succeeded |= success
        if step > steps:
            return succeeded
        descent = grad + 2 * (point - original)
        first = RATES[0] * first + (1 - RATES[0]) * descent
        second = RATES[1] * second + (1 - RATES[1]) * descent.square()
        ahead = first / (1 - RATES[0] ** step) / ((second / (1 - RATES[1] ** step)).sqrt() + 1e-8)
        point = (point - rate * (1 - step / (steps + 1)) * ahead).clamp(0, 1)
    return succeeded
