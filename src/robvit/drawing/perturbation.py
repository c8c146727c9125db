"""What an attack added, made visible: rescaled to colours or to grey, or amplified around mid-grey."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from robvit.drawing.images import Pixels
from robvit.errors import InputError, check_images

LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue look


def rescaled_perturbation(x: torch.Tensor, adv: torch.Tensor, *, eps: float | None = None) -> torch.Tensor:
    """The perturbation as a colour image, -eps..eps to 0..1: (B 3 H W) twice -> (B 3 H W).

    Without `eps` each image's own largest change fills the range; no change is mid-grey.
    """
    check_images(x)
    if adv.shape != x.shape:
        raise InputError(f"both images must be of one shape, got {tuple(x.shape)} and {tuple(adv.shape)}")
    if eps is not None and not eps > 0:
        raise InputError(f"eps must be above zero, got {eps}; leave it out to use the largest change")
    delta = adv - x
    reach = delta.abs().amax((1, 2, 3), keepdim=True) if eps is None else torch.full_like(delta[:1], eps)
    return ((delta / reach.clamp_min(1e-12) + 1) / 2).clamp(0, 1)


def grey_perturbation(x: torch.Tensor, adv: torch.Tensor, *, eps: float | None = None) -> torch.Tensor:
    """The perturbation's intensity, `rescaled_perturbation` without its colours: (B 1 H W) in [0,1]."""
    weights = torch.tensor(LUMA, device=x.device, dtype=x.dtype).view(1, 3, 1, 1)
    return (rescaled_perturbation(x, adv, eps=eps) * weights).sum(1, keepdim=True).clamp(0, 1)


def amplification(pairs: Iterable[tuple[Pixels, Pixels]]) -> int:
    """The factor at which the largest change of all (clean, adversarial) pairs just fills the range."""
    most = max((int(np.abs(adv.astype(int) - clean).max()) for clean, adv in pairs), default=0)
    return max(1, 127 // most) if most else 1


def amplified(clean: Pixels, adv: Pixels, factor: int) -> Pixels:
    """The change in grey levels, `factor` times as large, around mid-grey: uint8 (H W 3)."""
    grey: Pixels = np.clip(128 + factor * (adv.astype(int) - clean), 0, 255).astype(np.uint8)
    return grey
