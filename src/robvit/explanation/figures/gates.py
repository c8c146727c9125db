"""Gate maps of TORA: how much each patch listens to either adapter, blue over white to red."""

from __future__ import annotations

import torch
from PIL import Image

from robvit.backbones.model import Model
from robvit.defenses.tora.attack import gates
from robvit.drawing.grid import Grid, Row, Tile, draw_grid
from robvit.drawing.images import photo, signed
from robvit.drawing.sheet import sheet
from robvit.errors import Unsupported
from robvit.explanation.subject import SHOWN, Subject, figure
from robvit.record import Curve
from robvit.report.figure import Figure

CAPTION = "Red patches listen to the accuracy adapter more than the block's mean, blue ones less."


@torch.no_grad()
def gate_maps(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The accuracy adapter's gate at each patch: (blocks B rows columns).

    The robustness adapter's is the rest to one.
    """
    rows, columns = model.tokens(x).grid
    on_patches = torch.stack([gate[:, -rows * columns :] for gate in gates(model, x)])
    return on_patches.view(*on_patches.shape[:2], rows, columns)


def gate_grid(images: dict[str, torch.Tensor], maps: dict[str, torch.Tensor]) -> Grid:
    """For each image (B 3 H W) and name of `maps` (blocks B rows columns) a row of blocks.

    Maps are differences from the block's own mean gate; the deepest colours stand for the number in a row's
    name.
    """
    apart = {name: m - m.mean((2, 3), keepdim=True) for name, m in maps.items()}
    reach = max(float(m.abs().max()) for m in apart.values()) or 1.0
    blocks, count = next(iter(maps.values())).shape[:2]
    rows = []
    for place in range(count):
        for name, values in apart.items():
            tiles = [Tile(signed(values[block, place], reach)) for block in range(blocks)]
            rows.append(Row([Tile(photo(images[name][place])), *tiles], f"{name}, ±{reach:.2g}"))
    return Grid(rows, ["image", *(f"block {i + 1}" for i in range(blocks))])


def gate_sheet(x: torch.Tensor, maps: dict[str, torch.Tensor]) -> Image.Image:
    """Maps of the same images (B 3 H W) on one page."""
    return sheet("Gates of the adapters", CAPTION, [draw_grid(gate_grid(dict.fromkeys(maps, x), maps))])


@figure(title="Gates of the TORA adapters", caption=CAPTION, order=110)
def gate_figure(subject: Subject) -> Figure:
    """The first images, clean and attacked, in every block."""
    if subject.model.adapters is None:
        raise Unsupported(
            f"{subject.model.name} has no adapters; `robvit train tora` makes them, then give --adapters"
        )
    images = {"clean": subject.x[:SHOWN], "attacked": subject.adv[:SHOWN]}
    maps = {name: gate_maps(subject.model, x) for name, x in images.items()}
    blocks = range(1, len(maps["clean"]) + 1)
    lines = {
        name: [[float(b), v] for b, v in zip(blocks, m.mean((1, 2, 3)).tolist(), strict=True)]
        for name, m in maps.items()
    }
    curve = Curve("mean gate of the accuracy adapter", "block", "gate", lines)
    return Figure(gate_grid(images, maps), [curve])
