"""A table of shares as a heat map with its numbers in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from robvit.drawing.images import heat
from robvit.drawing.style import DIM, FINE, GAP, INK, INNER, PAPER, SMALL, TEXT, font, shorten

LABEL, HEAD, HIGH, WIDEST = 240, 64, 64, 190  # of a row's name, of the columns' names, and of a cell


def draw_matrix(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    down: str,
    across: str,
    notes: Sequence[Sequence[str]] | None = None,
) -> Image.Image:
    """Values in [0,1], a row each, as per cent on colours from dark to light; `notes` stand below them.

    `down` says what the rows are, `across` what the columns.
    """
    wide = min(WIDEST, (INNER - LABEL) // max(len(columns), 1))
    size = (LABEL + wide * len(columns), HEAD + HIGH * len(rows))
    page = Image.new("RGB", (size[0] * FINE, size[1] * FINE), PAPER)
    pen = ImageDraw.Draw(page)

    def write(x: float, y: float, text: str, anchor: str, fill: str, points: int = SMALL) -> None:
        pen.text((x * FINE, y * FINE), text, fill=fill, font=font(points * FINE), anchor=anchor)

    write(LABEL + wide * len(columns) / 2, 2, across, "ma", DIM)
    write(0, HEAD - GAP, down, "ls", DIM)
    scale = np.array([[0.0, *(min(max(v, 0.0), 1.0) for row in values for v in row), 1.0]], dtype=np.float32)
    colours = np.asarray(heat(scale, share=1.0))[0][1:-1]
    for j, name in enumerate(columns):
        write(LABEL + wide * (j + 0.5), HEAD - GAP, shorten(name, wide - GAP, SMALL), "ms", INK)
    for i, name in enumerate(rows):
        middle = HEAD + HIGH * (i + 0.5)
        write(0, middle, shorten(name, LABEL - GAP, SMALL), "lm", INK)
        for j in range(len(columns)):
            colour = tuple(int(c) for c in colours[i * len(columns) + j])
            left, top = LABEL + wide * j, HEAD + HIGH * i
            box = [v * FINE for v in (left + 1, top + 1, left + wide - 1, top + HIGH - 1)]
            pen.rectangle(box, fill=colour)
            ink = INK if sum(colour) > 380 else PAPER
            low = 0 if notes is None else 9
            write(left + wide / 2, middle - low, f"{100 * values[i][j]:.0f} %", "mm", ink, TEXT)
            if notes is not None:
                write(left + wide / 2, middle + 14, shorten(notes[i][j], wide - GAP, SMALL), "mm", ink)
    return page.reduce(FINE)
