"""What a user would pick instead of TORA: LoRA, all weights, or weights between two networks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from robvit.backbones.model import Model
from robvit.defenses.low_rank import linear_layers
from robvit.defenses.tora.modules import Adapters
from robvit.hardening import robustify
from robvit.progress import progress
from robvit.record import Curve, Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import CLEAN, percentage, with_interval
from robvit.studies.tora.attacked import JudgedRow, attacks_table, judge_row, titles_of
from robvit.studies.tora.common import PAPER, AdapterBench, bench
from robvit.studies.tora.efforts import AttackEffort
from robvit.verdict import claim_of

LORA, FULL = "LoRA", "all weights"


@study(
    "tora-instead",
    paper=PAPER,
    title="beyond the slides: TORA beside LoRA, adversarial fine-tuning and interpolated weights",
    effort=AttackEffort(),
)
def instead(
    context: StudyContext,
    effort: AttackEffort,
    *,
    trades: Sequence[float] = (0.1, 0.5, 0.9),
    shares: Sequence[float] = (0.25, 0.5, 0.75),
) -> Record:
    """Every way sees as many images, and LoRA trains as many numbers; `shares` are of the robust weights."""
    at = bench(context, effort)
    at.check_classifier()
    seen = at.train(trades[:1]).seen  # for one trade-off, as the others are one network each
    tora = at.train(trades)
    assert isinstance(tora.model.adapters, Adapters)
    numbers = sum(parameter.numel() for parameter in tora.model.adapters.parameters())
    rank = max(1, round(numbers / _numbers_a_rank(at.model)))
    lora, full = (_tuned(at, seen, method, rank) for method in ("lora", "full"))
    titles = titles_of(effort, [CLEAN])
    rows = list[list[Any]]()
    lines: dict[str, list[list[float]]] = {}
    weights = sum(parameter.numel() for parameter in full.net.parameters())
    models: list[tuple[str, str, Model, int]] = [
        ("backbone", "backbone", at.model, 0),
        *((f"TORA, {trade:g}", "TORA", tora.at(trade), numbers) for trade in trades),
        (f"{LORA}, rank {rank}", LORA, lora, rank * _numbers_a_rank(at.model)),
        (FULL, FULL, full, weights),
        *(
            (f"{share:g} of {FULL}", "interpolated", between(at.model, full, share), weights)
            for share in shares
        ),
    ]
    judged: dict[str, JudgedRow] = {}
    for scenario, way, model, trained in models:
        one = judged[scenario] = judge_row(at, model, scenario, effort, weak=[CLEAN])
        rows.append([scenario, trained, seen if trained else 0, *map(with_interval, one.outcomes)])
        lines.setdefault(way, []).append([percentage(one.outcomes[side]) for side in (0, 1 + effort.middle)])
    middle = judged[f"TORA, {trades[len(trades) // 2]:g}"]
    rivals = (f"{LORA}, rank {rank}", FULL, f"{shares[len(shares) // 2]:g} of {FULL}")
    claims = [
        claim_of(f"TORA over {rival}, {title}", middle.outcomes[side], judged[rival].outcomes[side])
        for rival in rivals
        for side, title in enumerate(titles)
    ]
    trials = [trial for one in judged.values() for trial in one.trials]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    columns = ["", "numbers trained", "images seen", *titles]
    note = (
        f"Per cent with 95 % intervals; all learned from {effort.learn} images. Images seen: clean and "
        "attacked ones count each, for one trade-off of TORA."
    )
    record.tables = [
        Table("What a user would pick instead", columns, rows, note),
        attacks_table(judged, effort),
        claims_table(claims),
    ]
    ordered = {way: sorted(points) for way, points in lines.items()}
    robust = f"{titles[1 + effort.middle]}, %"
    record.curves = [Curve("Clean and robust accuracy", "clean, %", robust, ordered)]
    return record


def between(standard: Model, robust: Model, share: float) -> Model:
    """A network whose weights are so large a share of the robust one's, and the rest the standard one's."""
    made = copy.deepcopy(robust)
    first, second = standard.net.state_dict(), robust.net.state_dict()
    mixed = {
        name: first[name] + share * (value - first[name]) if value.is_floating_point() else value
        for name, value in second.items()
    }
    made.net.load_state_dict(mixed)
    return made


def _numbers_a_rank(model: Model) -> int:
    """How many numbers a rank of one adds to all linear layers of the blocks."""
    layers = [model.net.get_submodule(name) for name in linear_layers(model)]
    return sum(layer.in_features + layer.out_features for layer in layers if isinstance(layer, nn.Linear))


def _tuned(at: AdapterBench, seen: int, method: Any, rank: int) -> Model:
    """The backbone tuned on labelled, attacked images, so many as TORA's phases see clean and attacked."""
    effort = at.effort
    batch = min(effort.batch, max(1, len(at.splits.train) // 2))
    steps = max(1, round(seen / batch))
    options: dict[str, Any] = {"rank": rank} if method == "lora" else {}
    with progress(f"tuning {LORA if method == 'lora' else FULL}", total=1) as advance:
        made = robustify(
            at.model,
            at.splits.train,
            method=method,
            loss="task",
            eps=effort.eps,
            steps=steps,
            batch=batch,
            seed=at.context.seed,
            out=at.folder(method, *(str(value) for value in options.values())),
            progress=advance,
            **options,
        )
    return made.model
