"""Reliefs on paper: heights over a floor, seen from above and turned, as the page draws them alive."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw

from robvit.explanation import drawing
from robvit.explanation.drawing import DIM, FINE, INK, LINE, MARGIN, PAPER, SMALL, TEXT, WIDTH
from robvit.report.figure import Surface

TURN, TILT = -0.62, 0.5  # as the page shows it first
RISE = 1.15  # the height of the box; its floor is 2 wide and deep
NAMED = 3  # stems whose place is written beside them

Point = tuple[float, float]
Place = tuple[float, float, float]


def surfaces(held: Sequence[Surface]) -> Image.Image:
    """Reliefs beside each other, two in a row."""
    columns = min(2, len(held))
    width = min((WIDTH - 2 * MARGIN - (columns - 1) * 16) // columns, 720)
    drawn = [_relief(one, width, round(width * 0.72)) for one in held]
    page = Image.new("RGB", (WIDTH - 2 * MARGIN, -(-len(drawn) // columns) * (drawn[0].height + 12)), PAPER)
    for place, one in enumerate(drawn):
        page.paste(one, (place % columns * (width + 16), place // columns * (one.height + 12)))
    return page


class View:
    """From places in a box of width and depth 2 and height 1 to a page of this size."""

    def __init__(self, width: int, height: int, turn: float = TURN, tilt: float = TILT) -> None:
        self.cos, self.sin = math.cos(turn), math.sin(turn)
        self.flat, self.up = math.sin(tilt), math.cos(tilt)
        room = 2.84 * self.flat + RISE * self.up + 0.12  # of floor, heights and names, in units of scale
        self.scale = min(width / 3.3, (height - 30 * FINE) / room)
        self.middle = (width / 2, height - (1.42 * self.flat + 0.2) * self.scale)

    def __call__(self, place: Place) -> Point:
        x, y, z = place
        across, deep = x * self.cos - y * self.sin, x * self.sin + y * self.cos
        rise = RISE * z * self.up - deep * self.flat
        return self.middle[0] + self.scale * across, self.middle[1] - self.scale * rise

    def depth(self, x: float, y: float) -> float:
        """How near a place of the floor is; the nearest is drawn last."""
        return x * self.sin + y * self.cos


def _relief(surface: Surface, width: int, height: int) -> Image.Image:
    page = Image.new("RGB", (width * FINE, height * FINE), PAPER)
    pen, view = ImageDraw.Draw(page), View(width * FINE, height * FINE)
    _floor(pen, view, surface)
    if surface.mesh:
        _draw_mesh(pen, view, surface)
    else:
        _draw_stems(pen, view, surface)
    pen.text((0, 0), surface.title, fill=INK, font=drawing.font(TEXT * FINE))
    return page.reduce(FINE)


def spot(surface: Surface, column: float, row: float) -> Point:
    """Where a place of the floor lies, -1..1 on both axes."""
    return (
        2 * column / max(surface.columns - 1, 1) - 1,
        2 * row / max(surface.rows - 1, 1) - 1,
    )


def _floor(pen: drawing.Pen, view: View, surface: Surface) -> None:
    """The floor with its axes' names, and the height's axis at the corner farthest to the left."""
    corners = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]
    pen.polygon([view((x, y, 0)) for x, y in corners], outline=DIM, fill="#f4f6f7")
    for step in (-0.5, 0.0, 0.5):
        pen.line([view((step, -1, 0)), view((step, 1, 0))], fill=LINE, width=FINE)
        pen.line([view((-1, step, 0)), view((1, step, 0))], fill=LINE, width=FINE)
    font = drawing.font(SMALL * FINE)
    front, side = (1 if view.depth(0, 1) > 0 else -1), (1 if view.depth(1, 0) > 0 else -1)
    across, deep = surface.x_ends or (0, surface.columns - 1), surface.y_ends or (0, surface.rows - 1)
    for share, along, aside in zip(
        (-0.9, 0.0, 0.9), _names(surface.x, across), _names(surface.y, deep), strict=True
    ):
        for edge, outside, text in (
            ((share, front), (share, 1.12 * front), along),
            ((side, share), (1.12 * side, share), aside),
        ):
            place = view((*outside, 0))
            anchor = "lm" if place[0] > view((*edge, 0))[0] else "rm"
            pen.text(place, text, fill=DIM, font=font, anchor=anchor)
    left = min(corners, key=lambda corner: view((*corner, 0))[0])
    pen.line([view((*left, 0)), view((*left, 1))], fill=DIM, width=FINE)
    for tick in drawing.round_ticks(0, surface.reach, 4):
        x, y = view((*left, tick / surface.reach))
        pen.line([(x - 5 * FINE, y), (x, y)], fill=DIM, width=FINE)
        pen.text((x - 8 * FINE, y), f"{tick:g}", fill=DIM, font=font, anchor="rm")
    x, y = view((*left, 1))
    pen.text((x, y - 12 * FINE), surface.z, fill=DIM, font=font, anchor="mb")


def _names(axis: str, ends: tuple[float, float]) -> tuple[str, str, str]:
    """What stands at an axis: its ends and its name between them."""
    return f"{ends[0]:g}", axis, f"{ends[1]:g}"


def _draw_stems(pen: drawing.Pen, view: View, surface: Surface) -> None:
    placed = [(*spot(surface, stem[0], stem[1]), stem) for stem in surface.stems]
    for x, y, stem in sorted(placed, key=lambda one: view.depth(one[0], one[1])):
        high = stem[2] / surface.reach
        pen.line([view((x, y, 0)), view((x, y, high))], fill=_shade(high), width=round(1.3 * FINE))
    font = drawing.font((SMALL - 2) * FINE)
    named: list[Point] = []
    for x, y, stem in sorted(placed, key=lambda one: -one[2][2]):
        tip = view((x, y, stem[2] / surface.reach))
        if len(named) == NAMED:
            break
        if all(abs(tip[1] - other[1]) > 18 * FINE or abs(tip[0] - other[0]) > 200 * FINE for other in named):
            row = surface.row_names[int(stem[1])] if surface.row_names else f"{surface.y} {stem[1]:g}"
            text = f"{row}, {surface.x} {stem[0]:g}: {stem[2]:.3g}"
            near_edge = tip[0] + font.getlength(text) + 10 * FINE > 2 * view.middle[0]
            place = (tip[0] + (-6 if near_edge else 6) * FINE, tip[1])
            pen.text(
                place,
                text,
                fill=INK,
                font=font,
                anchor="rm" if near_edge else "lm",
                stroke_width=3 * FINE,
                stroke_fill=PAPER,
            )
            named.append(tip)


def _draw_mesh(pen: drawing.Pen, view: View, surface: Surface) -> None:
    cells = [(c, r) for r in range(surface.rows - 1) for c in range(surface.columns - 1)]

    def depth(cell: tuple[int, int]) -> float:
        return view.depth(*spot(surface, cell[0] + 0.5, cell[1] + 0.5))

    for column, row in sorted(cells, key=depth):
        around = [(column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1)]
        heights = [surface.mesh[r][c] / surface.reach for c, r in around]
        corners = [view((*spot(surface, c, r), h)) for (c, r), h in zip(around, heights, strict=True)]
        pen.polygon(corners, fill=_shade(sum(heights) / 4), outline="#ffffff")


def _shade(height: float) -> str:
    """From the page's blue to its orange as heights rise."""
    low, high = (13, 107, 134), (214, 84, 20)
    share = min(max(height, 0.0), 1.0)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(low, high, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
