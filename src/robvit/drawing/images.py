"""Tensors as images: photographs, heat maps, signed maps, masks and marked patches; and images as files."""

from __future__ import annotations

import base64
import colorsys
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from robvit.drawing.style import font
from robvit.errors import IGNORE
from robvit.files import written_whole

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]  # (H W 3)

# From dark over green to light: brightness rises evenly, so that it reads without colours too.
_HEAT = np.array(
    [(22, 20, 52), (38, 62, 120), (24, 120, 132), (92, 172, 96), (232, 208, 72), (255, 250, 214)]
)
_BLUE, _WHITE, _RED = (np.array(c) for c in ((33, 75, 160), (255, 255, 255), (178, 24, 43)))
SMALL_IMAGE = 64  # images up to this side are enlarged pixel by pixel
_MARK = "#ffd400"
_NEAREST = Image.Resampling.NEAREST


def pixels(x: torch.Tensor) -> Pixels:
    """An image (3 H W) or (1 H W) in [0,1] as grey levels, uint8 (H W 3)."""
    levels = (x.detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8)
    array: Pixels = levels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    return array


def photo(x: torch.Tensor) -> Image.Image:
    """An image (3 H W) or (1 H W) in [0,1]."""
    return Image.fromarray(pixels(x))


def heat(
    values: torch.Tensor | np.ndarray[tuple[int, int], np.dtype[np.float32]],
    under: Image.Image | None = None,
    *,
    share: float = 0.98,
) -> Image.Image:
    """Values (rows columns) as colours, dark for the least; over the grey of an image if there is one.

    The brightest colour stands at the quantile `share`, so that single outliers do not darken the rest.
    """
    values = torch.as_tensor(values).detach().float().cpu()
    low, high = float(values.min()), float(values.flatten().quantile(share))
    level = ((values - low) / max(high - low, 1e-12)).clamp(0, 1).numpy() * (len(_HEAT) - 1)
    stops = np.arange(len(_HEAT))
    colours = np.stack([np.interp(level, stops, _HEAT[:, channel]) for channel in range(3)], axis=-1)
    tile = Image.fromarray(colours.round().astype(np.uint8))
    if under is None:
        return tile
    grey = under.convert("L").convert("RGB")
    side = (max(grey.width, tile.width), max(grey.height, tile.height))
    return Image.blend(tile.resize(side, _NEAREST), grey.resize(side, _NEAREST), 0.3)


def signed(values: torch.Tensor, reach: float) -> Image.Image:
    """Values (rows columns) in -reach..reach as an image: blue, over white at zero, to red."""
    share = (values / reach).clamp(-1, 1).cpu().numpy()[..., None]
    colours = _WHITE + (np.where(share > 0, _RED, _BLUE) - _WHITE) * np.abs(share)
    return Image.fromarray(colours.round().astype(np.uint8))


def palette(classes: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """A colour for every class of a mask (256 3), apart in hue and in lightness; all others are white."""
    hues = [colorsys.hls_to_rgb(k / classes, 0.35 + 0.3 * (k % 2), 0.6) for k in range(classes)]
    colours = np.full((256, 3), 255, dtype=np.uint8)
    colours[:classes] = (np.array(hues) * 255).astype(np.uint8)
    return colours


def coloured_mask(mask: torch.Tensor, classes: int) -> Image.Image:
    """A mask (H W) as colours; ignored pixels are white."""
    return Image.fromarray(palette(classes)[mask.cpu().numpy()])


def mask_over(x: torch.Tensor, mask: torch.Tensor, classes: int) -> Image.Image:
    """An image (3 H W) in [0,1] with the colours of its mask (H W) over it; ignored pixels stay."""
    known = Image.fromarray((mask != IGNORE).numpy())
    under = photo(x)
    return Image.composite(Image.blend(under, coloured_mask(mask, classes), 0.5), under, known)


def mark_patches(x: torch.Tensor, places: dict[str, int], size: tuple[int, int]) -> Image.Image:
    """An image (3 H W) with a frame and a letter around some patches, counted row by row of a grid."""
    side = 420
    page = photo(x).resize((side, side), _NEAREST)
    pen = ImageDraw.Draw(page)
    wide, high = side / size[1], side / size[0]
    for letter, place in places.items():
        left, top = place % size[1] * wide, place // size[1] * high
        box = (left, top, left + wide, top + high)
        pen.rectangle(box, outline="black", width=6)
        pen.rectangle(box, outline=_MARK, width=3)
        at = (min(left + wide + 4, side - 24), min(top, side - 34))
        pen.text(at, letter, fill=_MARK, font=font(34), stroke_width=3, stroke_fill="black")
    return page


def enlarge(tile: Image.Image, side: int) -> Image.Image:
    """A square of this side: small images keep their pixels visible, large ones are smoothed."""
    way = _NEAREST if max(tile.size) <= SMALL_IMAGE else Image.Resampling.LANCZOS
    return tile.resize((side, side), way)


def save_png(image: Image.Image, path: str | Path, *, levels: int = 256) -> None:
    """Write a PNG, whole or not at all; with fewer `levels` of each colour it is smaller."""
    if levels < 256:
        step = 255 / (levels - 1)
        image = image.point([round(round(value / step) * step) for value in range(256)] * 3)
    with written_whole(path) as aside:
        image.save(aside, format="PNG", optimize=levels < 256)


def encoded(image: Image.Image | Pixels, format: str = "PNG", **settings: int | bool) -> bytes:
    """An image as a file's bytes."""
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    buffer = io.BytesIO()
    image.save(buffer, format, **settings)
    return buffer.getvalue()


def data_url(file: bytes, format: str = "PNG") -> str:
    """An image file as an address that holds it."""
    return f"data:image/{format.lower()};base64,{base64.b64encode(file).decode()}"
