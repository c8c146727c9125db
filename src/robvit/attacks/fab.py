"""The nearest point across a decision boundary, by projection onto linearised boundaries (1907.02044).

The paper judges each new point with one pass and linearises after a backward step with another.
Here one forward and one backward pass do both: the boundary is linearised at the judged point, and
the backward step is taken along that linearisation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from robvit.attacks.best import Nearest, take
from robvit.attacks.boundaries import boundaries, gaps
from robvit.attacks.core import (
    AttackCheck,
    Model,
    attack,
    misclassified,
    per_image_uniform,
    require_labels,
)
from robvit.attacks.losses import likeliest_wrong
from robvit.errors import InputError
from robvit.threat import NORMS, Threat

OVERSHOOT = 1.05  # past the linearised boundary, so that the real one is crossed
BACKWARD = 0.9  # of the way from the original to an adversarial point: where the search goes on
BIAS = 0.1  # the most that the projection of the original weighs
HALVINGS = 6  # of the segment from the original, at the end


@dataclass(frozen=True)
class _State:
    rows: torch.Tensor
    x: torch.Tensor
    point: torch.Tensor
    wanted: torch.Tensor  # (b c): the classes whose boundaries are looked at


@attack(kind="minimum", norms=NORMS, paper="1907.02044", check=AttackCheck({"steps": 4, "targets": 2}))
def fab(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 100,
    targets: int = 9,
    restarts: int = 1,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """The nearest boundary, each step towards the nearest of several. x (B 3 H W) in [0,1], y (B,).

    steps: steps a restart, each with a backward pass for every target.
    targets: how many of the likeliest wrong classes are looked at.
    restarts: starts; the first is x itself.
    early_stop: an image is done as soon as it is misclassified inside a finite budget.
    seed: decides the later starts, together with each image.
    """
    labels, nearest = require_labels(y, "fab"), Nearest(x, threat, early_stop)
    wrong = likeliest_wrong(model(x), labels, targets)
    return _search(model, x, labels, threat, nearest, [wrong], steps, restarts, seed)


@attack(kind="minimum", norms=NORMS, paper="1907.02044", check=AttackCheck({"steps": 4, "targets": 2}))
def fab_t(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 100,
    targets: int = 9,
    restarts: int = 1,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """The nearest boundary to each of the likeliest wrong classes in turn. x (B 3 H W) in [0,1], y (B,).

    steps: steps a target.
    targets: how many wrong classes; a model of fewer classes has fewer.
    restarts: rounds through all targets; the first starts at x itself.
    early_stop: an image is done as soon as it is misclassified inside a finite budget.
    seed: decides the later starts, together with each image.
    """
    labels, nearest = require_labels(y, "fab_t"), Nearest(x, threat, early_stop)
    wrong = likeliest_wrong(model(x), labels, targets)
    return _search(model, x, labels, threat, nearest, wrong.split(1, dim=1), steps, restarts, seed)


def _search(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor,
    threat: Threat,
    nearest: Nearest,
    groups: Sequence[torch.Tensor],
    steps: int,
    restarts: int,
    seed: int,
) -> torch.Tensor:
    """The nearest points found by approaching each group of classes (B c) in turn, in every restart."""
    for restart in range(restarts):
        for wanted in groups:
            _approach(model, x, y, threat, nearest, wanted, steps, seed, restart)
    return nearest.finish(lambda rows, point: misclassified(model(point), y[rows]), HALVINGS)


def _approach(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor,
    threat: Threat,
    nearest: Nearest,
    wanted: torch.Tensor,
    steps: int,
    seed: int,
    restart: int,
) -> None:
    """n steps from the original, or from a random point on a restart: n + 1 forward, n backward passes."""
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    rows = nearest.survivors()
    start = (
        x[rows] if restart == 0 else nearest.halfway(rows, per_image_uniform(x[rows], seed, f"fab {restart}"))
    )
    state = _State(rows, x[rows], start, wanted[rows])
    for step in range(steps + 1):
        if not len(state.rows):
            return
        output, gap, grad = _nearest_boundary(model, state, y[state.rows], threat, last=step == steps)
        success = misclassified(output, y[state.rows])
        keep = nearest.offer(state.rows, state.point, success)
        if keep is not None:
            state, gap, grad, success = take(state, keep), gap[keep], grad[keep], success[keep]
        state = replace(state, point=_step(state, threat, gap, grad, success))


def _nearest_boundary(
    model: Model, state: _State, y: torch.Tensor, threat: Threat, last: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The output, and gap and gradient (b ...) of the label's logit over the class of nearest boundary."""
    grad = torch.zeros_like(state.point)
    if last:
        output = model(state.point)
        return output, gaps(output, y, state.wanted)[:, 0], grad
    output, found = boundaries(model, state.point, y, lambda _: state.wanted, threat)
    gap = gaps(output, y, state.wanted)[:, 0]
    least = torch.full_like(gap, math.inf)
    for column, normal, dist in found:
        nearer = dist < least
        least = torch.where(nearer, dist, least)
        gap = torch.where(nearer, column, gap)
        grad = torch.where(nearer.view(-1, 1, 1, 1), normal, grad)
    return output, gap, grad


def _step(
    state: _State, threat: Threat, gap: torch.Tensor, grad: torch.Tensor, success: torch.Tensor
) -> torch.Tensor:
    """Between the projections of the point, or of one further back after a success, and of the original."""
    back = state.x + BACKWARD * (state.point - state.x)
    base = torch.where(success.view(-1, 1, 1, 1), back, state.point)
    ends = torch.cat([base, state.x])
    normal = torch.cat([grad, grad])
    rise = -torch.cat([gap, gap]) - (normal * (ends - torch.cat([state.point] * 2))).flatten(1).sum(1)
    move = threat.onto_plane(ends, normal, rise)
    point_dist, x_dist = threat.size(move).chunk(2)
    weight = (point_dist / (point_dist + x_dist).clamp_min(1e-30)).clamp_max(BIAS).view(-1, 1, 1, 1)
    first, second = (ends + OVERSHOOT * move).chunk(2)
    return ((1 - weight) * first + weight * second).clamp(0, 1)
