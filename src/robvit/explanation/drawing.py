"""Drawing on paper: tiles in a grid, charts of curves, and whole sheets with a title and a caption."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from robvit.evaluation.attack_shards import levels
from robvit.evaluation.record import Curve

WIDTH, MARGIN, GAP = 1240, 28, 8
INK, DIM, LINE, PAPER = "#1c2126", "#5d6770", "#dfe3e6", "#ffffff"
COLOURS = ("#0d6b86", "#c05a1e", "#5f4bb6", "#3c7d2f", "#a8327c", "#6b6b6b")  # the page's own
TEXT, SMALL = 17, 15
FINE = 2  # charts are drawn so many times larger and reduced, which smooths their lines
LARGEST_TILE = 240
LABEL = 124  # width of a row's name

# From dark over green to light: brightness rises evenly, so that it reads without colours too.
_HEAT = np.array(
    [(22, 20, 52), (38, 62, 120), (24, 120, 132), (92, 172, 96), (232, 208, 72), (255, 250, 214)]
)

Pen = ImageDraw.ImageDraw


@lru_cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


# --- tiles -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Tiles beside each other under a name, and a line of text below each where there is one."""

    label: str
    tiles: Sequence[Image.Image | None]
    notes: Sequence[str] = field(default_factory=list)


def photo(x: torch.Tensor) -> Image.Image:
    """An image (3 H W) or (1 H W) in [0,1]."""
    pixels = levels(x.detach().float().cpu().clamp(0, 1)).expand(3, -1, -1).permute(1, 2, 0)
    return Image.fromarray(pixels.contiguous().numpy())


def heat(values: torch.Tensor, under: torch.Tensor | None = None, *, share: float = 0.98) -> Image.Image:
    """Values (rows columns) as colours, dark for the least; over the grey of an image if there is one.

    The brightest colour stands at the quantile `share`, so that single outliers do not darken the rest.
    """
    values = values.detach().float().cpu()
    low, high = float(values.min()), float(values.flatten().quantile(share))
    level = ((values - low) / max(high - low, 1e-12)).clamp(0, 1).numpy() * (len(_HEAT) - 1)
    stops = np.arange(len(_HEAT))
    colours = np.stack([np.interp(level, stops, _HEAT[:, channel]) for channel in range(3)], axis=-1)
    tile = Image.fromarray(colours.round().astype(np.uint8))
    if under is None:
        return tile
    grey = photo(under).convert("L").convert("RGB")
    side = (max(grey.width, tile.width), max(grey.height, tile.height))
    near = Image.Resampling.NEAREST
    return Image.blend(tile.resize(side, near), grey.resize(side, near), 0.3)


def grid(rows: Sequence[Row], heads: Sequence[str]) -> Image.Image:
    """Rows of tiles under the names of their columns; a tile of None stays empty."""
    label = LABEL if any(row.label for row in rows) else 0
    room = (WIDTH - 2 * MARGIN - label) // len(heads) - GAP
    side = min(room, LARGEST_TILE)
    top = max(_lines(head, room, SMALL) for head in heads) * (SMALL + 3) + 6
    heights = [side + GAP + (SMALL + 5 if row.notes else 0) for row in rows]
    wide = label + len(heads) * (side + GAP) - GAP
    page = Image.new("RGB", (wide, top + sum(heights) - GAP), PAPER)
    pen = ImageDraw.Draw(page)
    for place, head in enumerate(heads):
        _paragraph(pen, (label + place * (side + GAP), 0), head, side, size=SMALL, fill=DIM)
    for row, height in zip(rows, heights, strict=True):
        _paragraph(pen, (0, top + 4), row.label, label - GAP, size=SMALL, fill=INK)
        for place, tile in enumerate(row.tiles):
            left = label + place * (side + GAP)
            if tile is not None:
                page.paste(_enlarged(tile, side), (left, top))
            if place < len(row.notes):
                text = _fitting(row.notes[place], side, SMALL)
                pen.text((left, top + side + 2), text, fill=INK, font=font(SMALL))
        top += height
    return page


def _enlarged(tile: Image.Image, side: int) -> Image.Image:
    """Small tiles keep their pixels visible, large ones are smoothed."""
    way = Image.Resampling.NEAREST if max(tile.size) <= 64 else Image.Resampling.LANCZOS
    return tile.resize((side, side), way)


# --- charts ------------------------------------------------------------------------------------------


def charts(curves: Sequence[Curve]) -> Image.Image:
    """All curves side by side, as many as are readable; one legend where all have the same lines."""
    columns = 1 if len(curves) == 1 else 2 if len(curves) in (2, 4) else 3 if len(curves) < 10 else 4
    width = (WIDTH - 2 * MARGIN - (columns - 1) * 2 * GAP) // columns
    height = {1: 420, 2: 320, 3: 250, 4: 210}[columns]
    shared = len(curves) > 1 and len({tuple(curve.lines) for curve in curves}) == 1
    names = list(curves[0].lines) if shared else []
    head = _legend_height(names, WIDTH - 2 * MARGIN) if shared else 0
    drawn = [_chart(curve, width, height, own_legend=not shared) for curve in curves]
    tall = max(one.height for one in drawn) + GAP
    page = Image.new("RGB", (WIDTH - 2 * MARGIN, head + -(-len(drawn) // columns) * tall), PAPER)
    _legend(ImageDraw.Draw(page), (0, 0), names, page.width)
    for place, one in enumerate(drawn):
        page.paste(one, (place % columns * (width + 2 * GAP), head + place // columns * tall))
    return page


def _chart(curve: Curve, width: int, height: int, *, own_legend: bool) -> Image.Image:
    """One chart at its size, with its title, its axes and its lines."""
    legend = _legend_height(list(curve.lines), width) if own_legend else 0
    top, bottom, left, right = 48 + legend, 46, 62, 14
    page = Image.new("RGB", (width * FINE, (height + legend) * FINE), PAPER)
    pen = ImageDraw.Draw(page)
    points = [point for line in curve.lines.values() for point in line if math.isfinite(point[1])]
    across = _axis([p[0] for p in points], left, width - right)
    up = _axis([p[1] for p in points] + [0.0], height + legend - bottom, top)
    _write(pen, (0, 0), _fitting(curve.title, width, TEXT), size=TEXT)
    if own_legend:
        _legend(pen, (0, 24), list(curve.lines), width, FINE)
    _write(pen, (left, 24 + legend), curve.y, fill=DIM)
    _write(pen, ((left + width - right) // 2, height + legend - 20), curve.x, fill=DIM, anchor="mt")
    for tick in round_ticks(up.low, up.high, max(3, height // 60)):
        _stroke(pen, [(left, up(tick)), (width - right, up(tick))], LINE, 1)
        _write(pen, (left - 8, int(up(tick))), f"{tick:g}", fill=DIM, anchor="rm")
    for tick in _ticks_across(points, across, width):
        _write(pen, (int(across(tick)), int(up.start) + 7), f"{tick:g}", fill=DIM, anchor="mt")
    _stroke(pen, [(left, up.start), (width - right, up.start)], DIM, 1)
    for number, line in enumerate(curve.lines.values()):
        places = [(across(p[0]), up(p[1])) for p in line if math.isfinite(p[1])]
        _stroke(pen, places, COLOURS[number % len(COLOURS)], 2.6)
        for x, y in places if len(places) <= 24 else []:
            box = [v * FINE for v in (x - 3.5, y - 3.5, x + 3.5, y + 3.5)]
            pen.ellipse(box, fill=COLOURS[number % len(COLOURS)])
    return page.reduce(FINE)


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def _axis(values: list[float], start: float, end: float) -> _Axis:
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    if 0 < low < 0.05 * high:
        low = 0.0
    return _Axis(low, high, start, end)


def round_ticks(low: float, high: float, want: int) -> list[float]:
    """Round numbers that cover low..high in about `want` steps."""
    rough = (high - low) / want
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return [
        round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def _ticks_across(points: list[list[float]], across: _Axis, width: int) -> list[float]:
    """The values themselves where they are few whole numbers, otherwise round ones."""
    values = sorted({p[0] for p in points})
    if len(values) <= 13 and all(float(v).is_integer() for v in values):
        step = 1 if width > 380 else 2 if len(values) > 6 else 1
        return values[::step]
    return round_ticks(across.low, across.high, max(3, width // 75))


# --- text and sheets ---------------------------------------------------------------------------------


def sheet(title: str, caption: str, parts: Sequence[Image.Image]) -> Image.Image:
    """One page: the title, what to look at, and the parts below each other."""
    told = _lines(caption, WIDTH - 2 * MARGIN, TEXT) * (TEXT + 5)
    top = MARGIN + 34 + told + 16
    page = Image.new("RGB", (WIDTH, top + sum(p.height + 18 for p in parts) + MARGIN - 18), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, MARGIN - 6), title, fill=INK, font=font(26))
    _paragraph(pen, (MARGIN, MARGIN + 32), caption, WIDTH - 2 * MARGIN, size=TEXT, fill=DIM)
    for part in parts:
        page.paste(part, (MARGIN, top))
        top += part.height + 18
    return page


def _write(
    pen: Pen, at: tuple[int, int], text: str, *, size: int = SMALL, fill: str = INK, anchor: str = "la"
) -> None:
    """Text on a page that is drawn FINE times larger."""
    pen.text((at[0] * FINE, at[1] * FINE), text, fill=fill, font=font(size * FINE), anchor=anchor)


def _stroke(pen: Pen, points: Sequence[tuple[float, float]], colour: str, width: float) -> None:
    places = [(x * FINE, y * FINE) for x, y in points]
    pen.line(places, fill=colour, width=round(width * FINE), joint="curve")


def _legend_places(names: Sequence[str], width: int) -> list[tuple[int, int]]:
    """Where each name of a legend stands, line by line."""
    places, left, top = [], 0, 0
    for name in names:
        wide = 40 + round(font(SMALL).getlength(name))
        if left and left + wide > width:
            left, top = 0, top + SMALL + 7
        places.append((left, top))
        left += wide + 8
    return places


def _legend_height(names: Sequence[str], width: int) -> int:
    return _legend_places(names, width)[-1][1] + SMALL + 12 if len(names) > 1 else 0


def _legend(pen: Pen, at: tuple[int, int], names: Sequence[str], width: int, fine: int = 1) -> None:
    """Each line's colour and name; a single line needs none."""
    for number, (name, (left, top)) in enumerate(zip(names, _legend_places(names, width), strict=True)):
        if len(names) > 1:
            x, y = (at[0] + left) * fine, (at[1] + top) * fine
            middle = y + (SMALL // 2 + 2) * fine
            pen.line([(x, middle), (x + 22 * fine, middle)], fill=COLOURS[number % 6], width=3 * fine)
            pen.text((x + 28 * fine, y), name, fill=INK, font=font(SMALL * fine))


def _wrapped(text: str, width: int, size: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        longer = f"{line} {word}".strip()
        if line and font(size).getlength(longer) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line]


def _lines(text: str, width: int, size: int) -> int:
    return len(_wrapped(text, width, size))


def _paragraph(pen: Pen, at: tuple[int, int], text: str, width: int, *, size: int, fill: str) -> None:
    space = size + (5 if size == TEXT else 3)
    for number, line in enumerate(_wrapped(text, width, size)):
        pen.text((at[0], at[1] + number * space), line, fill=fill, font=font(size))


def _fitting(text: str, width: int, size: int) -> str:
    """The text, cut off where there is no room for all of it."""
    while len(text) > 1 and font(size).getlength(text) > width:
        text = text[:-2].rstrip() + "…"
    return text
