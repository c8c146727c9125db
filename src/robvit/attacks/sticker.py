"""Squares of pixels that are stuck on images at random places, so that they work wherever they lie.

Legend for shapes: B batch, S side of a square.
"""

from __future__ import annotations

import torch

from robvit.attacks.core import per_image_uniform
from robvit.threat import square

FIRST_STEP = 0.1  # of the range of a pixel; steps shrink from here


class Sticker:
    """A square of pixels for each image (B 3 S S), or one for all of them (1 3 S S)."""

    def __init__(self, pixels: torch.Tensor, seed: int) -> None:
        self.pixels, self.seed = pixels, seed

    def on(self, x: torch.Tensor, draw: str) -> torch.Tensor:
        """Images (B 3 H W) with the squares on them, at places decided by draw, seed and each image."""
        side = self.pixels.shape[-1]
        if side == 0:
            return x.clone()
        room = x.new_tensor([length - side + 1 for length in x.shape[-2:]])
        places = (per_image_uniform(x, self.seed, draw, 2) * room).long()
        self.covered = square(places, side, x.shape).expand(x.shape)
        stuck = x.clone()
        stuck[self.covered] = self.pixels.expand(len(x), -1, -1, -1).flatten()
        return stuck

    def under(self, slope: torch.Tensor) -> torch.Tensor:
        """The part of a slope (B 3 H W) that lies where the squares were stuck last: (B 3 S S)."""
        if not self.pixels.numel():
            return self.pixels
        return slope[self.covered].view(-1, *self.pixels.shape[1:])

    def move(self, up: torch.Tensor, size: float) -> None:
        """A step of the pixels along the signs of a slope (B 3 S S), its mean where all share one square."""
        up = up.mean(0, keepdim=True) if len(self.pixels) == 1 else up
        self.pixels = (self.pixels + size * up.sign()).clamp(0, 1)
