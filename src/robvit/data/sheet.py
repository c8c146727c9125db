"""A contact sheet: some images of a set on one page, with their labels, to see what a model will see."""

from __future__ import annotations

import colorsys
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from robvit.data.corruptions import CORRUPTIONS, SEVERITIES
from robvit.data.dataset import ImageDataset
from robvit.data.shapes import SIDE
from robvit.errors import IGNORE
from robvit.files import written_whole

TILE, GAP, TEXT = 112, 8, 16
MAX_TILES, COLUMNS = 64, 8
SMALL = 64  # pixels; such images have corruptions of their own strength


def contact_sheet(images: ImageDataset, path: str | Path, *, count: int = MAX_TILES) -> int:
    """Write up to `count` images, spread evenly over the set, as one PNG; how many there are.

    Masks are laid over their images in colours; void stays as it is.
    """
    count = min(count, len(images))
    shown = images.take(i * len(images) // count for i in range(count))
    if images.size is None:
        shown = shown.sized(TILE, "crop")
    tiles = []
    for place, name in enumerate(shown.names):
        x, y = shown[place]
        label = shown.classes[y] if isinstance(y, int) and 0 <= y < len(shown.classes) else Path(name).name
        tiles.append((_tile(x, y), label))
    _write_page(path, tiles, min(COLUMNS, count))
    return count


def corruption_sheet(images: ImageDataset, path: str | Path) -> int:
    """Write every corruption as a row, clean and then the five severities; how many rows there are.

    Each row shows another image. Small images are corrupted as they are, others at 224 pixels.
    """
    size = images.size or (SIDE if max(images.shape(0)) > SMALL else None)
    tiles = []
    for row, entry in enumerate(CORRUPTIONS):
        one = images.take([row * len(images) // len(CORRUPTIONS)]).sized(size, "crop")
        tiles.append((_tile(one[0][0], 0), "clean"))
        for severity in SEVERITIES:
            corruption = f"{entry.name}:{severity}"
            tiles.append((_tile(one.corrupted(corruption)[0][0], 0), corruption))
    _write_page(path, tiles, 1 + len(SEVERITIES))
    return len(CORRUPTIONS)


def _write_page(path: str | Path, tiles: list[tuple[Image.Image, str]], columns: int) -> None:
    """Lay out tiles with a line of text below each, row by row, as one PNG."""
    rows = -(-len(tiles) // columns)
    page = Image.new("RGB", (columns * (TILE + GAP) + GAP, rows * (TILE + TEXT + GAP) + GAP), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(11)
    for place, (tile, text) in enumerate(tiles):
        left = GAP + place % columns * (TILE + GAP)
        top = GAP + place // columns * (TILE + TEXT + GAP)
        page.paste(tile, (left, top))
        draw.text((left, top + TILE + 1), _shortened(text, font), fill="black", font=font)
    with written_whole(path) as aside:
        page.save(aside, format="PNG")


def _tile(x: torch.Tensor, y: int | torch.Tensor) -> Image.Image:
    if isinstance(y, torch.Tensor):
        inked = (y != IGNORE).float() * 0.5
        x = x * (1 - inked) + _colours()[y].permute(2, 0, 1) * inked
    pixels = (x * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    return Image.fromarray(pixels.numpy()).resize((TILE, TILE), Image.Resampling.BILINEAR)


def _colours() -> torch.Tensor:
    """A colour for every class (256 3); neighbours in number are far apart in hue."""
    return torch.tensor([colorsys.hsv_to_rgb(i * 0.618 % 1, 0.9, 0.95) for i in range(256)])


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if font.getlength(text) <= TILE:
        return text
    while text and font.getlength(text + "...") > TILE:
        text = text[:-1]
    return text + "..."
