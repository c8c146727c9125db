"""Gate maps of TORA: how much each patch is read through either adapter, blue over white to red."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from robvit.backbones.model import Model
from robvit.defenses.adapters_attack import gates
from robvit.evaluate.record import Curve, Record, Table
from robvit.files import written_whole
from robvit.studies.core import Request, study, study_record
from robvit.studies.tora_paper import PAPER
from robvit.studies.tora_parts import Effort, subject, trained

SIDE, GAP, LINE, LEFT = 72, 4, 15, 92
BLUE, WHITE, RED = ((33, 75, 160), (255, 255, 255), (178, 24, 43))


@torch.no_grad()
def gate_maps(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The accuracy adapter's gate on each patch, the mean over who asks: (blocks B rows columns).

    The robustness adapter's is the rest to one.
    """
    rows, columns = model.tokens(x).grid
    found = torch.stack([gate.mean(1)[:, -rows * columns :] for gate in gates(model, x)])
    return found.view(*found.shape[:2], rows, columns)


def coloured(values: torch.Tensor, reach: float) -> Image.Image:
    """Values (rows columns) in -reach..reach as a picture: blue, over white at zero, to red."""
    share = (values / reach).clamp(-1, 1).numpy()[..., None]
    ends = np.where(share > 0, np.array(RED), np.array(BLUE))
    pixels = np.array(WHITE) + (ends - np.array(WHITE)) * np.abs(share)
    tile = Image.fromarray(pixels.round().astype(np.uint8))
    return tile.resize((SIDE, SIDE), Image.Resampling.NEAREST)


def gate_sheet(x: torch.Tensor, maps: dict[str, torch.Tensor], path: Path) -> None:
    """Write a PNG: for each picture (B 3 H W) and name of `maps` (blocks B rows columns) a row of blocks.

    Maps are differences from the block's own mean gate, which the table gives; one scale serves all.
    """
    blocks = len(next(iter(maps.values())))
    apart = {name: m - m.mean((2, 3), keepdim=True) for name, m in maps.items()}
    reach = max(float(m.abs().max()) for m in apart.values()) or 1.0
    step = SIDE + GAP
    size = (LEFT + (blocks + 1) * step, 3 * LINE + len(x) * (len(maps) * step + LINE))
    page = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(11)
    draw.text((GAP, 2), f"red: +{reach:.2g} over the block's mean gate, blue: below", fill="black", font=font)
    for block in range(blocks):
        draw.text((LEFT + (block + 1) * step, LINE + 4), f"block {block + 1}", fill="#666", font=font)
    top = 2 * LINE + GAP
    for number, picture in enumerate(x):
        pixels = (picture.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
        shown = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        for name, values in apart.items():
            draw.text((GAP, top + SIDE // 2 - 6), name, fill="black", font=font)
            page.paste(shown, (LEFT, top))
            for block in range(blocks):
                page.paste(coloured(values[block, number], reach), (LEFT + (block + 1) * step, top))
            top += step
        top += LINE
    with written_whole(path) as aside:
        page.save(aside, format="PNG")


@study("tora-fig-attention", paper=PAPER, title="Gates of both adapters over the picture, by block")
def attention(
    request: Request, *, trades: tuple[float, ...] = (0.1, 0.5, 0.9), learn: int = 1500, epochs: float = 3,
    fusion_epochs: float = 1, eps: float = 4 / 255, training: str = "",
) -> Record:  # fmt: skip
    """Maps of the first pictures for several trade-offs, as PNG, and mean gates of all of them."""
    effort = Effort(learn, epochs, fusion_epochs, eps, training)
    held = subject(request, effort, 4)
    model = trained(request, held, effort, tuple(trades))
    x = held.judge.arrays()[0]
    found: dict[float, torch.Tensor] = {}
    for trade in trades:
        model.trade_off = trade
        found[trade] = gate_maps(model, x)
    few = {f"{name}, {t:g}": sign * m[:, :4] + (1 - sign) / 2
           for name, sign in (("accuracy", 1), ("robustness", -1)) for t, m in found.items()}  # fmt: skip
    request.out.mkdir(parents=True, exist_ok=True)
    gate_sheet(x[:4], few, request.out / "gates.png")
    means = {f"{t:g}": m.mean((1, 2, 3)).tolist() for t, m in found.items()}
    spread = {f"{t:g}, spread over patches": m.std((2, 3)).mean(1).tolist() for t, m in found.items()}
    columns = ["trade-off", *(f"block {i + 1}" for i in range(model.depth))]
    rows = [[name, *values] for name, values in (means | spread).items()]
    record = study_record(held.request, held.model, held.judge)
    record.tables = [Table("Mean gate of the accuracy adapter on patches", columns, rows, NOTE)]
    lines = {name: [[i, v] for i, v in enumerate(values, start=1)] for name, values in means.items()}
    record.curves = [Curve("Mean gate of the accuracy adapter", "block", "gate", lines)]
    record.notes = [f"Maps: {request.out}/gates.png."]
    return record


NOTE = (
    "At one half both adapters count alike. The robustness adapter's gate is the rest to one, so its map is "
    "the accuracy adapter's with the colours exchanged."
)
