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
from robvit.record import Curve, Record, Table, Trial
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import CLEAN, per_cent, with_interval
from robvit.studies.tora.common import PAPER, AdapterBench, bench, title_of
from robvit.studies.tora.efforts import AdapterEffort, AttackEffort
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
    tora = at.train(trades)
    assert isinstance(tora.adapters, Adapters)
    numbers = sum(parameter.numel() for parameter in tora.adapters.parameters())
    rank = max(1, round(numbers / _numbers_a_rank(at.model)))
    lora, full = (_tuned(at, effort, method, rank) for method in ("lora", "full"))
    attempts = (CLEAN, *effort.attempts)
    trials, rows = list[Trial](), list[list[Any]]()
    lines: dict[str, list[list[float]]] = {}
    weights = sum(parameter.numel() for parameter in full.net.parameters())
    models: list[tuple[str, str, Model, int]] = [
        ("backbone", "backbone", at.model, 0),
        *((f"TORA, {trade:g}", "TORA", tora.replace(trade_off=trade), numbers) for trade in trades),
        (f"{LORA}, rank {rank}", LORA, lora, rank * _numbers_a_rank(at.model)),
        (FULL, FULL, full, weights),
        *(
            (f"{share:g} of {FULL}", "interpolated", between(at.model, full, share), weights)
            for share in shares
        ),
    ]
    found: dict[str, list[Trial]] = {}
    for scenario, way, model, trained in models:
        judged = at.judge(model, scenario, attempts)
        found[scenario] = judged
        trials += judged
        rows.append([scenario, trained, *(with_interval(t.correct) for t in judged)])
        lines.setdefault(way, []).append([per_cent(judged[side]) for side in (0, 1 + effort.middle)])
    middle = found[f"TORA, {trades[len(trades) // 2]:g}"]
    rivals = (f"{LORA}, rank {rank}", FULL, f"{shares[len(shares) // 2]:g} of {FULL}")
    claims = [
        claim_of(f"TORA over {rival}, {what}", middle[side].correct, found[rival][side].correct)
        for rival in rivals
        for side, what in enumerate(map(title_of, attempts))
    ]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    columns = ["", "numbers trained", *map(title_of, attempts)]
    note = (
        f"Per cent with 95 % intervals; all learned from {effort.learn} images for as many steps as TORA's "
        "phases take."
    )
    record.tables = [Table("What a user would pick instead", columns, rows, note), claims_table(claims)]
    ordered = {way: sorted(points) for way, points in lines.items()}
    robust = f"{title_of(effort.attempts[effort.middle])}, %"
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


def _tuned(at: AdapterBench, effort: AdapterEffort, method: Any, rank: int) -> Model:
    """The backbone tuned on labelled, attacked images, for as many steps as TORA's phases take."""
    passes, images = 2 * effort.epochs + effort.fusion_epochs, len(at.splits.train)
    batch = min(effort.batch, max(1, images // 2))
    steps = max(1, round(passes * images / batch))
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
