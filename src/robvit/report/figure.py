"""A figure: tiles, charts and surfaces under a title, drawn on paper or alive on the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from PIL import Image

from robvit.drawing.charts import draw_charts
from robvit.drawing.grid import Grid, draw_grid
from robvit.drawing.sheet import sheet
from robvit.drawing.surfaces import Surface, draw_surfaces
from robvit.record import Curve


@dataclass(frozen=True)
class Figure:
    """Tiles, charts and surfaces, any of them, and one sentence on what to look at."""

    grid: Grid | None = None
    curves: list[Curve] = field(default_factory=list)
    surfaces: list[Surface] = field(default_factory=list)
    name: str = ""
    title: str = ""
    caption: str = ""

    def image(self) -> Image.Image:
        """The whole figure on paper."""
        parts = [] if self.grid is None else [draw_grid(self.grid)]
        parts += [draw_surfaces(self.surfaces)] if self.surfaces else []
        parts += [draw_charts(self.curves)] if self.curves else []
        return sheet(self.title, self.caption, parts)
