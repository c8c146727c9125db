"""Surfaces: heights over a floor in perspective, as the page's script draws them alive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from PIL import Image, ImageDraw

from robvit.drawing.charts import round_ticks
from robvit.drawing.sheet import beside
from robvit.drawing.style import (
    DIM,
    FINE,
    INK,
    INNER,
    LINE,
    PAPER,
    SMALL,
    TEXT,
    Pen,
    Point,
    font,
    printable,
    shorten,
)

TURN, TILT = -0.62, 0.5  # how a surface is first seen
RISE = 1.15  # the height of the box; its floor is 2 wide and deep
LOW, HIGH = (13, 107, 134), (214, 84, 20)  # colours of the lowest and the highest place
CORNERS = [(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]  # of the floor
NAMED = 3  # stems whose place is written beside them
GAP = 16

Place = tuple[float, float, float]


@dataclass(frozen=True)
class Surface:
    """Heights over a floor of `columns` x `rows` places, drawn in perspective and turned with the mouse.

    `stems` are single heights [column, row, height]; a `mesh` is whole rows of heights instead. `x`, `y`
    and `z` name the axes and `x_ends`, `y_ends` the values at their ends. `reach` is the height of the
    box, one for all surfaces that are compared. `row_names` say what a row is.
    """

    title: str
    x: str
    y: str
    z: str
    columns: int
    rows: int
    reach: float
    stems: list[list[float]] = field(default_factory=list)
    mesh: list[list[float]] = field(default_factory=list)
    x_ends: tuple[float, float] | None = None
    y_ends: tuple[float, float] | None = None
    row_names: list[str] = field(default_factory=list)

    def data(self) -> dict[str, Any]:
        """Everything that the page's script draws it from."""
        look = {"turn": TURN, "tilt": TILT, "rise": RISE, "low": LOW, "high": HIGH}
        return {**asdict(self), "look": look}

    def spot(self, column: float, row: float) -> Point:
        """Where a place of the floor lies, -1..1 on both axes."""
        return 2 * column / max(self.columns - 1, 1) - 1, 2 * row / max(self.rows - 1, 1) - 1


class Projection:
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


def draw_surfaces(surfaces: Sequence[Surface]) -> Image.Image:
    """Surfaces beside each other, two in a row."""
    columns = min(2, len(surfaces))
    width = min((INNER - (columns - 1) * GAP) // columns, 720)
    return beside([_surface(one, width, round(width * 0.72)) for one in surfaces], columns, gap=GAP)


def _surface(surface: Surface, width: int, height: int) -> Image.Image:
    page = Image.new("RGB", (width * FINE, height * FINE), PAPER)
    pen, project = ImageDraw.Draw(page), Projection(width * FINE, height * FINE)
    _floor(pen, project, surface)
    if surface.mesh:
        _draw_mesh(pen, project, surface)
    else:
        _draw_stems(pen, project, surface)
    _height_axis(pen, project, surface)
    title = shorten(surface.title, width, TEXT)
    pen.text((0, 0), title, fill=INK, font=font(TEXT * FINE))
    return page.reduce(FINE)


def _floor(pen: Pen, project: Projection, surface: Surface) -> None:
    """The floor with its axes' names."""
    pen.polygon([project((x, y, 0)) for x, y in CORNERS], outline=DIM, fill="#f4f6f7")
    for step in (-0.5, 0.0, 0.5):
        pen.line([project((step, -1, 0)), project((step, 1, 0))], fill=LINE, width=FINE)
        pen.line([project((-1, step, 0)), project((1, step, 0))], fill=LINE, width=FINE)
    front, side = (1 if project.depth(0, 1) > 0 else -1), (1 if project.depth(1, 0) > 0 else -1)
    across, deep = surface.x_ends or (0, surface.columns - 1), surface.y_ends or (0, surface.rows - 1)
    for share, along, aside in zip(
        (-0.9, 0.0, 0.9), _names(surface.x, across), _names(surface.y, deep), strict=True
    ):
        for edge, outside, text in (
            ((share, front), (share, 1.12 * front), along),
            ((side, share), (1.12 * side, share), aside),
        ):
            place = project((*outside, 0))
            _label(pen, project, place, text, "lm" if place[0] > project((*edge, 0))[0] else "rm")


def _height_axis(pen: Pen, project: Projection, surface: Surface) -> None:
    """The height's axis at the corner farthest to the left, in front of what stands there."""
    left = min(CORNERS, key=lambda corner: project((*corner, 0))[0])
    pen.line([project((*left, 0)), project((*left, 1))], fill=DIM, width=FINE)
    for tick in round_ticks(0, surface.reach, 4):
        x, y = project((*left, tick / surface.reach))
        pen.line([(x - 5 * FINE, y), (x, y)], fill=DIM, width=FINE)
        _label(pen, project, (x - 8 * FINE, y), f"{tick:g}", "rm")
    x, y = project((*left, 1))
    _label(pen, project, (x, y - 12 * FINE), surface.z, "mb")


def _names(axis: str, ends: tuple[float, float]) -> tuple[str, str, str]:
    """What stands at an axis: its ends and its name between them."""
    return f"{ends[0]:g}", axis, f"{ends[1]:g}"


def _label(pen: Pen, project: Projection, at: Point, text: str, anchor: str) -> None:
    """Text that is moved to where all of it is on the page."""
    width = round(2 * project.middle[0]) - 4 * FINE
    text = shorten(text, width // FINE, SMALL)
    left, _, right, _ = pen.textbbox(at, text, font=font(SMALL * FINE), anchor=anchor)
    x = at[0] - min(left - 2 * FINE, 0) - max(right - 2 * FINE - width, 0)
    letters = font(SMALL * FINE)
    place = (x, at[1])
    pen.text(place, text, DIM, letters, anchor, stroke_width=2 * FINE, stroke_fill=PAPER)


def _draw_stems(pen: Pen, project: Projection, surface: Surface) -> None:
    placed = [(*surface.spot(stem[0], stem[1]), stem) for stem in surface.stems]
    for x, y, stem in sorted(placed, key=lambda one: project.depth(one[0], one[1])):
        high = stem[2] / surface.reach
        pen.line([project((x, y, 0)), project((x, y, high))], fill=_shade(high), width=round(1.3 * FINE))
    named: list[Point] = []
    for x, y, stem in sorted(placed, key=lambda one: -one[2][2]):
        tip = project((x, y, stem[2] / surface.reach))
        if len(named) == NAMED:
            break
        if all(abs(tip[1] - other[1]) > 18 * FINE or abs(tip[0] - other[0]) > 200 * FINE for other in named):
            _name_stem(pen, project, surface, stem, tip)
            named.append(tip)


def _name_stem(pen: Pen, project: Projection, surface: Surface, stem: list[float], tip: Point) -> None:
    """Write beside a stem's tip where it stands and how high it is."""
    row = surface.row_names[int(stem[1])] if surface.row_names else f"{surface.y} {stem[1]:g}"
    text, letters = printable(f"{row}, {surface.x} {stem[0]:g}: {stem[2]:.3g}"), font((SMALL - 2) * FINE)
    near_edge = tip[0] + letters.getlength(text) + 10 * FINE > 2 * project.middle[0]
    pen.text(
        (tip[0] + (-6 if near_edge else 6) * FINE, tip[1]),
        text,
        fill=INK,
        font=letters,
        anchor="rm" if near_edge else "lm",
        stroke_width=3 * FINE,
        stroke_fill=PAPER,
    )


def _draw_mesh(pen: Pen, project: Projection, surface: Surface) -> None:
    cells = [(c, r) for r in range(surface.rows - 1) for c in range(surface.columns - 1)]

    def depth(cell: tuple[int, int]) -> float:
        return project.depth(*surface.spot(cell[0] + 0.5, cell[1] + 0.5))

    for column, row in sorted(cells, key=depth):
        around = [(column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1)]
        heights = [surface.mesh[r][c] / surface.reach for c, r in around]
        corners = [project((*surface.spot(c, r), h)) for (c, r), h in zip(around, heights, strict=True)]
        pen.polygon(corners, fill=_shade(sum(heights) / 4), outline="#ffffff")


def _shade(height: float) -> str:
    """From blue to orange as heights rise."""
    share = min(max(height, 0.0), 1.0)
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(LOW, HIGH, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"
