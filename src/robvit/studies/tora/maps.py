"""Gate maps of TORA for several trade-offs."""

from __future__ import annotations

import torch

from robvit.drawing.images import save_png
from robvit.evaluation.record import Curve, Record, Table
from robvit.explanation.figures.gates import gate_maps, gate_sheet
from robvit.studies.common import Request, study, study_record
from robvit.studies.tora.common import Effort, subject, trained
from robvit.studies.tora.paper import PAPER


@study("tora-fig-attention", paper=PAPER, title="Gates of both adapters over the image, by block")
def attention(
    request: Request,
    *,
    trades: tuple[float, ...] = (0.1, 0.5, 0.9),
    learn: int = 1500,
    epochs: float = 3,
    fusion_epochs: float = 1,
    eps: float = 4 / 255,
    training: str = "",
) -> Record:
    """Maps of the first images for several trade-offs, as PNG, and mean gates of all of them."""
    effort = Effort(learn, epochs, fusion_epochs, eps, training)
    held = subject(request, effort, 4)
    model = trained(request, held, effort, tuple(trades))
    x = held.judge.arrays()[0]
    found: dict[float, torch.Tensor] = {}
    for trade in trades:
        model.trade_off = trade
        found[trade] = gate_maps(model, x)
    few = {
        f"{name}, {t:g}": sign * m[:, :4] + (1 - sign) / 2
        for name, sign in (("accuracy", 1), ("robustness", -1))
        for t, m in found.items()
    }
    save_png(gate_sheet(x[:4], few), request.out / "gates.png")
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
