"""Figures 3, 4 and 5 (c, d) of the attention-scaling paper: blocks, iterations and budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robvit.attention.comparison import Comparison, ScalingMethod
from robvit.record import Record, Table
from robvit.studies.aas.common import PAPER, ScalingBench, bench, over_axis, shares
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import attack_title, per_cent
from robvit.threat import Threat


def _record(at: ScalingBench, compared: Mapping[int, Comparison], title: str, axis: str, text: str) -> Record:
    """Table, curve and claims over an axis; `text` names a comparison, such as "{} steps"."""
    named = {text.format(n): comparison for n, comparison in compared.items()}
    record = at.record(named, dict.fromkeys(named))
    table, curve = over_axis(title, axis, compared)
    record.tables.insert(0, table)
    record.curves = [curve]
    return record


@study("aas-fig3", paper=PAPER, title="Fig. 3: how many blocks are scaled, and models of several depths")
def blocks(
    context: StudyContext,
    *,
    steps: int = 100,
    eps: float = 8 / 255,
    batch: int = 64,
    models: Sequence[str] = (),
) -> Record:
    """(a) AAS on the first n blocks; (b) plain PGD and AAS on each of `models`, such as of several depths."""
    at = bench(context, eps, batch)
    compared = {
        n: at.compare("pgd", steps, ScalingMethod(settings={"blocks": n}), f"{n} blocks")
        for n in range(at.depth + 1)
    }
    record = _record(at, compared, "Fig. 3a: the first blocks scaled", "blocks", "{} blocks")
    rows: list[list[Any]] = []
    for name in models:
        other = bench(context, eps, batch, name)
        comparison = other.compare("pgd", steps, ScalingMethod(), name)
        rows.append([name, other.depth, *shares(comparison)])
        record.notes.append(str(comparison.claim(name)))
    if rows:
        plain = attack_title("pgd", {"steps": steps})
        columns = ["model", "blocks", f"{plain} %", "AAS %", "both %", "control %"]
        record.tables.append(Table("Fig. 3b: models of several depths", columns, rows))
    return record


@study("aas-fig4", paper=PAPER, title="Fig. 4: number of iterations")
def iterations(
    context: StudyContext,
    *,
    counts: Sequence[int] = (10, 50, 100, 200),
    eps: float = 8 / 255,
    batch: int = 64,
) -> Record:
    """PGD, PGD with AAS, and the control, over the number of steps; the paper goes to 1000."""
    at = bench(context, eps, batch)
    compared = {n: at.compare("pgd", n, ScalingMethod(), f"{n} steps") for n in counts}
    return _record(at, compared, "Fig. 4: iterations", "steps", "{} steps")


@study("aas-fig5", paper=PAPER, title="Fig. 5 (c, d): budgets from 0 to 100/255")
def budgets(
    context: StudyContext,
    *,
    levels: Sequence[int] = (0, 2, 4, 8, 16, 32, 64, 100),
    steps: int = 20,
    batch: int = 64,
) -> Record:
    """PGD and PGD with AAS over the budget: an accuracy that never reaches zero would tell of masking."""
    at = bench(context, batch=batch)
    compared = {
        n: at.compare("pgd", steps, ScalingMethod(), f"eps {n}/255", threat=Threat("linf", n / 255))
        for n in levels
    }
    record = _record(at, compared, "Fig. 5 (c, d): budgets", "eps x 255", "eps {}/255")
    last = max(compared)
    plain, scaled = (per_cent(trial) for trial in (compared[last].plain, compared[last].scaled))
    record.notes.append(
        f"At {last}/255 PGD leaves {plain:.1f} % and AAS {scaled:.1f} %; a model whose gradients are masked "
        "keeps some, as the paper's PGD-AT model does under PGD."
    )
    return record
