"""Where a patch could succeed: the places in an image at which its label is not certified.

Legend for shapes: M windows, H and W of an image.
"""

from __future__ import annotations

import torch
from PIL import Image

from robvit.certification.windows import Cover
from robvit.data import ImageDataset
from robvit.drawing.grid import Tile, draw_grid, tiled
from robvit.drawing.images import photo, signed
from robvit.drawing.sheet import sheet
from robvit.record import Table
from robvit.threat import box_sums

SHOWN, ACROSS = 12, 6
CAPTION = (
    "Red: the share of the patches over a pixel that might change the label, since a pair of windows, one of "
    "them over the patch, gives another one. Where there is no red, no patch can."
)


def places_table(places: list[list[bool]], cover: Cover) -> Table:
    """The share of images that are safe under each window, in per cent, laid out as the windows are."""
    shares = 100 * torch.tensor(places).float().mean(0).view(cover.shape)
    columns = ["", *(f"column {i + 1}" for i in range(shares.shape[1]))]
    rows = [[f"row {i + 1}", *row] for i, row in enumerate(shares.tolist())]
    title = f"Certified by the place of the patch, %, patch of {cover.patch} pixels"
    return Table(title, columns, rows)


def safe_corners(safe: list[bool], cover: Cover, image: tuple[int, int]) -> torch.Tensor:
    """Which places of a patch, by its first row and column, lie inside a window (M) that is safe.

    Every answer in which such a window is dropped is the clean image's, and all of them give the label.
    """
    within = []
    for axis in (0, 1):
        token = image[axis] // cover.grid[axis]
        corner = torch.arange(image[axis] - cover.patch + 1)
        numbers = [[t // cover.grid[1] if axis == 0 else t % cover.grid[1] for t in w] for w in cover.windows]
        first, last = torch.tensor([[min(n), max(n)] for n in numbers]).T[:, :, None]
        within.append((corner // token >= first) & ((corner + cover.patch - 1) // token <= last))
    inside = within[0][:, :, None] & within[1][:, None]
    allowed: torch.Tensor = (inside & torch.tensor(safe)[:, None, None]).any(0)
    return allowed


def unsafe_share(safe: list[bool], cover: Cover, image: tuple[int, int]) -> torch.Tensor:
    """For each pixel (H W), the share of the patches over it that might change the label."""
    corners = safe_corners(safe, cover, image)
    edge = (cover.patch - 1,) * 4
    there = torch.nn.functional.pad(torch.stack((~corners, torch.ones_like(corners))).float(), edge)
    unsafe, every = box_sums(there, cover.patch)
    share: torch.Tensor = unsafe / every
    return share


def draw_place(x: torch.Tensor, safe: list[bool], cover: Cover) -> Tile:
    """An image (3 H W) in red where a patch might succeed."""
    under = photo(x)
    share = unsafe_share(safe, cover, (x.shape[1], x.shape[2]))
    red = Image.blend(under, signed(share, 1.0), 0.55)
    strength = Image.fromarray((255 * share).round().to(torch.uint8).numpy())
    note = "certified" if all(safe) else f"safe under {sum(safe)} of {len(safe)} windows"
    return Tile(Image.composite(red, under, strength), note)


def draw_places(images: ImageDataset, places: list[list[bool]], cover: Cover) -> Image.Image:
    """The first images, red where a patch might succeed."""
    shown = range(min(SHOWN, len(images)))
    tiles = [draw_place(images[i][0], places[i], cover) for i in shown]
    return sheet("Where a patch could succeed", CAPTION, [draw_grid(tiled(tiles, ACROSS))])
