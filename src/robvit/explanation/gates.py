"""Gate maps of TORA: how much each patch is read through either adapter, blue over white to red."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from robvit.backbones.model import Model
from robvit.defenses.tora.attack import gates
from robvit.errors import Unsupported
from robvit.evaluation.record import Curve
from robvit.explanation.drawing import Row, grid, photo, sheet
from robvit.explanation.subject import SHOWN, Subject, figure
from robvit.files import written_whole

BLUE, WHITE, RED = ((33, 75, 160), (255, 255, 255), (178, 24, 43))
CAPTION = "Red patches are read more through the accuracy adapter than the block's mean, blue ones less."


@torch.no_grad()
def gate_maps(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The accuracy adapter's gate on each patch, the mean over who asks: (blocks B rows columns).

    The robustness adapter's is the rest to one.
    """
    rows, columns = model.tokens(x).grid
    found = torch.stack([gate.mean(1)[:, -rows * columns :] for gate in gates(model, x)])
    return found.view(*found.shape[:2], rows, columns)


def coloured(values: torch.Tensor, reach: float) -> Image.Image:
    """Values (rows columns) in -reach..reach as an image: blue, over white at zero, to red."""
    share = (values / reach).clamp(-1, 1).cpu().numpy()[..., None]
    ends = np.where(share > 0, np.array(RED), np.array(BLUE))
    pixels = np.array(WHITE) + (ends - np.array(WHITE)) * np.abs(share)
    return Image.fromarray(pixels.round().astype(np.uint8))


def gate_grid(images: dict[str, torch.Tensor], maps: dict[str, torch.Tensor]) -> Image.Image:
    """For each image (B 3 H W) and name of `maps` (blocks B rows columns) a row of blocks.

    Maps are differences from the block's own mean gate; the deepest colours stand for the number in a row's
    name.
    """
    apart = {name: m - m.mean((2, 3), keepdim=True) for name, m in maps.items()}
    reach = max(float(m.abs().max()) for m in apart.values()) or 1.0
    blocks, count = next(iter(maps.values())).shape[:2]
    rows = [
        Row(
            f"{name}, ±{reach:.2g}",
            [
                photo(images[name][place]),
                *(coloured(values[block, place], reach) for block in range(blocks)),
            ],
        )
        for place in range(count)
        for name, values in apart.items()
    ]
    return grid(rows, ["image", *(f"block {i + 1}" for i in range(blocks))])


def gate_sheet(x: torch.Tensor, maps: dict[str, torch.Tensor], path: Path) -> None:
    """Write maps of the same images (B 3 H W) as a PNG."""
    page = sheet("Gates of the adapters", CAPTION, [gate_grid(dict.fromkeys(maps, x), maps)])
    with written_whole(path) as aside:
        page.save(aside, format="PNG")


@figure("gates", title="Gates of the TORA adapters", caption=CAPTION)
def gate_figure(subject: Subject) -> dict[str, Any]:
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
    drawn = gate_grid(images, maps)
    return {"image": drawn, "curves": [Curve("mean gate of the accuracy adapter", "block", "gate", lines)]}
