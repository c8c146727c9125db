"""Panels of images: clean, adversarial and the difference made visible, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from robvit.files import written_whole

SIDE, GAP, LINE, TOP = 128, 8, 15, 22

Pixels = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]


class Panel(NamedTuple):
    """One image before and after, uint8 (H W 3), and what was seen in each."""

    clean: Pixels
    adversarial: Pixels
    before: str
    after: str
    withstood: bool


def attack_sheet(panels: list[Panel], path: str | Path, *, title: str, amplify: int = 16) -> None:
    """Write a PNG with a row of three images for each panel, two panels beside each other."""
    row, columns = SIDE + LINE + GAP, 2 if len(panels) > 1 else 1
    width = columns * (3 * (SIDE + GAP) + 2 * GAP)
    rows = -(-len(panels) // columns)
    page = Image.new("RGB", (max(width, 420), TOP + LINE + rows * row + GAP), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(11)
    draw.text((GAP, 5), title, fill="black", font=ImageFont.load_default(12))
    for index, panel in enumerate(panels):
        left = GAP + index % columns * (width // columns)
        top = TOP + LINE + index // columns * row
        if index < columns:
            for place, head in enumerate(("clean", "adversarial", f"difference x{amplify}")):
                draw.text((left + place * (SIDE + GAP), TOP), head, fill="#666", font=font)
        difference = panel.adversarial.astype(int) - panel.clean
        grey = np.clip(128 + amplify * difference, 0, 255).astype(np.uint8)
        for place, pixels in enumerate((panel.clean, panel.adversarial, grey)):
            tile = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.NEAREST)
            page.paste(tile, (left + place * (SIDE + GAP), top))
        colour = "#1a7f37" if panel.withstood else "#b42318"
        draw.text((left, top + SIDE + 1), panel.before, fill="black", font=font)
        draw.text((left + SIDE + GAP, top + SIDE + 1), panel.after, fill=colour, font=font)
    with written_whole(path) as aside:
        page.save(aside, format="PNG")
