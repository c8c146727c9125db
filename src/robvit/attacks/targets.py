"""Which class a targeted attack aims at. B batch, K classes."""

from __future__ import annotations

import torch

from robvit.attacks.core import per_image_uniform, require_labels
from robvit.attacks.losses import likeliest_wrong
from robvit.errors import InputError, check_labels

RULES = ("random", "least-likely", "most-likely")

Target = str | int | torch.Tensor


def choose_targets(
    target: Target, output: torch.Tensor, y: torch.Tensor | None, x: torch.Tensor, seed: int = 0
) -> torch.Tensor:
    """A class (B,) for each image, from logits (B K) on clean images x (B 3 H W) with labels y (B,).

    target: "random", any wrong class by the seed and the image; "least-likely" or "most-likely", the wrong
        class of the smallest or the largest logit; a class for all; or one for each (B,), which may be its
        label: that image is then nothing to attack.
    """
    labels, classes = require_labels(y, "the choice of a target"), output.shape[1]
    if isinstance(target, torch.Tensor):
        check_labels(target, len(x), classes)
        return target.to(labels)
    if isinstance(target, int):
        if not 0 <= target < classes:
            raise InputError(f"a target must be a class in 0..{classes - 1}, got {target}")
        return torch.full_like(labels, target)
    if target == "most-likely":
        return likeliest_wrong(output, labels, 1)[:, 0]
    if target == "least-likely":
        return output.scatter(1, labels[:, None], torch.inf).argmin(1)
    if target == "random":
        drawn = per_image_uniform(x, seed, "target", 1)[:, 0].mul(classes - 1).long().clamp_max(classes - 2)
        return drawn + (drawn >= labels)
    raise InputError(f"a target must be {', '.join(RULES)} or a class, got {target!r}")
