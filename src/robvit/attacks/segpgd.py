"""Attacks on segmentation: per-pixel objectives over the usual ascent. Measures no mIoU."""

from __future__ import annotations

import torch

from robvit.attacks import losses
from robvit.attacks.best import Best
from robvit.attacks.core import AttackCheck, Model, attack, per_image_uniform
from robvit.attacks.losses import objective_of
from robvit.attacks.pgd import ascend
from robvit.errors import InputError
from robvit.threat import NORMS, Threat


@attack(kind="budget", norms=NORMS, paper="2207.12391", task="pixels", check=AttackCheck({"steps": 3}))
def segpgd(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 100,
    step_size: float | None = None,
    weighted: bool = True,
    restarts: int = 1,
    seed: int = 0,
) -> torch.Tensor:
    """SegPGD. x (B 3 H W) in [0,1]; model(x) (B K H W); labels y (B H W), negative ones and 255 ignored.

    For adaptive steps use `apgd(..., loss="pixel_cross_entropy")`.

    steps: gradient steps a restart.
    step_size: in pixels; 2.5 eps / steps if left out.
    weighted: the weight of pixels that are wrong already grows from nothing to one half over the steps, so
        that the attack turns to the others first; if not, all count alike.
    restarts: starts, of which the best point is kept.
    seed: decides the starts, together with each image.
    """
    if y is None or y.shape != (len(x), *x.shape[2:]) or steps < 1:
        got = None if y is None else tuple(y.shape)
        raise InputError(f"needs a label a pixel {(len(x), *x.shape[2:])} and steps, got {got} and {steps}")
    size = 2.5 * threat.eps / steps if step_size is None else step_size
    plain = objective_of("pixel_cross_entropy", y)

    def favouring(output: torch.Tensor, rows: torch.Tensor, step: int, /) -> torch.Tensor:
        return losses.segpgd(output, y[rows], step / (2 * steps))

    best = Best(x, early_stop=False)
    for restart in range(restarts):
        ascend(
            model,
            x,
            None,
            threat,
            best,
            objective=favouring if weighted else plain,
            rank=plain,
            steps=steps,
            size=lambda _: size,
            start=threat.random(x, per_image_uniform(x, seed, f"segmentation {restart}")),
        )
    return best.adv
