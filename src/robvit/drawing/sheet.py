"""Whole sheets: a title, a caption and parts; and clean and adversarial images side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from robvit.drawing.grid import Grid, Row, Tile, draw_grid
from robvit.drawing.images import Pixels
from robvit.drawing.perturbation import amplification, amplified
from robvit.drawing.style import (
    BAD,
    DIM,
    GAP,
    GOOD,
    INK,
    INNER,
    MARGIN,
    PAPER,
    TEXT,
    TITLE,
    WIDTH,
    font,
    line_height,
    shorten,
    wrap,
    write_paragraph,
)

BETWEEN = 18  # two parts of a sheet


def sheet(title: str, caption: str, parts: Sequence[Image.Image]) -> Image.Image:
    """One page: the title, what to look at, and the parts below each other."""
    top = MARGIN + 34 + len(wrap(caption, INNER, TEXT)) * line_height(TEXT) + 16
    page = Image.new("RGB", (WIDTH, top + sum(p.height + BETWEEN for p in parts) + MARGIN - BETWEEN), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, MARGIN - 6), shorten(title, INNER, TITLE), fill=INK, font=font(TITLE))
    write_paragraph(pen, (MARGIN, MARGIN + 32), caption, INNER, size=TEXT, fill=DIM)
    for part in parts:
        page.paste(part, (MARGIN, top))
        top += part.height + BETWEEN
    return page


def framed(part: Image.Image) -> Image.Image:
    """The part alone on a page, with a margin."""
    page = Image.new("RGB", (part.width + 2 * GAP, part.height + 2 * GAP), PAPER)
    page.paste(part, (GAP, GAP))
    return page


def beside(parts: Sequence[Image.Image], columns: int, *, gap: int, width: int = INNER) -> Image.Image:
    """Parts in reading order, so many in a row, each at the left of its column."""
    step = (width + gap) // columns
    rows = [parts[start : start + columns] for start in range(0, len(parts), columns)]
    heights = [max(part.height for part in row) for row in rows]
    page = Image.new("RGB", (width, sum(heights) + gap * (len(rows) - 1)), PAPER)
    top = 0
    for row, height in zip(rows, heights, strict=True):
        for place, part in enumerate(row):
            page.paste(part, (place * step, top))
        top += height + gap
    return page


class Pair(NamedTuple):
    """One image before and after an attack, uint8 (H W 3), and what the model makes of each."""

    clean: Pixels
    adversarial: Pixels
    before: str
    after: str
    correct: bool


def attack_sheet(pairs: Sequence[Pair], *, title: str) -> Image.Image:
    """Clean image, adversarial image and their difference, two pairs beside each other.

    What a model gets wrong after the attack is written in red; one factor amplifies all differences.
    """
    factor = amplification((pair.clean, pair.adversarial) for pair in pairs)
    columns, gap = 2 if len(pairs) > 1 else 1, 3 * MARGIN // 2
    heads = ["clean", "adversarial", f"difference x{factor}"]
    grids = [
        draw_grid(Grid([_row(pair, factor) for pair in part], heads), width=(INNER - gap) // 2)
        for part in (pairs[start::columns] for start in range(columns))
    ]
    return sheet(title, "Grey in a difference means unchanged.", [beside(grids, columns, gap=gap)])


def _row(pair: Pair, factor: int) -> Row:
    return Row(
        [
            Tile(Image.fromarray(pair.clean), pair.before),
            Tile(Image.fromarray(pair.adversarial), pair.after, GOOD if pair.correct else BAD),
            Tile(Image.fromarray(amplified(pair.clean, pair.adversarial, factor))),
        ]
    )
