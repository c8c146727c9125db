"""Tiles in rows under the names of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from PIL import Image, ImageDraw

from robvit.drawing.images import SMALL_IMAGE, data_url, encoded, enlarge
from robvit.drawing.style import (
    DIM,
    GAP,
    INK,
    INNER,
    PAPER,
    SMALL,
    font,
    line_height,
    shorten,
    wrap,
    write_paragraph,
)

LARGEST_TILE = 240
LABEL = 124  # width of a row's name


@dataclass(frozen=True)
class Tile:
    """An image, or nothing, and a line of text below it."""

    image: Image.Image | None = None
    note: str = ""
    colour: str = INK


@dataclass(frozen=True)
class Row:
    """Tiles beside each other under a name."""

    tiles: Sequence[Tile]
    name: str = ""


@dataclass(frozen=True)
class Grid:
    """Rows of tiles; `columns` names what stands below each other."""

    rows: Sequence[Row]
    columns: Sequence[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """Everything that a page shows: names, notes, and images as addresses, large ones reduced."""
        rows = [{"name": row.name, "tiles": [_on_page(tile) for tile in row.tiles]} for row in self.rows]
        return {"columns": list(self.columns), "rows": rows}


def _on_page(tile: Tile) -> dict[str, Any]:
    if tile.image is None:
        return {"source": "", "note": tile.note, "small": False}
    if max(tile.image.size) <= SMALL_IMAGE:
        return {"source": data_url(encoded(tile.image)), "note": tile.note, "small": True}
    image = tile.image.copy()
    image.thumbnail((LARGEST_TILE, LARGEST_TILE))
    source = data_url(encoded(image, "WEBP", quality=90), "WEBP")
    return {"source": source, "note": tile.note, "small": False}


def draw_grid(grid: Grid, *, width: int = INNER, largest: int = LARGEST_TILE) -> Image.Image:
    """The grid as an image of at most this width, with tiles of one size."""
    count = max(len(row.tiles) for row in grid.rows)
    label = LABEL if any(row.name for row in grid.rows) else 0
    side = min((width - label + GAP) // count - GAP, largest)
    lines = max((len(wrap(name, side, SMALL)) for name in grid.columns if name), default=0)
    top = lines * line_height(SMALL) + 6 if lines else 0
    heights = [side + GAP + (SMALL + 5 if any(t.note for t in row.tiles) else 0) for row in grid.rows]
    page = Image.new("RGB", (label + count * (side + GAP) - GAP, top + sum(heights) - GAP), PAPER)
    pen = ImageDraw.Draw(page)
    for place, name in enumerate(grid.columns):
        write_paragraph(pen, (label + place * (side + GAP), 0), name, side, size=SMALL, fill=DIM)
    for row, height in zip(grid.rows, heights, strict=True):
        write_paragraph(pen, (0, top + 4), row.name, label - GAP, size=SMALL, fill=INK)
        for place, tile in enumerate(row.tiles):
            left = label + place * (side + GAP)
            if tile.image is not None:
                page.paste(enlarge(tile.image, side), (left, top))
            if tile.note:
                room = _free(row, place) * (side + GAP) - GAP
                note = shorten(tile.note, room, SMALL)
                pen.text((left, top + side + 2), note, fill=tile.colour, font=font(SMALL))
        top += height
    return page


def _free(row: Row, place: int) -> int:
    """Over how many tiles a note may reach: its own, and those after it without a note."""
    return 1 + len(list(takewhile(lambda tile: not tile.note, row.tiles[place + 1 :])))


def tiled(tiles: Sequence[Tile], columns: int) -> Grid:
    """Tiles in reading order, so many beside each other."""
    return Grid([Row(tiles[start : start + columns]) for start in range(0, len(tiles), columns)])
