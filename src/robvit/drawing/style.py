"""Colours, sizes, fonts and text of everything that is drawn."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from PIL import ImageDraw, ImageFont

WIDTH, MARGIN, GAP = 1240, 28, 8
INNER = WIDTH - 2 * MARGIN  # room between the margins of a sheet
INK, DIM, LINE, PAPER = "#1c2126", "#5d6770", "#dfe3e6", "#ffffff"
GOOD, BAD = "#1a7f37", "#b42318"
COLOURS = ("#0d6b86", "#c05a1e", "#5f4bb6", "#3c7d2f", "#a8327c", "#6b6b6b")  # --c0 to --c5 of the page
TITLE, TEXT, SMALL = 26, 17, 15
FINE = 2  # charts and surfaces are drawn so many times larger and reduced, which smooths their lines

# The font has hardly more than ASCII.
_KNOWN = {*map(chr, range(32, 127)), *"…±·°“”’"}
_LIKE = {
    "–": "-",
    "—": "-",
    "−": "-",
    "×": "x",
    "ε": "eps",
    "≤": "<=",
    "≥": ">=",
    "ß": "ss",
    "ø": "o",
    "æ": "ae",
}

Pen = ImageDraw.ImageDraw
Point = tuple[float, float]


@lru_cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The one font, at a size in pixels."""
    return ImageFont.load_default(size)


def colour(number: int) -> str:
    """The colour of a chart's line."""
    return COLOURS[number % len(COLOURS)]


def text_width(text: str, size: int) -> float:
    return font(size).getlength(text)


def wrap(text: str, width: int, size: int) -> list[str]:
    """The text in lines of at most this width; a longer word breaks after a sign inside it, or is cut."""
    lines, line = [], ""
    for word in printable(text).split():
        fits = text_width(word, size) <= width
        for number, part in enumerate([word] if fits else re.split(r"(?<=[-_/.])", word)):
            longer = f"{line}{'' if number or not line else ' '}{part}"
            if line and text_width(longer, size) > width:
                lines.append(line)
                longer = part
            line = longer
    return [shorten(one, width, size) for one in (*lines, line)]


def printable(text: str) -> str:
    """The text in letters that the font has: accents fall away, signs become like ones, others a "?"."""
    letters = []
    for letter in unicodedata.normalize("NFC", text):
        if letter in _KNOWN:
            letters.append(letter)
        else:
            bare = _LIKE.get(letter) or unicodedata.normalize("NFKD", letter)
            letters.append("".join(part for part in bare if part in _KNOWN) or "?")
    return "".join(letters)


def shorten(text: str, width: int, size: int) -> str:
    """The text in printable letters, cut where there is no room for all of it."""
    text = printable(text)
    while len(text) > 1 and text_width(text, size) > width:
        text = text[:-2].rstrip() + "…"
    return text


def line_height(size: int) -> int:
    return size + (5 if size >= TEXT else 3)


def write_paragraph(pen: Pen, at: tuple[int, int], text: str, width: int, *, size: int, fill: str) -> None:
    """Text from its upper left corner, in lines of at most this width."""
    for number, line in enumerate(wrap(text, width, size)):
        pen.text((at[0], at[1] + number * line_height(size)), line, fill=fill, font=font(size))
