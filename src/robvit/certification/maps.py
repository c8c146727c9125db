"""Where a patch could succeed: the windows of an image under which its label is not certified."""

from __future__ import annotations

import torch
from PIL import Image

from robvit.data import ImageDataset
from robvit.drawing.grid import Tile, draw_grid, tiled
from robvit.drawing.images import photo, signed
from robvit.drawing.sheet import sheet
from robvit.record import Table

SHOWN, ACROSS = 12, 6
CAPTION = (
    "Red: a patch there might change the label, since some pair of windows that drops the place gives "
    "another one. White: none can. An image without red is certified."
)


def places_table(places: list[list[bool]], per_axis: int) -> Table:
    """The share of images that are safe under each window, in per cent, laid out as the windows are."""
    shares = 100 * torch.tensor(places).float().mean(0).view(per_axis, -1)
    columns = ["", *(f"column {i + 1}" for i in range(shares.shape[1]))]
    rows = [[f"row {i + 1}", *row] for i, row in enumerate(shares.tolist())]
    return Table("Certified by the place of the patch, %", columns, rows)


def draw_places(images: ImageDataset, places: list[list[bool]], per_axis: int) -> Image.Image:
    """The first images, red where a patch might succeed."""
    tiles = []
    for i in range(min(SHOWN, len(images))):
        unsafe = ~torch.tensor(places[i]).view(per_axis, -1)
        under = photo(images[i][0])
        red = signed(unsafe.float(), 1.0).resize(under.size, Image.Resampling.NEAREST)
        safe = int((~unsafe).sum())
        note = "certified" if safe == unsafe.numel() else f"{safe} of {unsafe.numel()} windows"
        tiles.append(Tile(Image.blend(red, under, 0.55), note))
    return sheet("Where a patch could succeed", CAPTION, [draw_grid(tiled(tiles, ACROSS))])
