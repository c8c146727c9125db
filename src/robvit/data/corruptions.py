"""The fifteen common corruptions at five severities, on any image.

    corrupt(x, "fog", 3, seed=0)    x (3 H W) or (B 3 H W) in [0,1]

The kinds are those of Hendrycks and Dietterich (ICLR 2019), and so are most of the strengths, of which
they published two tables: one for images of 32 pixels, one for 224. An image takes the table its
size is nearer to, and lengths grow with its size. The code is our own: the frost is grown, not
photographed, and covers the image; glass displaces pixels at random instead of swapping them one by
one; elastic and, for small images, glass have strengths of their own, because the published ones do
not grow with the severity in pixels. Figures are therefore near those of the published sets, not equal.

Fog's third and fourth severity differ in detail, hardly in amount, as published. Results are rounded
to 8 bits, so that a corrupted image is an image like any other.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from robvit.data.filters import (
    convolve,
    from_pil,
    gaussian_blur,
    luminance,
    motion_kernel,
    sample_at,
    to_pil,
    zoom,
)
from robvit.data.textures import clouds, frost_on_glass
from robvit.errors import InputError, check_images
from robvit.registry import Registry
from robvit.specs import SEVERITIES as SEVERITIES
from robvit.specs import split_corruption

Change = Callable[[torch.Tensor, Any, float, torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class CorruptionInfo:
    """A corruption's group, and its strengths at five severities for small and for large images."""

    group: str
    small: tuple[Any, ...]
    large: tuple[Any, ...]


CORRUPTIONS: Registry[Change, CorruptionInfo] = Registry("corruption", CorruptionInfo)

_SIDES = {"small": 32, "large": 224}  # pixels the two tables were made for


def corrupt(x: torch.Tensor, name: str, severity: int, seed: int = 0) -> torch.Tensor:
    """Corrupt x (3 H W) or (B 3 H W) in [0,1]; the seed decides everything random.

    Image i of a batch comes out as it would alone under seed + i.
    """
    entry = CORRUPTIONS.entry(name)
    if severity not in SEVERITIES:
        raise InputError(f"severity must be one of 1, 2, 3, 4, 5, got {severity!r}")
    batch = x if x.ndim == 4 else x[None]
    check_images(batch)
    side = min(batch.shape[-2:])
    table = min(_SIDES, key=lambda name: abs(math.log(side / _SIDES[name])))
    strength, scale = getattr(entry.info, table)[severity - 1], side / _SIDES[table]
    done = []
    for i, image in enumerate(batch.detach().cpu().float()):
        randomness = torch.Generator().manual_seed(seed + i)
        changed = entry.value(image, strength, scale, randomness)
        done.append((changed.clamp(0, 1) * 255).round() / 255)
    return torch.stack(done).to(x).view_as(x)


def parse_corruption(text: str) -> tuple[str, int]:
    """The name and the severity in "fog:3"."""
    name = text.partition(":")[0]
    CORRUPTIONS.entry(name)
    return split_corruption(text)


@CORRUPTIONS.add(group="noise", small=(0.04, 0.06, 0.08, 0.09, 0.10), large=(0.08, 0.12, 0.18, 0.26, 0.38))
def gaussian_noise(x: torch.Tensor, sigma: float, scale: float, rng: torch.Generator) -> torch.Tensor:
    return x + sigma * torch.randn(x.shape, generator=rng)


@CORRUPTIONS.add(group="noise", small=(500, 250, 100, 75, 50), large=(60, 25, 12, 5, 3))
def shot_noise(x: torch.Tensor, photons: float, scale: float, rng: torch.Generator) -> torch.Tensor:
    """A pixel of full brightness counts that many photons on average."""
    return torch.poisson(x * photons, generator=rng) / photons


@CORRUPTIONS.add(group="noise", small=(0.01, 0.02, 0.03, 0.05, 0.07), large=(0.03, 0.06, 0.09, 0.17, 0.27))
def impulse_noise(x: torch.Tensor, share: float, scale: float, rng: torch.Generator) -> torch.Tensor:
    """That share of the values becomes black or white."""
    chance = torch.rand(x.shape, generator=rng)
    return torch.where(chance < share / 2, 0.0, torch.where(chance > 1 - share / 2, 1.0, x))


@CORRUPTIONS.add(
    group="blur",
    small=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    large=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
)
def defocus_blur(
    x: torch.Tensor, disc: tuple[float, float], scale: float, rng: torch.Generator
) -> torch.Tensor:
    """A disc of that radius, its edge softened by a Gaussian."""
    radius, soft = (scale * value for value in disc)
    reach = math.ceil(radius)
    steps = torch.arange(-reach, reach + 1.0)
    kernel = (radius + 0.5 - torch.hypot(steps[:, None], steps[None, :])).clamp(0, 1)
    return gaussian_blur(convolve(x, kernel), soft)


@CORRUPTIONS.add(
    group="blur",
    small=((0.3, 0.6, 1), (0.3, 0.7, 1), (0.3, 0.9, 1), (0.3, 0.9, 2), (0.3, 1.2, 2)),
    large=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
def glass_blur(
    x: torch.Tensor, glass: tuple[float, float, int], scale: float, rng: torch.Generator
) -> torch.Tensor:
    """Pixels come from a random place nearby, several times over, between two slight blurs."""
    sigma, reach, times = scale * glass[0], scale * glass[1], glass[2]
    x = gaussian_blur(x, sigma)
    _, height, width = x.shape
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    for _ in range(times):
        down, right = (reach * (2 * torch.rand((2, height, width), generator=rng) - 1)).round().long()
        x = x[:, (rows + down).clamp(0, height - 1), (columns + right).clamp(0, width - 1)]
    return gaussian_blur(x, sigma)


@CORRUPTIONS.add(
    group="blur",
    small=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    large=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
)
def motion_blur(
    x: torch.Tensor, motion: tuple[float, float], scale: float, rng: torch.Generator
) -> torch.Tensor:
    """Smeared along one direction, fading to one side."""
    radius, sigma = (scale * value for value in motion)
    return convolve(x, motion_kernel(radius, sigma, float(torch.rand(1, generator=rng) - 0.5) * math.pi / 2))


@CORRUPTIONS.add(
    group="blur",
    small=((0.06, 0.01), (0.11, 0.01), (0.16, 0.01), (0.21, 0.01), (0.26, 0.01)),
    large=((0.11, 0.01), (0.16, 0.01), (0.21, 0.02), (0.26, 0.02), (0.31, 0.03)),
)
def zoom_blur(x: torch.Tensor, span: tuple[float, float], scale: float, rng: torch.Generator) -> torch.Tensor:
    """The mean of the image and its enlargements, below 1 + end, in steps."""
    end, step = span
    factors = [1 + i * step for i in range(round(end / step))]
    enlarged = torch.stack([zoom(x, factor) for factor in factors])
    return (x + enlarged.sum(0)) / (len(factors) + 1)


@CORRUPTIONS.add(
    group="weather",
    small=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    large=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
)
def snow(x: torch.Tensor, snow: tuple[float, ...], scale: float, rng: torch.Generator) -> torch.Tensor:
    """Flakes where a random layer passes a threshold, blown along one direction, over a paler image."""
    mean, spread, size, threshold, radius, sigma, keep = snow
    layer = mean + spread * torch.randn((1, *x.shape[1:]), generator=rng)
    layer = zoom(layer, max(1.0, size * scale)).clamp(0, 1)
    layer = torch.where(layer < threshold, 0.0, layer)
    angle = (0.25 + 0.5 * float(torch.rand(1, generator=rng))) * math.pi
    flakes = convolve(layer, motion_kernel(scale * radius, scale * sigma, angle))
    pale = torch.maximum(x, 1.5 * luminance(x) + 0.5)
    return keep * x + (1 - keep) * pale + flakes + flakes.rot90(2, (1, 2))


@CORRUPTIONS.add(group="weather", small=(0.2, 0.3, 0.4, 0.5, 0.6), large=(0.4, 0.6, 0.75, 0.9, 1.0))
def frost(x: torch.Tensor, opacity: float, scale: float, rng: torch.Generator) -> torch.Tensor:
    """The image behind a pane with ice on it, which shows through where the ice is thin."""
    ice = opacity * frost_on_glass(x.shape[1], x.shape[2], rng)
    return x * (1 - ice) + ice


@CORRUPTIONS.add(
    group="weather",
    small=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    large=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
)
def fog(x: torch.Tensor, fog: tuple[float, float], scale: float, rng: torch.Generator) -> torch.Tensor:
    """Clouds whose detail fades by `decay` from one octave to the next, added at the same brightness."""
    amount, decay = fog
    top = float(x.max())
    return (x + amount * clouds(x.shape[1], x.shape[2], decay, rng)) * top / (top + amount)


@CORRUPTIONS.add(group="weather", small=(0.05, 0.1, 0.15, 0.2, 0.3), large=(0.1, 0.2, 0.3, 0.4, 0.5))
def brightness(x: torch.Tensor, more: float, scale: float, rng: torch.Generator) -> torch.Tensor:
    """The value, the largest of the three colours, rises at the same hue and saturation."""
    value = x.amax(0, keepdim=True)
    lit = (value + more).clamp(max=1)
    return torch.where(value > 0, x * lit / value.clamp_min(1e-6), lit)


@CORRUPTIONS.add(group="digital", small=(0.75, 0.5, 0.4, 0.3, 0.15), large=(0.4, 0.3, 0.2, 0.1, 0.05))
def contrast(x: torch.Tensor, keep: float, scale: float, rng: torch.Generator) -> torch.Tensor:
    mean = x.mean((1, 2), keepdim=True)
    return mean + keep * (x - mean)


@CORRUPTIONS.add(
    group="digital",
    small=((0.4, 4), (0.6, 3.5), (0.8, 3), (1.0, 2.5), (1.2, 2)),
    large=((1.2, 14), (1.6, 11), (2.0, 8), (2.4, 6.5), (2.8, 5)),
)
def elastic_transform(
    x: torch.Tensor, bend: tuple[float, float], scale: float, rng: torch.Generator
) -> torch.Tensor:
    """Every pixel comes from a place nearby, `reach` pixels off on average, in waves of about `smooth`."""
    reach, smooth = (scale * value for value in bend)
    _, height, width = x.shape
    offset = gaussian_blur(torch.randn((2, height, width), generator=rng), smooth)
    offset *= reach / offset.square().mean().sqrt().clamp_min(1e-6)
    return sample_at(x, *offset)


@CORRUPTIONS.add(group="digital", small=(0.95, 0.9, 0.85, 0.75, 0.65), large=(0.6, 0.5, 0.4, 0.3, 0.25))
def pixelate(x: torch.Tensor, share: float, scale: float, rng: torch.Generator) -> torch.Tensor:
    """Shrunk to that share of its size and enlarged again, without smoothing."""
    image = to_pil(x)
    small = image.resize([max(1, round(side * share)) for side in image.size], Image.Resampling.BOX)
    return from_pil(small.resize(image.size, Image.Resampling.BOX))


@CORRUPTIONS.add(group="digital", small=(80, 65, 58, 50, 40), large=(25, 18, 15, 10, 7))
def jpeg_compression(x: torch.Tensor, quality: int, scale: float, rng: torch.Generator) -> torch.Tensor:
    file = io.BytesIO()
    to_pil(x).save(file, "JPEG", quality=quality)
    with Image.open(file) as image:
        return from_pil(image)
