"""Charts of curves: laid out once, drawn as an image or as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol

from PIL import Image, ImageDraw

from robvit.drawing.sheet import beside
from robvit.drawing.style import (
    DIM,
    FINE,
    GAP,
    INK,
    INNER,
    LINE,
    PAPER,
    SMALL,
    TEXT,
    Pen,
    Point,
    colour,
    font,
    shorten,
    text_width,
)

MARKED = 24  # points of a line up to which each has a dot
TOP, BOTTOM, LEFT, RIGHT = 48, 46, 62, 14  # around the plot of an image
# Below there is room for numbers and a name in a phone's larger letters.
SVG_SIZE, SVG_TOP, SVG_BOTTOM, SVG_LEFT, SVG_RIGHT = (480, 198), 12, 42, 40, 8

Lines = Mapping[str, Sequence[Sequence[float]]]  # points [x, y] by name


class Curves(Protocol):
    """What a chart shows; a record's Curve is one."""

    @property
    def title(self) -> str: ...
    @property
    def x(self) -> str: ...
    @property
    def y(self) -> str: ...
    @property
    def lines(self) -> Lines: ...


@dataclass(frozen=True)
class Axis:
    """From values low..high to places start..end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def axis(values: Sequence[float], start: float, end: float) -> Axis:
    """An axis over all values; it begins at zero where they nearly do."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    if 0 < low < 0.05 * high:
        low = 0.0
    return Axis(low, high, start, end)


def round_ticks(low: float, high: float, want: int) -> list[float]:
    """Round numbers that cover low..high in about `want` steps."""
    rough = (high - low) / want
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return [
        round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


class Canvas(Protocol):
    """What a plot is drawn on; anchors are PIL's."""

    def line(self, points: Sequence[Point], kind: str) -> None: ...
    def text(self, at: Point, text: str, anchor: str) -> None: ...
    def trace(self, points: Sequence[Point], number: int) -> None: ...
    def dot(self, at: Point, number: int, text: str) -> None: ...


def plot(canvas: Canvas, lines: Lines, across: Axis, up: Axis, *, name: str, below: float) -> None:
    """Grid, ticks, the name of the x axis, down to `below`, and the lines without what is not finite."""
    height = up.start - up.end
    for tick in round_ticks(up.low, up.high, max(3, round(height) // 55)):
        canvas.line([(across.start, up(tick)), (across.end, up(tick))], "grid")
        canvas.text((across.start - 8, up(tick)), f"{tick:g}", "rm")
    for tick in _ticks_across(lines, across):
        canvas.text((across(tick), up.start + 7), f"{tick:g}", "mt")
    canvas.line([(across.start, up.start), (across.end, up.start)], "axis")
    canvas.text(((across.start + across.end) / 2, below), name, "mb")
    for number, (title, line) in enumerate(lines.items()):
        shown = [point for point in line if math.isfinite(point[1])]
        places = [(across(point[0]), up(point[1])) for point in shown]
        canvas.trace(places, number)
        for place, point in zip(places, shown, strict=True) if len(places) <= MARKED else ():
            canvas.dot(place, number, f"{title}: {point[1]:.3f} at {point[0]:g}")


def _ticks_across(lines: Lines, across: Axis) -> list[float]:
    """The values themselves where they are few whole numbers, otherwise round ones."""
    width = across.end - across.start
    values = sorted({point[0] for line in lines.values() for point in line if math.isfinite(point[1])})
    if values and len(values) <= 13 and all(float(v).is_integer() for v in values):
        if values[0] > across.low:
            values.insert(0, across.low)
        return values[:: 1 if width > 300 or len(values) <= 6 else 2]
    return round_ticks(across.low, across.high, max(3, round(width) // 75))


# --- as an image -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Paper:
    """An image that is drawn FINE times larger."""

    pen: Pen

    def line(self, points: Sequence[Point], kind: str) -> None:
        self._stroke(points, {"grid": LINE, "axis": DIM}[kind], 1)

    def text(self, at: Point, text: str, anchor: str, *, size: int = SMALL, fill: str = DIM) -> None:
        place = (at[0] * FINE, at[1] * FINE)
        self.pen.text(place, text, fill=fill, font=font(size * FINE), anchor=anchor)

    def trace(self, points: Sequence[Point], number: int) -> None:
        self._stroke(points, colour(number), 2.6)

    def dot(self, at: Point, number: int, text: str) -> None:
        x, y = at
        box = [v * FINE for v in (x - 3.5, y - 3.5, x + 3.5, y + 3.5)]
        self.pen.ellipse(box, fill=colour(number))

    def _stroke(self, points: Sequence[Point], fill: str, width: float) -> None:
        places = [(x * FINE, y * FINE) for x, y in points]
        self.pen.line(places, fill=fill, width=round(width * FINE), joint="curve")


def draw_charts(curves: Sequence[Curves]) -> Image.Image:
    """All curves side by side, as many as are readable; one legend where all have the same lines."""
    columns = 1 if len(curves) == 1 else 2 if len(curves) in (2, 4) else 3 if len(curves) < 10 else 4
    width = (INNER - (columns - 1) * 2 * GAP) // columns
    height = {1: 420, 2: 320, 3: 250, 4: 210}[columns]
    shared = len(curves) > 1 and len({tuple(curve.lines) for curve in curves}) == 1
    drawn = beside([_chart(c, width, height, legend=not shared) for c in curves], columns, gap=2 * GAP)
    if not shared:
        return drawn
    names = list(curves[0].lines)
    head = _legend_height(names, INNER)
    page = Image.new("RGB", (INNER, head + drawn.height), PAPER)
    _legend(ImageDraw.Draw(page), (0, 0), names, INNER)
    page.paste(drawn, (0, head))
    return page


def _chart(curve: Curves, width: int, height: int, *, legend: bool) -> Image.Image:
    """One chart at its size, with its title, its axes and its lines."""
    names = list(curve.lines)
    added = _legend_height(names, width) if legend else 0
    page = Image.new("RGB", (width * FINE, (height + added) * FINE), PAPER)
    paper = _Paper(ImageDraw.Draw(page))
    points = [point for line in curve.lines.values() for point in line if math.isfinite(point[1])]
    across = axis([p[0] for p in points], LEFT, width - RIGHT)
    up = axis([p[1] for p in points] + [0.0], height + added - BOTTOM, TOP + added)
    paper.text((0, 0), shorten(curve.title, width, TEXT), "la", size=TEXT, fill=INK)
    if legend:
        _legend(paper.pen, (0, 24), names, width, FINE)
    # A name that is longer than the plot is wide moves to the left, so that nothing of it is cut.
    left = max(0, min(LEFT, width - RIGHT - round(text_width(curve.y, SMALL))))
    paper.text((left, 24 + added), shorten(curve.y, width, SMALL), "la")
    plot(paper, curve.lines, across, up, name=shorten(curve.x, width, SMALL), below=height + added - 3)
    return page.reduce(FINE)


def _legend_places(names: Sequence[str], width: int) -> list[tuple[int, int]]:
    """Where each name of a legend stands, line by line."""
    places, left, top = [], 0, 0
    for name in names:
        wide = 40 + round(text_width(name, SMALL))
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
            pen.line([(x, middle), (x + 22 * fine, middle)], fill=colour(number), width=3 * fine)
            pen.text((x + 28 * fine, y), shorten(name, width - 28, SMALL), fill=INK, font=font(SMALL * fine))


# --- as SVG ------------------------------------------------------------------------------------------

_ANCHORS = {"l": "start", "m": "middle", "r": "end"}
_DROPS = {"t": ".75em", "m": ".35em", "b": "0"}


class _Svg:
    """Elements of an SVG; how grid, axis and text look is up to the page's style."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def line(self, points: Sequence[Point], kind: str) -> None:
        self.parts.append(f"<path class='{kind}' d='M{_places(points)}'/>")

    def text(self, at: Point, text: str, anchor: str) -> None:
        place = f"x='{at[0]:.1f}' y='{at[1]:.1f}' dy='{_DROPS[anchor[1]]}'"
        self.parts.append(f"<text {place} text-anchor='{_ANCHORS[anchor[0]]}'>{escape(text)}</text>")

    def trace(self, points: Sequence[Point], number: int) -> None:
        self.parts.append(f"<polyline class='line' points='{_places(points)}' stroke='{colour(number)}'/>")

    def dot(self, at: Point, number: int, text: str) -> None:
        self.parts.append(
            f"<circle cx='{at[0]:.1f}' cy='{at[1]:.1f}' r='3.5' fill='{colour(number)}'>"
            f"<title>{escape(text)}</title></circle>"
        )


def _places(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def svg_chart(lines: Lines, x: str, y: str, *, until: float) -> str:
    """Lines of shares over 0..`until` or more, from 0 (or less, for a cosine) to 1, as an SVG element."""
    points = [point for line in lines.values() for point in line]
    width, height = SVG_SIZE
    most, least = max([until] + [p[0] for p in points]), min([0.0] + [p[1] for p in points])
    across = Axis(0.0, most, SVG_LEFT, width - SVG_RIGHT)
    up = Axis(least, 1.0, height - SVG_BOTTOM, SVG_TOP)
    canvas = _Svg()
    plot(canvas, lines, across, up, name=x, below=height - 4)
    label = f"{escape(y)} over {escape(x)}"
    return (
        f"<svg viewBox='0 0 {width} {height}' role='img' aria-label='{label}'>{''.join(canvas.parts)}</svg>"
    )
