"""Figures 3, 4 and 5 (c, d) of the attention-scaling paper: blocks, iterations and budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robvit.measuring.comparison import Comparison
from robvit.record import Record, Table
from robvit.studies.aas.common import (
    EFFORT,
    PAPER,
    ScalingBench,
    ScalingEffort,
    arm_columns,
    bench,
    over_axis,
    searches_table,
    shares,
)
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import attack_title, per_cent
from robvit.threat import Threat
from robvit.training.fit import WEIGHTS


def _record(at: ScalingBench, compared: Mapping[int, Comparison], title: str, axis: str, text: str) -> Record:
    """Table, curve and claims over an axis; `text` names a comparison, such as "{} steps"."""
    named = {text.format(n): comparison for n, comparison in compared.items()}
    record = at.record(named, dict.fromkeys(named))
    table, curve = over_axis(title, axis, compared)
    record.tables.insert(0, table)
    record.curves = [curve]
    return record


@study(
    "aas-fig3",
    paper=PAPER,
    title="Fig. 3: how many blocks are scaled, and models of several depths",
    effort=EFFORT,
)
def blocks(
    context: StudyContext,
    effort: ScalingEffort,
    *,
    counts: Sequence[int] = (),
    models: Sequence[str] = (),
) -> Record:
    """(a) AAS on the first n blocks, all numbers if none are given; (b) AAS on each of `models`."""
    at = bench(context, effort)
    compared = {
        n: at.compare("pgd", effort.steps, effort.method(blocks=n), f"{n} blocks", blocks=n)
        for n in counts or range(at.depth + 1)
    }
    record = _record(at, compared, "Fig. 3a: the first blocks scaled", "blocks", "{} blocks")
    if models:
        _add_models(record, context, effort, models)
    return record


def _add_models(record: Record, context: StudyContext, effort: ScalingEffort, models: Sequence[str]) -> None:
    """Figure 3b: AAS on each of the models, every one judged by itself."""
    rows: list[list[Any]] = []
    compared = dict[str, Comparison]()
    for name in models:
        other, title = bench(context, effort, name), short_name(name)
        one = compared[title] = other.compare("pgd", effort.steps, effort.method(), title)
        rows.append([title, other.depth, *shares(one)])
        record.trials += [replace(t, scenario=title, control=True) for t in one.trials]
    claims = [one.claim(f"{title}: AAS") for title, one in compared.items()]
    record.claims += claims
    what = f"models of several depths, {attack_title('pgd', {'steps': effort.steps})}"
    record.tables += [
        Table(f"Fig. 3b: {what}", ["model", "blocks", *arm_columns(one)], rows),
        claims_table(claims, "Fig. 3b: does scaling break more than the control?"),
        *searches_table(compared, ", Fig. 3b"),
    ]


def short_name(model: str) -> str:
    """A model's name, or what tells its file from others."""
    path = Path(model)
    if path.name == WEIGHTS:
        return path.parent.name
    return path.stem if path.suffix == Path(WEIGHTS).suffix else model


@study("aas-fig4", paper=PAPER, title="Fig. 4: number of iterations", effort=EFFORT)
def iterations(
    context: StudyContext, effort: ScalingEffort, *, counts: Sequence[int] = (10, 50, 100, 200)
) -> Record:
    """PGD, PGD with AAS, and the control, over the number of steps; the paper goes to 1000."""
    at = bench(context, effort)
    compared = {n: at.compare("pgd", n, effort.method(), f"{n} steps") for n in counts}
    return _record(at, compared, "Fig. 4: iterations", "steps", "{} steps")


@study(
    "aas-fig5",
    paper=PAPER,
    title="Fig. 5 (c, d): budgets from 0 to 100/255",
    effort=replace(EFFORT, steps=20),
)
def budgets(
    context: StudyContext,
    effort: ScalingEffort,
    *,
    levels: Sequence[int] = (0, 2, 4, 8, 16, 32, 64, 100),
    models: Sequence[str] = (),
) -> Record:
    """PGD and PGD with AAS over the budget: an accuracy that never reaches zero would tell of masking.

    The paper's figure has two models, by PGD-AT and by AAS-AT: name those after the first in `models`.
    """
    at = bench(context, effort)
    record = _budgets(at, levels)
    for name in models:
        other, title = _budgets(bench(context, effort, name), levels), short_name(name)
        record.tables += [replace(table, title=f"{table.title}, {title}") for table in other.tables]
        record.curves += [replace(curve, title=f"{curve.title}, {title}") for curve in other.curves]
        record.claims += [replace(claim, text=f"{title}, {claim.text}") for claim in other.claims]
        record.trials += [
            replace(trial, scenario=f"{title}, {trial.scenario}", control=True) for trial in other.trials
        ]
        record.notes += [f"{title}: {note}" for note in other.notes]
    return record


def _budgets(at: ScalingBench, levels: Sequence[int]) -> Record:
    """One model's part of figure 5 (c, d)."""
    effort = at.effort
    compared = {
        n: at.compare("pgd", effort.steps, effort.method(), f"eps {n}/255", threat=Threat("linf", n / 255))
        for n in levels
    }
    title = f"Fig. 5 (c, d): budgets, {attack_title('pgd', {'steps': effort.steps})}"
    record = _record(at, compared, title, "eps x 255", "eps {}/255")
    last = max(compared)
    plain, scaled = (per_cent(trial) for trial in (compared[last].plain, compared[last].scaled))
    record.notes.append(
        f"At {last}/255 PGD leaves {plain:.1f} % and AAS {scaled:.1f} %; a model whose gradients are masked "
        "keeps some, as the paper's PGD-AT model does under PGD."
    )
    return record
