"""One perturbation for many images (1610.08401), as a small change everywhere or as a patch anywhere.

It ascends the mean loss of all images at once (1811.11304). A patch is stuck on at another random place of
each image in every step, so that it works wherever it lies: an expectation over places.

Legend for shapes: B batch.
"""

from __future__ import annotations

import torch

from robvit.attacks.core import (
    AttackCheck,
    Model,
    Objective,
    attack,
    gradient,
    per_image_uniform,
    succeeded,
)
from robvit.attacks.feature import feature_objective
from robvit.attacks.losses import Loss, objective_of
from robvit.attacks.sticker import FIRST_STEP, Sticker
from robvit.errors import InputError
from robvit.threat import PATCH, Threat

NORMS = ("linf", "l2", PATCH)


@attack(kind="budget", norms=NORMS, paper="1610.08401", batch_coupled=True, check=AttackCheck({"steps": 4}))
def universal(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 100,
    loss: str | Loss = "cross_entropy",
    targeted: bool = False,
    seed: int = 0,
) -> torch.Tensor:
    """One perturbation for all images of a batch. x (B 3 H W) in [0,1]; loss(model(x), y) -> (B,).

    steps: gradient steps, each over all images.
    loss: a name from `LOSSES` or a callable; its mean over images is climbed.
    targeted: y are the classes wanted.
    seed: decides the start and, together with each image, the places of a patch.
    """
    goal = objective_of(loss, y, targeted)
    return _climb(model, x, y, threat, goal, steps=steps, targeted=targeted, seed=seed)


@attack(
    kind="budget",
    norms=NORMS,
    paper="1610.08401",
    task="features",
    batch_coupled=True,
    check=AttackCheck({"steps": 3}),
)
def feature_universal(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 100,
    loss: str | Loss = "cosine",
    seed: int = 0,
) -> torch.Tensor:
    """One perturbation that drives the features of all images of a batch away, or to those given as y.

    steps: gradient steps, each over all images.
    loss: a name from `LOSSES` or a callable of features and clean features.
    seed: decides the start and, together with each image, the places of a patch.
    """
    goal = feature_objective(model, x, y, loss)
    return _climb(model, x, None, threat, goal, steps=steps, targeted=False, seed=seed)


def _climb(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    objective: Objective,
    *,
    steps: int,
    targeted: bool,
    seed: int,
) -> torch.Tensor:
    """Ascend the mean loss, and keep what misleads the most images, then what has the highest loss."""
    if steps < 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    kind = _SameSquare if threat.norm == PATCH else _Offset
    change: _SameSquare | _Offset = kind(x, threat, seed)
    rows = torch.arange(len(x), device=x.device)
    best, worth = x, (-1.0, -torch.inf)
    for step in range(steps + 1):
        point = change.on(x, step)
        output, value, slope = gradient(model, point, lambda output: objective(output, rows, 0))
        found = (float(succeeded(output, y, targeted).sum()), float(value.mean()))
        if found > worth:
            best, worth = point, found
        change.climb(slope, 1 - 0.9 * step / steps)
    return best


class _Offset:
    """The same small change of every image, (1 3 H W)."""

    def __init__(self, x: torch.Tensor, threat: Threat, seed: int) -> None:
        self.threat = threat
        noise = per_image_uniform(torch.zeros_like(x[:1]), seed, "universal")
        self.delta = threat.inside(threat.eps * (2 * noise - 1))

    def on(self, x: torch.Tensor, draw: int | str) -> torch.Tensor:
        return self.threat.project(x, x + self.delta)

    def climb(self, slope: torch.Tensor, share: float) -> None:
        size = 0.25 * self.threat.eps * share
        up = self.threat.steepest(slope.mean(0, keepdim=True), size)
        self.delta = self.threat.inside(self.delta + up)


class _SameSquare(Sticker):
    """The same square of pixels on every image, each time elsewhere."""

    def __init__(self, x: torch.Tensor, threat: Threat, seed: int) -> None:
        side = min(int(threat.eps), *x.shape[-2:])
        super().__init__(per_image_uniform(torch.zeros_like(x[:1]), seed, "universal", 3, side, side), seed)

    def on(self, x: torch.Tensor, draw: int | str) -> torch.Tensor:
        return super().on(x, f"place {draw}")

    def climb(self, slope: torch.Tensor, share: float) -> None:
        self.move(self.under(slope), FIRST_STEP * share)
