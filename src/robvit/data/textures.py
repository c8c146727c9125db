"""Weather made of noise: clouds, and ice grown on a pane."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw

PANES, PANE_SIDE = 5, 448
TINT = (0.88, 0.95, 1.0)


def clouds(height: int, width: int, decay: float, rng: torch.Generator) -> torch.Tensor:
    """Smooth noise in [0,1] (H W): every octave has twice the detail of the last and 1/decay its strength."""
    total = torch.zeros(1, 1, height, width)
    strength, cells = 1.0, 2
    while cells <= 2 * max(height, width):
        grid = torch.rand((1, 1, cells + 1, cells + 1), generator=rng)
        total += strength * F.interpolate(grid, (height, width), mode="bilinear", align_corners=True)
        strength, cells = strength / decay, 2 * cells
    low, high = total.aminmax()
    return ((total - low) / (high - low).clamp_min(1e-6))[0, 0]


def frost_on_glass(height: int, width: int, rng: torch.Generator) -> torch.Tensor:
    """A window onto one of a few frozen panes, (3 H W) in [0,1], turned and mirrored at random."""
    which, turns, top, left, span = torch.rand(5, generator=rng).tolist()
    pane = _pane(int(which * PANES)).rot90(int(turns * 4), (1, 2))
    side = min(round(PANE_SIDE * (0.5 + 0.4 * span)), 3 * max(height, width))  # or ferns blur to haze
    top, left = (int(share * (PANE_SIDE - side + 1)) for share in (top, left))
    cut = pane[:, top : top + side, left : left + side]
    return F.interpolate(cut[None], (height, width), mode="area")[0]


@cache
def _pane(number: int) -> torch.Tensor:
    """Ice ferns over a cloudy glaze, (3 P P): thick here, thin there, a little blue."""
    rng = torch.Generator().manual_seed(number)
    thick = clouds(PANE_SIDE, PANE_SIDE, 2.0, rng)
    grain = clouds(PANE_SIDE, PANE_SIDE, 1.15, rng)
    ice = (0.25 + 1.25 * thick) * (0.25 + 0.5 * grain + 1.1 * _ferns(PANE_SIDE, number))
    return ice.clamp(0, 1) * torch.tensor(TINT)[:, None, None]


def _ferns(side: int, seed: int) -> torch.Tensor:
    """Crystals that grow and branch at 60 degrees from random places, (S S) in [0,1]."""
    rng = np.random.default_rng(seed)
    page = Image.new("L", (2 * side, 2 * side))  # drawn larger, so that fine needles survive as grey
    pen = ImageDraw.Draw(page)

    def grow(x: float, y: float, angle: float, length: float, order: int) -> None:
        """One needle with branches on both sides, shorter towards the tip."""
        steps = max(3, int(length / side * 35)) if order else 1
        bend, shade = rng.normal(0, 0.03), int(rng.uniform(90, 255))
        for step in range(steps):
            there = (x + math.cos(angle) * length / steps, y + math.sin(angle) * length / steps)
            pen.line((x, y, *there), fill=shade, width=order + 1)
            (x, y), angle = there, angle + bend
            for turn in (-math.pi / 3, math.pi / 3) if order else ():
                branch = 0.4 * length * (1 - step / steps) * rng.uniform(0.5, 1)
                grow(x, y, angle + turn, branch, order - 1)

    for _ in range(40):
        x, y = (2 * side * rng.uniform(-0.05, 1.05, 2)).tolist()
        first = rng.uniform(0, 2 * math.pi)
        for arm in range(3):
            grow(x, y, first + arm * 2 * math.pi / 3, side * rng.uniform(0.15, 0.5), 2)
    return torch.from_numpy(np.array(page.resize((side, side), Image.Resampling.BOX))).float() / 255
