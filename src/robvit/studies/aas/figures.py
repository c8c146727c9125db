"""Figures 3, 4 and 5 (c, d) of the attention-scaling paper: blocks, iterations and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robvit.attention.comparison import ScalingMethod
from robvit.evaluation.record import Record, Table
from robvit.studies.aas.common import PAPER, bench, over, percent, shares
from robvit.studies.common import Request, study
from robvit.threat import Threat


@study("aas-fig3", paper=PAPER, title="Fig. 3: how many blocks are scaled, and models of several depths")
def blocks(
    request: Request, *, steps: int = 100, eps: float = 8 / 255, batch: int = 64, models: Sequence[str] = ()
) -> Record:
    """(a) AAS on the first n blocks; (b) plain PGD and AAS on each of `models`, such as of several depths."""
    at = bench(request, eps, batch)
    found = {
        n: at.compare("pgd", steps, ScalingMethod(settings={"blocks": n}), f"{n} blocks")
        for n in range(at.depth + 1)
    }
    record = at.record({f"{n} blocks": one for n, one in found.items()})
    table, curve = over("Fig. 3a: the first blocks scaled", "blocks", found)
    record.tables.insert(0, table)
    record.curves = [curve]
    rows: list[list[Any]] = []
    for name in models:
        other = bench(request, eps, batch, name)
        one = other.compare("pgd", steps, ScalingMethod(), name)
        rows.append([name, other.depth, *shares(one)])
        record.notes.append(f"{name}: {one.verdict()}")
    if rows:
        columns = ["model", "blocks", "PGD %", "AAS %", "both %", "control %"]
        record.tables.append(Table("Fig. 3b: models of several depths", columns, rows))
    return record


@study("aas-fig4", paper=PAPER, title="Fig. 4: number of iterations")
def iterations(
    request: Request, *, counts: Sequence[int] = (10, 50, 100, 200), eps: float = 8 / 255, batch: int = 64
) -> Record:
    """PGD, PGD with AAS, and the control, over the number of steps; the paper goes to 1000."""
    at = bench(request, eps, batch)
    found = {n: at.compare("pgd", n, ScalingMethod(), f"{n} steps") for n in counts}
    record = at.record({f"{n} steps": one for n, one in found.items()})
    table, curve = over("Fig. 4: iterations", "steps", found)
    record.tables.insert(0, table)
    record.curves = [curve]
    return record


@study("aas-fig5", paper=PAPER, title="Fig. 5 (c, d): budgets from 0 to 100/255")
def budgets(
    request: Request,
    *,
    levels: Sequence[int] = (0, 2, 4, 8, 16, 32, 64, 100),
    steps: int = 20,
    batch: int = 64,
) -> Record:
    """PGD and PGD with AAS over the budget: an accuracy that never reaches zero would tell of masking."""
    at = bench(request, batch=batch)
    found = {
        n: at.compare("pgd", steps, ScalingMethod(), f"eps {n}/255", threat=Threat("linf", n / 255))
        for n in levels
    }
    record = at.record({f"eps {n}/255": one for n, one in found.items()})
    table, curve = over("Fig. 5 (c, d): budgets", "eps x 255", found)
    record.tables.insert(0, table)
    record.curves = [curve]
    last = max(found)
    plain, scaled = (percent(trial.correct) for trial in (found[last].plain, found[last].scaled))
    record.notes.append(
        f"At {last}/255 PGD leaves {plain:.1f} % and AAS {scaled:.1f} %; a model whose gradients are masked "
        "keeps some, as the paper's PGD-AT model does under PGD."
    )
    return record
