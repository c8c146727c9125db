"""Plates: figures with a title and a caption, whose charts and reliefs are alive on the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from PIL import Image

from robvit.evaluation.record import Curve


@dataclass(frozen=True)
class Surface:
    """Heights over a floor of `columns` x `rows` places, drawn in perspective and turned with the mouse.

    `stems` are single heights [column, row, height]; a `mesh` is whole rows of heights instead. `x`, `y`
    and `z` name the axes and `x_ends`, `y_ends` the values at their ends. `reach` is the height of the
    box, one for all reliefs that are compared. `row_names` say what a row is.
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


@dataclass(frozen=True)
class Figure:
    """One figure: an image, charts and reliefs, any of them, and one sentence on what to look at."""

    name: str
    title: str
    caption: str
    image: Image.Image | None = None
    curves: list[Curve] = field(default_factory=list)
    surfaces: list[Surface] = field(default_factory=list)
