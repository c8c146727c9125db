"""Adversarial images that survive being saved: whole grey levels inside the budget."""

from __future__ import annotations

import math

import torch

from robvit.errors import InputError
from robvit.threat import Threat


def levels(x: torch.Tensor) -> torch.Tensor:
    """Pixels in [0,1] as grey levels: floats to uint8 of the same shape."""
    return (x * 255).round().to(torch.uint8)


def eight_bit(x: torch.Tensor, adv: torch.Tensor, threat: Threat) -> torch.Tensor:
    """Round adv (B 3 H W) to the nearest grey levels n/255 that are inside the budget around x.

    Where rounding to nearest would leave the ball, values round away from the original only from a
    larger fraction on, as small as the ball allows; rounding towards it never leaves the ball.
    """
    base = (x * 255).round()
    if bool((x * 255 - base).abs().max() > 1e-2):
        raise InputError("images must be 8-bit, values n/255, got others; round or reload them first")
    move = adv * 255 - base
    towards = move.trunc()
    slack = threat.tolerance(x)
    most = math.floor((min(threat.eps, 1.0) + slack) * 255) if threat.norm == "linf" else 255

    def rounded(fraction: torch.Tensor) -> torch.Tensor:
        away = (move - towards).abs() >= fraction.view(-1, 1, 1, 1)
        levels = (towards + away * move.sign()).clamp(-most, most)
        return torch.where(levels == 0, x, (base + levels).clamp(0, 255) / 255)

    def inside(image: torch.Tensor) -> torch.Tensor:
        delta = image.double() - x.double()
        visible = delta.flatten(1).square().sum(1).sqrt() > threat.radius(x) * (1 + 1e-6)
        return (threat.size(delta) <= threat.eps + slack) & ~visible

    low = torch.full((len(x),), 0.5, device=x.device, dtype=x.dtype)
    high = torch.where(inside(rounded(low)), 0.5, 1.01).to(low)
    for _ in range(12):
        middle = (low + high) / 2
        fits = inside(rounded(middle))
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return rounded(high)
