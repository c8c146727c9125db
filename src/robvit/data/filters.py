"""Filters of which corruptions are made: blurs, zooms and displacements of images (C H W) in [0,1]."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image


def to_pil(x: torch.Tensor) -> Image.Image:
    """A Pillow image of x (3 H W)."""
    return Image.fromarray((x * 255).round().byte().permute(1, 2, 0).numpy())


def from_pil(image: Image.Image) -> torch.Tensor:
    """The pixels (3 H W) of an RGB image."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def luminance(x: torch.Tensor) -> torch.Tensor:
    """How bright x (3 H W) looks: (1 H W)."""
    return (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)


def convolve(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """x (C H W) under a kernel of odd sides, normalised here; the image is continued by its mirror."""
    _, height, width = x.shape
    reach = kernel.shape[0] // 2
    rows, columns = (_mirrored_indices(side, reach) for side in (height, width))
    wide = x[:, rows][:, :, columns]
    size = wide.shape[1:]
    spectrum = torch.fft.rfft2(wide) * torch.fft.rfft2(kernel / kernel.sum(), size)
    whole: torch.Tensor = torch.fft.irfft2(spectrum, size)
    return whole[:, 2 * reach : 2 * reach + height, 2 * reach : 2 * reach + width]


def _mirrored_indices(side: int, reach: int) -> torch.Tensor:
    """The places -reach .. side + reach - 1 folded back into 0 .. side - 1."""
    places = torch.arange(-reach, side + reach) % (2 * side)
    return torch.where(places < side, places, 2 * side - 1 - places)


def gaussian_blur(x: torch.Tensor, sigma: float) -> torch.Tensor:
    """x (C H W) under a Gaussian."""
    steps = torch.arange(-math.ceil(4 * sigma), math.ceil(4 * sigma) + 1)
    bell = torch.exp(-(steps**2) / (2 * sigma**2))
    return convolve(x, bell[:, None] * bell[None, :])


def motion_kernel(radius: float, sigma: float, angle: float) -> torch.Tensor:
    """A line from the middle outwards, half a Gaussian along, one pixel wide (2R+1 2R+1)."""
    reach = math.ceil(radius)
    kernel = torch.zeros(2 * reach + 1, 2 * reach + 1)
    along = torch.arange(0, radius + 1e-6, 0.25)
    weight = torch.exp(-(along**2) / (2 * sigma**2))
    down, right = reach + along * math.sin(angle), reach + along * math.cos(angle)
    top, left = down.floor().clamp(max=2 * reach - 1), right.floor().clamp(max=2 * reach - 1)
    for dy in (0, 1):
        for dx in (0, 1):
            share = (1 - (down - top - dy).abs()) * (1 - (right - left - dx).abs())
            kernel.index_put_(((top + dy).long(), (left + dx).long()), weight * share, accumulate=True)
    return kernel


def zoom(x: torch.Tensor, factor: float) -> torch.Tensor:
    """The middle of x (C H W), enlarged to the size of the whole."""
    _, height, width = x.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    shrink = 1 / factor - 1
    return sample_at(x, (rows - (height - 1) / 2) * shrink, (columns - (width - 1) / 2) * shrink)


def sample_at(x: torch.Tensor, down: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """x (C H W) with every pixel taken from so many pixels (H W) down and right of it."""
    _, height, width = x.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    grid = torch.stack(((columns + right + 0.5) * 2 / width - 1, (rows + down + 0.5) * 2 / height - 1), -1)
    return F.grid_sample(x[None], grid[None], padding_mode="reflection", align_corners=False)[0]
