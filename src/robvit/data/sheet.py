"""Contact sheets: some images of a dataset on one page, with their labels, to see what a model will see."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from robvit.data.corruptions import CORRUPTIONS, SEVERITIES
from robvit.data.dataset import ImageDataset
from robvit.data.shapes import SIDE
from robvit.drawing.grid import Tile, draw_grid, tiled
from robvit.drawing.images import mask_over, photo, save_png
from robvit.drawing.sheet import framed

MAX_TILES, COLUMNS = 64, 8
TILE = 140  # pixels, at most
SMALL = 64  # pixels; such images have corruptions of their own strength


def contact_sheet(images: ImageDataset, path: str | Path, *, count: int = MAX_TILES) -> int:
    """Write up to `count` images, spread evenly over the set, as one PNG; how many there are.

    Masks are laid over their images in colours; void stays as it is.
    """
    count = min(count, len(images))
    shown = images.take(i * len(images) // count for i in range(count))
    if images.size is None:
        shown = shown.resized(TILE, "crop")
    tiles = []
    for place, name in enumerate(shown.names):
        x, y = shown[place]
        label = shown.classes[y] if isinstance(y, int) and 0 <= y < len(shown.classes) else Path(name).name
        tiles.append(Tile(_image(x, y, len(shown.classes)), label))
    save_png(framed(draw_grid(tiled(tiles, min(COLUMNS, count)), largest=TILE)), path)
    return count


def corruption_sheet(images: ImageDataset, path: str | Path) -> int:
    """Write every corruption as a row, clean and then the five severities; how many rows there are.

    Each row shows another image. Small images are corrupted as they are, others at 224 pixels.
    """
    size = images.size or (SIDE if max(images.shape(0)) > SMALL else None)
    tiles = []
    for row, entry in enumerate(CORRUPTIONS):
        one = images.take([row * len(images) // len(CORRUPTIONS)]).resized(size, "crop")
        tiles.append(Tile(photo(one[0][0]), "clean"))
        for severity in SEVERITIES:
            corruption = f"{entry.name}:{severity}"
            tiles.append(Tile(photo(one.corrupted(corruption)[0][0]), corruption))
    save_png(framed(draw_grid(tiled(tiles, 1 + len(SEVERITIES)), largest=TILE)), path)
    return len(CORRUPTIONS)


def _image(x: torch.Tensor, y: int | torch.Tensor, classes: int) -> Image.Image:
    return mask_over(x, y, classes) if isinstance(y, torch.Tensor) else photo(x)
