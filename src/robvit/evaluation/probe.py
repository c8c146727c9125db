"""What a model of foreign code answers to a few fixed images: its code has no other name."""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import nn

SIDES = (32, 224)  # tried where nobody says which size the network takes
LEVELS = 500  # of the largest answer; rounding of another machine or batch is far below one of them


def probe_images(side: int) -> torch.Tensor:
    """Two noisy and two smooth images (4 3 H W), the same on every machine."""
    seeded = torch.Generator().manual_seed(1)
    noisy = torch.rand(2, 3, side, side, generator=seeded)
    smooth = F.interpolate(torch.rand(2, 3, 4, 4, generator=seeded), side, mode="bilinear")
    return torch.cat((noisy, smooth))


@torch.no_grad()
def answers_digest(net: nn.Module, size: int | None) -> str:
    """A checksum of what the network answers to the probe images, too coarse for rounding to change it.

    "random" if it answers twice in two ways, "unknown" if it takes images of no size that was tried.
    """
    device = next(iter(net.parameters()), torch.zeros(0)).device
    before, _ = net.training, net.eval()
    try:
        return _digest(net, SIDES if size is None else (size,), device)
    finally:
        net.train(before)


def _digest(net: nn.Module, sides: tuple[int, ...], device: torch.device) -> str:
    for side in sides:
        x = probe_images(side).to(device)
        try:
            first, second = (_levels(net(x)) for _ in range(2))
        except Exception:  # noqa: S112  foreign code refuses a size in whatever way it likes
            continue
        if not torch.equal(first, second):
            return "random"
        return hashlib.sha256(f"{tuple(first.shape)} {first.tolist()}".encode()).hexdigest()[:32]
    return "unknown"


def _levels(answer: torch.Tensor) -> torch.Tensor:
    finite = torch.nan_to_num(answer.double().cpu())
    return (finite / finite.abs().max().clamp_min(1e-12) * LEVELS).round().long()
