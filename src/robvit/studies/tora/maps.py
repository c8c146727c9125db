"""Gate maps of TORA for several trade-offs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import adaptive_avg_pool2d

from robvit.data import open_data
from robvit.drawing.images import save_png
from robvit.errors import IGNORE, DataError
from robvit.explanation.figures.gates import gate_maps, gate_sheet
from robvit.record import Curve, Record, Table
from robvit.statistics import mean_interval
from robvit.studies.common import StudyContext, study
from robvit.studies.tora.common import PAPER, bench, trained_for
from robvit.studies.tora.efforts import AdapterEffort

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
    context: StudyContext,
    effort: AdapterEffort,
    *,
    trades: Sequence[float] = (0.1, 0.5, 0.9),
    knob: str = "states",
    masks: str = "",
) -> Record:
    """Maps of the first images for several trade-offs, in gates.png, and mean gates of all of them.

    The `knob` is as in tora-table1. With `masks`, a set such as pets:PATH, its images are shown, and gates
    on objects are told from those on what lies behind them.
    """
    at = bench(context, effort, images=4)
    tora = at.train(trained_for(trades, knob), knob=knob)
    size, judged = at.model.input_size[0], at.judged
    if masks:
        judged = open_data(masks, split="test", size=size, resize=context.resize, limit=len(at.judged))
        if judged.kind != "masks":
            raise DataError(f"expected images with masks, {masks} has {judged.kind}; name pets:PATH, say")
    x, y = judged.tensors()
    maps = {trade: gate_maps(tora.at(trade), x) for trade in trades}
    shown = {
        f"{name}, {t:g}": sign * m[:, :SHOWN] + (1 - sign) / 2
        for name, sign in (("accuracy", 1), ("robustness", -1))
        for t, m in maps.items()
    }
    save_png(gate_sheet(x[:SHOWN], shown), context.out / "gates.png")
    means = {f"{t:g}": m.mean((1, 2, 3)).tolist() for t, m in maps.items()}
    spread = {f"{t:g}, spread over patches": m.std((2, 3)).mean(1).tolist() for t, m in maps.items()}
    columns = ["trade-off", *(f"block {i + 1}" for i in range(tora.model.depth))]
    rows = [[name, *values] for name, values in (means | spread).items()]
    record = context.record(at.model, judged)
    record.tables = [Table("Mean gate of the accuracy adapter on patches", columns, rows, NOTE)]
    lines = {name: [[i, v] for i, v in enumerate(values, start=1)] for name, values in means.items()}
    record.curves = [Curve("Mean gate of the accuracy adapter", "block", "gate", lines)]
    if masks:
        behind = judged.classes.index("background")
        record.tables.append(_objects(maps, y, behind))
    return record


def _objects(maps: dict[float, torch.Tensor], y: torch.Tensor, behind: int) -> Table:
    """The accuracy adapter's gate on patches of object and background; y (B H W), maps as `gate_maps`."""
    rows: list[list[object]] = []
    rows_of, columns_of = next(iter(maps.values())).shape[-2:]
    grid = (rows_of, columns_of)
    share = adaptive_avg_pool2d(((y != behind) & (y != IGNORE)).float()[:, None], grid)[:, 0]
    known = adaptive_avg_pool2d((y != IGNORE).float()[:, None], grid)[:, 0]
    thing, rest = share > 0.5, (share < 0.1) & (known > 0.5)  # patches of the border count as neither
    both = thing.flatten(1).any(1) & rest.flatten(1).any(1)
    for trade, gates in maps.items():
        means = [
            [(values[:, one][:, where[one]]).mean(1) for one in both.nonzero()[:, 0].tolist()]
            for values, where in ((gates, thing), (gates, rest))
        ]
        on, off = (torch.stack(each) for each in means)  # (images blocks)
        for block in range(len(gates)):
            moved = (on - off)[:, block].tolist()
            *_, low, high = mean_interval(moved)
            way = "context" if high < 0 else "object" if low > 0 else "neither"
            shown = (float(on[:, block].mean()), float(off[:, block].mean()), f"{low:+.4f} to {high:+.4f}")
            rows.append([f"{trade:g}", block + 1, *shown, way])
    columns = [
        "trade-off",
        "block",
        "object",
        "background",
        "difference, 95 % interval",
        "higher on",
    ]
    note = (
        f"The accuracy adapter's gate, {int(both.sum())} images with both kinds of patches; the robustness "
        "adapter's is the rest to one. The slides: the accuracy adapter prioritises context, the robustness "
        "adapter the main object."
    )
    return Table("Gates on objects and on what lies behind them", columns, rows, note)
