"""Label-free attacks on features: a clean reference once, then ascent away from it. No new optimiser.

`feature` is the attack of "Robustness Tokens" as its paper states it; `feature_reference` repeats
what the published code does, for comparison with published numbers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from robvit.attacks.best import Best
from robvit.attacks.core import AttackCheck, Model, Objective, attack, input_gradient, per_image_uniform
from robvit.attacks.losses import Loss, objective_of
from robvit.attacks.pgd import ascend
from robvit.attacks.pixels import eight_bit
from robvit.errors import InputError
from robvit.threat import NORMS, Threat

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet; the published code's for every model


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
    rounded: round to whole grey levels inside the budget.
    seed: decides the starts, together with each image.
    """
    if steps < 1 or restarts < 1:
        raise InputError(f"steps and restarts must be at least 1, got {steps} and {restarts}")
    limits = [p for p in (psnr, threat.psnr) if p is not None]
    bound = replace(threat, psnr=max(limits, default=None))
    objective = feature_objective(model, x, y, loss)
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


@attack(
    kind="budget",
    norms=("linf",),
    paper="ECCV 2024",
    task="features",
    batch_coupled=True,
    certified=False,
    check=AttackCheck({"steps": 3}),
)
def feature_reference(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 30,
    step_size: float = 0.01,
    stop: float | None = 1e-4,
    axis: int = 1,
    pixels: bool = False,
    nearest: bool = False,
    seed: int = 0,
) -> torch.Tensor:
    """The published code's feature attack, choice by choice. x (B 3 H W) in [0,1]; model(x) (B T D) or (B D).

    All in ImageNet-normalised space: the budget (so 8/255 is about 1.8/255 in pixels), sign steps of
    0.01, and a start at x + 0.01 N(0,1) that is not projected. It minimises the cosine over axis 1
    (the tokens, for token features) plus the pixel MSE, ends after the step before which the MSE of the
    whole batch reached `stop`, clamps to the batch's own range, and cuts off to 8 bits. So results
    depend on the batch, and budgets below a grey level are not kept: the certificate refuses those.

    One choice at a time can be made honest.

    steps: sign steps, at most.
    step_size: in normalised space.
    stop: the pixel MSE of the batch after which it ends; None for all steps.
    axis: the cosine's; -1 is over the features of a token.
    pixels: work in pixels, not in normalised space.
    nearest: round to the nearest grey level, not down.
    seed: decides the start, together with each image.
    """
    statistics = ((0.0,) * 3, (1.0,) * 3) if pixels else (MEAN, STD)
    mean, std = (torch.tensor(v).to(x).view(1, 3, 1, 1) for v in statistics)
    clean, target = (x - mean) / std, model(x)
    low, high = clean.aminmax()
    uniform = per_image_uniform(x, seed, "feature_reference").clamp(1e-6, 1 - 1e-6)
    point = clean + 0.01 * 2**0.5 * torch.erfinv(2 * uniform - 1)
    for _ in range(steps):
        with torch.enable_grad():
            leaf = point.detach().requires_grad_()
            image = leaf * std + mean
            error = F.mse_loss(image, x)
            cost = F.cosine_similarity(model(image), target, dim=axis).mean() + error
        step = point - step_size * input_gradient(cost, leaf).sign()
        point = (clean + (step - clean).clamp(-threat.eps, threat.eps)).clamp(low, high)
        if stop is not None and bool(error >= stop):
            break
    levels = (point * std + mean).clamp(0, 1) * 255
    return (levels.round() if nearest else levels.floor()) / 255
