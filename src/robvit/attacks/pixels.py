"""Pictures that survive being saved: whole grey levels inside the budget."""

from __future__ import annotations

import torch

from robvit.threat import Threat


def levels(x: torch.Tensor) -> torch.Tensor:
    """Pixels in [0,1] as grey levels: floats to uint8 of the same shape."""
    return (x * 255).round().to(torch.uint8)


def eight_bit(x: torch.Tensor, adv: torch.Tensor, threat: Threat) -> torch.Tensor:
    """The nearest whole grey levels n/255 inside the budget: (B 3 H W) -> (B 3 H W).

    Where rounding to the nearest level would leave the ball, every value of that picture is rounded
    towards the original instead, which never makes a perturbation of an 8-bit picture larger.
    """
    nearest = (adv * 255).round() / 255
    towards = torch.where(adv > x, (adv * 255).floor(), (adv * 255).ceil()) / 255
    # A hair of slack: 8/255 computed twice may differ in its last bit.
    inside = threat.size(nearest - x) <= threat.eps * (1 + 1e-5)
    inside &= (nearest - x).flatten(1).norm(dim=1) <= threat.radius(x)
    return torch.where(inside.view(-1, 1, 1, 1), nearest, towards)
