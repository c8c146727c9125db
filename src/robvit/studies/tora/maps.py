"""Gate maps of TORA for several trade-offs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from robvit.drawing.images import save_png
from robvit.explanation.figures.gates import gate_maps, gate_sheet
from robvit.record import Curve, Record, Table
from robvit.studies.common import StudyContext, study
from robvit.studies.tora.common import PAPER, AdapterEffort, bench

SHOWN = 4
NOTE = (
    "At one half both adapters count alike. The robustness adapter's gate is the rest to one, so its map is "
    "the accuracy adapter's with the colours exchanged."
)


@study(
    "tora-fig-attention",
    paper=PAPER,
    title="Gates of both adapters over the image, by block",
    effort=AdapterEffort(),
)
def attention(
    context: StudyContext, effort: AdapterEffort, *, trades: Sequence[float] = (0.1, 0.5, 0.9)
) -> Record:
    """Maps of the first images for several trade-offs, in gates.png, and mean gates of all of them."""
    at = bench(context, effort, images=4)
    model = at.train(trades)
    x = at.judged.tensors()[0]
    maps: dict[float, torch.Tensor] = {}
    for trade in trades:
        model.trade_off = trade
        maps[trade] = gate_maps(model, x)
    shown = {
        f"{name}, {t:g}": sign * m[:, :SHOWN] + (1 - sign) / 2
        for name, sign in (("accuracy", 1), ("robustness", -1))
        for t, m in maps.items()
    }
    save_png(gate_sheet(x[:SHOWN], shown), context.out / "gates.png")
    means = {f"{t:g}": m.mean((1, 2, 3)).tolist() for t, m in maps.items()}
    spread = {f"{t:g}, spread over patches": m.std((2, 3)).mean(1).tolist() for t, m in maps.items()}
    columns = ["trade-off", *(f"block {i + 1}" for i in range(model.depth))]
    rows = [[name, *values] for name, values in (means | spread).items()]
    record = context.record(at.model, at.judged)
    record.tables = [Table("Mean gate of the accuracy adapter on patches", columns, rows, NOTE)]
    lines = {name: [[i, v] for i, v in enumerate(values, start=1)] for name, values in means.items()}
    record.curves = [Curve("Mean gate of the accuracy adapter", "block", "gate", lines)]
    return record
