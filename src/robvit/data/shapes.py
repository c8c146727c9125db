"""Drawn scenes whose masks are exact: textured, lit, overlapping objects, at any size.

A scene is a recipe in the unit square, fixed by a seed and an index, so every size shows the same
scene. Every form is a signed distance: a pixel belongs to the object if its centre is inside, while
its colour fades over the edge. The mask is therefore sharp and right where the image is smooth.

Colour and texture say nothing about the class, only the form does.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

Field: TypeAlias = npt.NDArray[Any]  # float32, one number a pixel (H W)
Form: TypeAlias = Callable[[Field, Field], tuple[Field, Field]]  # (u, v) -> distance, part 0, 1 or 2

SIDE = 224  # pixels, where no size is asked for
COUNTS = {"train": 2000, "test": 500}
REACH = 1.4  # in radii: no form, leaning and stretched, reaches farther from its middle

_STREAM = {"train": 1, "test": 2}
_OBJECTS = (4, 9)  # at least, fewer than
_RADIUS = (0.10, 0.24)  # of the image's side


@dataclass(frozen=True)
class Scene:
    """One scene of a split; `render` draws it."""

    split: str
    index: int

    def render(self, side: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The image, uint8 (3 S S), and the class of every pixel, uint8 (S S)."""
        rng = np.random.default_rng([_STREAM[self.split], self.index])
        image = background(rng, side)
        mask = np.zeros((side, side), np.uint8)
        for _ in range(rng.integers(*_OBJECTS)):
            _add_object(rng, image, mask)
        image *= light(rng, side)
        image += rng.uniform(0.005, 0.03) * rng.standard_normal(image.shape, np.float32)
        pixels = (image.clip(0, 1) * 255).round().astype(np.uint8)
        return torch.from_numpy(pixels), torch.from_numpy(mask)


class Scenes:
    """All scenes of a split."""

    def __init__(self, split: str) -> None:
        self.split = split

    def __len__(self) -> int:
        return COUNTS[self.split]

    def __getitem__(self, index: int, /) -> Scene:
        return Scene(self.split, index)


def _add_object(rng: np.random.Generator, image: Field, mask: npt.NDArray[np.uint8]) -> None:
    """Draw one object, with its shadow, over image (3 S S) and mask (S S)."""
    label = int(rng.integers(1, len(CLASSES)))
    form, lean = FORMS[CLASSES[label]]
    here, inside = paint_form(rng, image, form, lean)
    mask[here][inside] = label


def paint_form(
    rng: np.random.Generator,
    image: Field,
    form: Form,
    lean: float,
    *,
    radius: tuple[float, float] = _RADIUS,
    middle: tuple[float, float] = (0.05, 0.95),
) -> tuple[tuple[slice, slice], npt.NDArray[np.bool_]]:
    """Draw one form over image (3 S S); where it was painted, and which pixels there are inside.

    Its radius and its middle are drawn from these shares of the image's side.
    """
    side = image.shape[1]
    size = side * rng.uniform(*radius)  # plain floats from here on: numpy's would widen the arrays
    place = (side * rng.uniform(*middle, 2)).tolist()
    turn = rng.uniform(-lean, lean)
    stretch = rng.uniform(0.85, 1.15)
    palette, texture, shadow = _palette(rng), _texture(rng), (size * rng.uniform(0.04, 0.15, 2)).tolist()

    def local(right: float = 0.0, down: float = 0.0) -> tuple[Field, Field]:
        dx, dy = columns - (place[0] + right), rows - (place[1] + down)
        u = (dx * math.cos(turn) + dy * math.sin(turn)) / (size * stretch)
        v = (dy * math.cos(turn) - dx * math.sin(turn)) * stretch / size
        return u, v

    reach = REACH * size + max(shadow) + 2
    (left, right), (top, bottom) = ((max(0, int(m - reach)), min(side, math.ceil(m + reach))) for m in place)
    rows, columns = np.mgrid[top:bottom, left:right].astype(np.float32) + 0.5
    here = (slice(top, bottom), slice(left, right))
    depth = form(*local(*shadow))[0] * size
    image[:, *here] *= 1 - 0.45 * (0.5 - depth / (0.16 * size)).clip(0, 1)

    u, v = local()
    distance, part = form(u, v)
    paint = palette[part.astype(int)].transpose(2, 0, 1) * texture(u, v)
    paint *= 1 + 0.25 * (-u - v).clip(-1, 1) * (1 - np.exp(4 * distance.clip(-1, 0)))  # as if rounded
    cover = (0.5 - distance * size).clip(0, 1)
    image[:, *here] += (paint - image[:, *here]) * cover
    return here, distance < 0


def background(rng: np.random.Generator, side: int) -> Field:
    """Two colours mixed by cloudy noise, with or without a pattern over them: (3 S S)."""
    first, second, third = _palette(rng)
    mix = _clouds(rng, side)
    field: Field = first[:, None, None] * mix + second[:, None, None] * (1 - mix)
    v, u = np.mgrid[0:side, 0:side].astype(np.float32) / side * 2 - 1
    pattern = _texture(rng, scale=rng.uniform(1, 4))(u, v)
    grain = _clouds(rng, side, coarsest=16)
    field *= 0.6 + 0.4 * pattern
    field += 0.25 * (third[:, None, None] - field) * grain
    return field


def light(rng: np.random.Generator, side: int) -> Field:
    """One lamp: brighter on one side, and a bright spot somewhere (S S)."""
    v, u = np.mgrid[0:side, 0:side].astype(np.float32) / side * 2 - 1
    angle, (a, b) = rng.uniform(0, 2 * math.pi), rng.uniform(-1, 1, 2).tolist()
    slope = u * math.cos(angle) + v * math.sin(angle)
    spot = np.exp(-((u - a) ** 2 + (v - b) ** 2) / 0.5)
    light: Field = rng.uniform(0.75, 1.1) + rng.uniform(0, 0.3) * slope + rng.uniform(0, 0.35) * spot
    return light


def _clouds(rng: np.random.Generator, side: int, coarsest: int = 3) -> Field:
    """Smooth noise of four octaves in [0,1] (S S), the same at every size."""
    total: Field = np.zeros((side, side), np.float32)
    for octave in range(4):
        grid = rng.random((coarsest * 2**octave,) * 2, np.float32)
        total += np.asarray(Image.fromarray(grid).resize((side, side), Image.Resampling.BICUBIC)) / 2**octave
    total -= total.min()
    total /= max(float(total.max()), 1e-6)
    return total


def _palette(rng: np.random.Generator) -> Field:
    """Three colours (3 3), a row each; they differ in hue and lightness."""
    hue = rng.random()
    values = rng.permutation([0.35, 0.65, 0.95]) + rng.uniform(-0.12, 0.05, 3)
    rows = [
        colorsys.hsv_to_rgb((hue + i * rng.uniform(0.12, 0.45)) % 1, rng.uniform(0.1, 0.95), values[i])
        for i in range(3)
    ]
    return np.array(rows, np.float32)


def _texture(rng: np.random.Generator, scale: float = 1.0) -> Callable[[Field, Field], Field]:
    """A pattern over local coordinates, about 0.5 to 1: plain, stripes, checks, dots or marble."""
    kind, angle = rng.integers(5), rng.uniform(0, math.pi)
    pitch, phase = scale * rng.uniform(4, 14), rng.uniform(0, 7)
    deep = rng.uniform(0.15, 0.5)

    def texture(u: Field, v: Field) -> Field:
        a = pitch * (u * math.cos(angle) + v * math.sin(angle)) + phase
        b = pitch * (v * math.cos(angle) - u * math.sin(angle))
        waves = {
            0: lambda: np.ones_like(u),
            1: lambda: np.sin(a),
            2: lambda: (4 * np.sin(a) * np.sin(b)).clip(-1, 1),
            3: lambda: (3 * (np.sin(a) + np.sin(b)) - 2).clip(-1, 1),
            4: lambda: np.sin(a + 2 * np.sin(0.7 * b) + np.sin(1.9 * a)),
        }
        tone: Field = 1 - deep * (0.5 - 0.5 * waves[int(kind)]())
        return tone

    return texture


# Forms: signed distance in radii, negative inside, and the part that chooses the colour.


def _box(u: Field, v: Field, half_width: float, half_height: float) -> Field:
    x, y = np.abs(u) - half_width, np.abs(v) - half_height
    distance: Field = np.hypot(x.clip(0), y.clip(0)) + np.maximum(x, y).clip(max=0)
    return distance


def _polygon(u: Field, v: Field, corners: list[tuple[float, float]]) -> Field:
    """Distance to the nearest edge; its sign by counting the edges crossed to the right."""
    nearest = np.full_like(u, np.inf)
    inside = np.zeros(u.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, [*corners[1:], corners[0]], strict=True):
        ex, ey = bx - ax, by - ay
        along = (((u - ax) * ex + (v - ay) * ey) / (ex * ex + ey * ey)).clip(0, 1)
        nearest = np.minimum(nearest, np.hypot(u - ax - along * ex, v - ay - along * ey))
        if ey:
            inside ^= ((ay > v) != (by > v)) & (u < ex * (v - ay) / ey + ax)
    return np.where(inside, -nearest, nearest)


def _ball(u: Field, v: Field) -> tuple[Field, Field]:
    return np.hypot(u, v) - 1, np.zeros_like(u)


def _ring(u: Field, v: Field) -> tuple[Field, Field]:
    return np.abs(np.hypot(u, v) - 0.74) - 0.26, np.zeros_like(u)


def _star(u: Field, v: Field) -> tuple[Field, Field]:
    fifth = 2 * math.pi / 5
    angle = np.abs((np.arctan2(u, -v) + fifth / 2) % fifth - fifth / 2)  # the star folded into half a ray
    far = np.hypot(u, v)
    x, y = far * np.sin(angle), far * np.cos(angle)
    tip, notch = (0.0, 1.1), (0.45 * math.sin(fifth / 2), 0.45 * math.cos(fifth / 2))
    ex, ey = notch[0] - tip[0], notch[1] - tip[1]
    along = ((x * ex + (y - tip[1]) * ey) / (ex * ex + ey * ey)).clip(0, 1)
    outside = x * -ey + (y - tip[1]) * ex > 0
    distance = np.hypot(x - along * ex, y - tip[1] - along * ey)
    return np.where(outside, distance, -distance), np.zeros_like(u)


def _bars(u: Field, v: Field) -> tuple[Field, Field]:
    nearest = np.clip(np.round(u / 0.64), -1, 1)
    return _box(u - nearest * 0.64, v, 0.18, 0.75), np.abs(nearest)


def _house(u: Field, v: Field) -> tuple[Field, Field]:
    walls = _box(u, v - 0.4, 0.7, 0.55)
    roof = _polygon(u, v, [(-1.0, -0.1), (0.0, -1.0), (1.0, -0.1)])
    door = _box(u + 0.2, v - 0.62, 0.17, 0.33)
    window = _box(u - 0.36, v - 0.35, 0.18, 0.18)
    part = np.where(roof < 0, 1, np.where(np.minimum(door, window) < 0, 2, 0))
    return np.minimum(walls, roof), part.astype(np.float32)


def _tree(u: Field, v: Field) -> tuple[Field, Field]:
    trunk = _box(u, v - 0.7, 0.13, 0.4)
    crown = np.full_like(u, np.inf)
    for x, y, r in ((0.0, -0.55, 0.5), (-0.42, -0.1, 0.45), (0.42, -0.1, 0.45), (0.0, 0.0, 0.45)):
        crown = np.minimum(crown, np.hypot(u - x, v - y) - r)
    return np.minimum(trunk, crown), (crown > 0).astype(np.float32)


def _fish(u: Field, v: Field) -> tuple[Field, Field]:
    length = np.hypot(u / 0.75, v / 0.45)  # a level of an ellipse, turned into a distance by its slope
    slope = np.hypot(u / 0.75**2, v / 0.45**2)
    body = (length - 1) * length / np.maximum(slope, 1e-3)
    tail = _polygon(u, v, [(0.5, 0.0), (1.1, -0.5), (0.95, 0.0), (1.1, 0.5)])
    eye = np.hypot(u + 0.45, v + 0.1) - 0.08
    part = np.where(eye < 0, 2, np.where(body > 0, 1, 0))
    return np.minimum(body, tail), part.astype(np.float32)


def petals(count: int) -> Form:
    """A flower of so many petals."""

    def flower(u: Field, v: Field) -> tuple[Field, Field]:
        far = np.hypot(u, v)
        angle = count * np.arctan2(v, u)
        edge, steep = 0.72 + 0.33 * np.cos(angle), 0.33 * count * np.sin(angle) / np.maximum(far, 0.2)
        distance = (far - edge) / np.hypot(1, steep)
        return distance, (far < 0.28).astype(np.float32)

    return flower


# Each form, and how far it may lean; houses and trees stand upright, more or less.
FORMS: dict[str, tuple[Form, float]] = {
    "ball": (_ball, math.pi),
    "ring": (_ring, math.pi),
    "star": (_star, math.pi),
    "bars": (_bars, math.pi),
    "house": (_house, 0.35),
    "tree": (_tree, 0.35),
    "fish": (_fish, math.pi),
    "flower": (petals(6), math.pi),
}
CLASSES = ["background", *FORMS]
