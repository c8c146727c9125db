"""A label-free attack on features: a clean reference once, then ascent away from it. No new optimiser.

It is the attack of "Robustness Tokens" as its paper states it, but for the sign in Eq. 4: there the image's
squared error is subtracted from what the attack minimises, which would reward a visible change, while the
text wants it small. `mse` adds it. The published code's attacks are in `published_code`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from robvit.attacks.best import Best
from robvit.attacks.core import AttackCheck, Model, Objective, attack, per_image_uniform
from robvit.attacks.losses import Loss, objective_of
from robvit.attacks.pgd import ascend
from robvit.attacks.pixels import eight_bit
from robvit.errors import InputError
from robvit.threat import NORMS, Threat


@attack(
    kind="budget",
    norms=NORMS,
    paper="ECCV 2024",
    task="features",
    check=AttackCheck({"steps": 3, "rounded": False}),
)
def feature(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 30,
    step_size: float | None = None,
    restarts: int = 1,
    loss: str | Loss = "cosine",
    psnr: float | None = 40.0,
    mse: float = 0.0,
    rounded: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """Drive features away from the clean ones. x (B 3 H W) in [0,1]; model(x) (B T D) or (B D); no labels.

    With features of other images in place of labels, y of the shape of model(x), it drives them there:
    a collision. The paper's setting is Threat("linf", 8/255) and the defaults.

    steps: gradient steps a restart.
    step_size: in pixels; 2.5 eps / steps if left out.
    restarts: starts, of which the best point is kept.
    loss: a name from `LOSSES` or a callable of features and clean features.
    psnr: decibels that every image keeps, by projection; None for no such bound.
    mse: the weight of Eq. 4's second term, with the sign its text means: the image's mean squared error in
        pixels is kept small. The published code has 1, which hardly matters beside a cosine.
    rounded: round to whole grey levels inside the budget.
    seed: decides the starts, together with each image.
    """
    if steps < 1 or restarts < 1:
        raise InputError(f"steps and restarts must be at least 1, got {steps} and {restarts}")
    limits = [p for p in (psnr, threat.psnr) if p is not None]
    bound = replace(threat, psnr=max(limits, default=None))
    objective = feature_objective(model, x, y, loss)
    if mse:
        model, objective = _sparing(model, objective, x, mse)
    size = 2.5 * threat.eps / steps if step_size is None else step_size
    best = Best(x, early_stop=False)
    for restart in range(restarts):
        start = bound.random(
            x, per_image_uniform(x, seed, f"feature {restart}")
        )  # at x itself the cosine is flat
        ascend(
            model, x, None, bound, best, objective=objective, start=start, steps=steps, size=lambda _: size
        )
    return eight_bit(x, best.adv, bound) if rounded else best.adv


def feature_objective(model: Model, x: torch.Tensor, y: torch.Tensor | None, loss: str | Loss) -> Objective:
    """Away from the clean features of x (B 3 H W), or, where y are features, towards those."""
    if y is None or not y.is_floating_point():
        return objective_of(loss, model(x))
    away = objective_of(loss, y)
    return lambda output, rows, step: -away(output, rows, step)


def _sparing(model: Model, objective: Objective, x: torch.Tensor, weight: float) -> tuple[Model, Objective]:
    """A model whose rows end with the image's mean squared error, and the objective less so much of it."""
    shape = model(x[:1]).shape[1:]

    def seen(point: torch.Tensor) -> torch.Tensor:
        error = (point - x).square().mean((1, 2, 3))
        return torch.cat((model(point).flatten(1), error[:, None]), 1)

    def spared(output: torch.Tensor, rows: torch.Tensor, step: int, /) -> torch.Tensor:
        features = output[:, :-1].unflatten(1, shape)
        return objective(features, rows, step) - weight * output[:, -1]

    return seen, spared
