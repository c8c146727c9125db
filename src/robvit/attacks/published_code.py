"""The attacks of the code published with "Robustness Tokens", for comparison with its published numbers.

All of them work in ImageNet-normalised space: the budget (so 8/255 is about 1.8/255 in pixels), sign steps of
0.01, and a start at x + 0.01 N(0,1) that is not projected. They end after the step before which the pixel
MSE of the whole batch reached a limit, clamp to the batch's own range, and cut off to 8 bits. So results
depend on the batch, and budgets below a grey level are not kept: the check refuses those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from robvit.attacks.core import (
    AttackCheck,
    Model,
    attack,
    input_gradient,
    per_image_uniform,
    require_labels,
)
from robvit.attacks.losses import pixel_cross_entropy
from robvit.errors import InputError
from robvit.threat import Threat

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet; the published code's for every model
Cost = Callable[[torch.Tensor], torch.Tensor]  # the model's output to one number, which is to fall


@attack(
    kind="budget",
    norms=("linf",),
    paper="ECCV 2024",
    task="features",
    batch_coupled=True,
    keeps_budget=False,
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

    It minimises the cosine over axis 1 (the tokens, for token features) plus the pixel MSE. One choice at a
    time can be made honest.

    steps: sign steps, at most.
    step_size: in normalised space.
    stop: the pixel MSE of the batch after which it ends; None for all steps.
    axis: the cosine's; -1 is over the features of a token.
    pixels: work in pixels, not in normalised space.
    nearest: round to the nearest grey level, not down.
    seed: decides the start, together with each image.
    """
    target = model(x)
    settings: dict[str, Any] = {"steps": steps, "step_size": step_size, "stop": stop}

    def cost(output: torch.Tensor) -> torch.Tensor:
        return F.cosine_similarity(output, target, dim=axis).mean()

    return _descend(model, x, threat, cost, seed=seed, pixels=pixels, nearest=nearest, **settings)


@attack(
    kind="budget",
    norms=("linf",),
    paper="ECCV 2024",
    batch_coupled=True,
    keeps_budget=False,
    check=AttackCheck({"steps": 3}),
)
def pgd_reference(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 30,
    step_size: float = 0.01,
    stop: float | None = 1e-4,
    seed: int = 0,
) -> torch.Tensor:
    """The published code's attack on classes. x (B 3 H W) in [0,1], y (B,); model(x) (B K).

    It maximises the cross-entropy less the pixel MSE, in normalised space like `feature_reference`.

    steps: sign steps, at most.
    step_size: in normalised space.
    stop: the pixel MSE of the batch after which it ends; None for all steps.
    seed: decides the start, together with each image.
    """
    labels = require_labels(y, "pgd_reference")

    def cost(output: torch.Tensor) -> torch.Tensor:
        return -F.cross_entropy(output, labels)

    return _descend(model, x, threat, cost, steps=steps, step_size=step_size, stop=stop, seed=seed)


@attack(
    kind="budget",
    norms=("linf",),
    paper="ECCV 2024",
    task="pixels",
    batch_coupled=True,
    keeps_budget=False,
    check=AttackCheck({"steps": 3}),
)
def segpgd_reference(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 30,
    step_size: float = 0.01,
    stop: float | None = 1e-4,
    seed: int = 0,
) -> torch.Tensor:
    """The published code's attack on segmentations. x (B 3 H W) in [0,1], y (B H W); model(x) (B K H W).

    It maximises the cross-entropy of labelled pixels less the pixel MSE, in normalised space.

    steps: sign steps, at most.
    step_size: in normalised space.
    stop: the pixel MSE of the batch after which it ends; None for all steps.
    seed: decides the start, together with each image.
    """
    if y is None or y.shape != (len(x), *x.shape[2:]):
        got = None if y is None else tuple(y.shape)
        raise InputError(f"segpgd_reference needs a label a pixel {(len(x), *x.shape[2:])}, got {got}")
    masks = y

    def cost(output: torch.Tensor) -> torch.Tensor:
        return -pixel_cross_entropy(output, masks).mean()

    return _descend(model, x, threat, cost, steps=steps, step_size=step_size, stop=stop, seed=seed)


def _descend(
    model: Model,
    x: torch.Tensor,
    threat: Threat,
    cost: Cost,
    *,
    steps: int,
    step_size: float,
    stop: float | None,
    seed: int,
    pixels: bool = False,
    nearest: bool = False,
) -> torch.Tensor:
    """Sign steps down the cost plus the pixel MSE, as this file's heading says."""
    statistics = ((0.0,) * 3, (1.0,) * 3) if pixels else (MEAN, STD)
    mean, std = (torch.tensor(v).to(x).view(1, 3, 1, 1) for v in statistics)
    clean = (x - mean) / std
    low, high = clean.aminmax()
    # One purpose for all attacks of the published code: they differ in what they minimise alone.
    uniform = per_image_uniform(x, seed, "feature_reference").clamp(1e-6, 1 - 1e-6)
    point = clean + 0.01 * 2**0.5 * torch.erfinv(2 * uniform - 1)
    for _ in range(steps):
        with torch.enable_grad():
            leaf = point.detach().requires_grad_()
            image = leaf * std + mean
            error = F.mse_loss(image, x)
            total = cost(model(image)) + error
        step = point - step_size * input_gradient(total, leaf).sign()
        point = (clean + (step - clean).clamp(-threat.eps, threat.eps)).clamp(low, high)
        if stop is not None and bool(error >= stop):
            break
    levels = (point * std + mean).clamp(0, 1) * 255
    return (levels.round() if nearest else levels.floor()) / 255
