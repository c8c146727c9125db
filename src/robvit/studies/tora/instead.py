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
from robvit.studies.tora.efforts import AdapterEffort, AttackEffort
from robvit.training.tuning import Tuning
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
    """Every way sees as many attacked images, and LoRA trains as many numbers as TORA for one trade-off.

    `shares` are of the robust weights. Rivals that learn from attacked images alone stand against the
    largest trade-off, those between two networks against the middle one.
    """
    at = bench(context, effort)
    at.check_classifier()
    seen = at.train(trades[-1:]).attacked  # for one trade-off, as the others are one network each
    tora = at.train(trades)
    numbers = _numbers(tora.at(trades[-1]))
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
    middle, robust = (f"TORA, {trade:g}" for trade in (trades[len(trades) // 2], trades[-1]))
    pairs = {f"{LORA}, rank {rank}": robust, FULL: robust, f"{shares[len(shares) // 2]:g} of {FULL}": middle}
    claims = [
        claim_of(f"{ours} over {rival}, {title}", judged[ours].outcomes[side], judged[rival].outcomes[side])
        for rival, ours in pairs.items()
        for side, title in enumerate(titles)
    ]
    trials = [trial for one in judged.values() for trial in one.trials]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    columns = ["", "numbers trained", "attacked images seen", *titles]
    note = (
        f"Per cent with 95 % intervals; all learned from {effort.learn} images, by the same attack and "
        "augmentation, and their last weights count. Numbers and attacked images are those of one trade-off "
        "of TORA, which sees clean images besides; the rivals see none, and stand against its largest."
    )
    record.tables = [
        Table("What a user would pick instead", columns, rows, note),
        attacks_table(judged, effort),
        claims_table(claims, trained=claims),
    ]
    ordered = {way: sorted(points) for way, points in lines.items()}
    axis = f"{titles[1 + effort.middle]}, %"
    record.curves = [Curve("Clean and robust accuracy", "clean, %", axis, ordered)]
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


def _numbers(model: Model) -> int:
    """How many numbers the adapters of a model have."""
    assert isinstance(model.adapters, Adapters)
    return sum(parameter.numel() for parameter in model.adapters.parameters())


def _numbers_a_rank(model: Model) -> int:
    """How many numbers a rank of one adds to all linear layers of the blocks."""
    layers = [model.net.get_submodule(name) for name in linear_layers(model)]
    return sum(layer.in_features + layer.out_features for layer in layers if isinstance(layer, nn.Linear))


def tuning_of(effort: AdapterEffort, *, seed: int, images: int, seen: int, method: str, rank: int) -> Tuning:
    """A tuning that sees so many attacked images by TORA's attack and augmentation; no weights are chosen.

    Of the `images` at hand one is held out, a formality.
    """
    recipe, batch = effort.recipe(seed), min(effort.batch, max(1, images // 2))
    return Tuning(
        method=method,
        rank=rank,
        loss="task",
        eps=effort.eps,
        eps_warmup=recipe.eps_warmup / recipe.epochs,
        steps=max(1, round(seen / batch)),
        batch=batch,
        held_out=1,
        validations=1,
        seed=seed,
        changes={"inner": recipe.inner.model_dump(), "augment": recipe.augment.model_dump()},
    )


def _tuned(at: AdapterBench, seen: int, method: Any, rank: int) -> Model:
    """The backbone tuned on labelled, attacked images, as many as TORA sees."""
    images = at.splits.train
    given = {"seed": at.context.seed, "images": len(images), "seen": seen, "method": method, "rank": rank}
    with progress(f"tuning {LORA if method == 'lora' else FULL}", total=1) as advance:
        made = robustify(
            at.model,
            images,
            method=method,
            tuning=tuning_of(at.effort, **given),
            out=at.folder(method, *([str(rank)] if method == "lora" else [])),
            progress=advance,
        )
    return made.model
