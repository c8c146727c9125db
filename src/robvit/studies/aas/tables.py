"""Tables 1, 2 and 3 of the attention-scaling paper: how much accuracy attacks leave, scaled and not."""

from __future__ import annotations

from typing import Any

from robvit.attacks.aas import FACTORS
from robvit.attention.comparison import ScalingMethod
from robvit.evaluation.record import Record, Table
from robvit.studies.aas.common import PAPER, bench, percent, shares
from robvit.studies.common import Request, study

# The paper's CIFAR-10 columns in per cent: ViT-B/16 trained with PGD-AT and AWP, eps 8/255.
FACTOR_ROWS = {
    1.0: (87.43, 61.10),
    1e-4: (86.23, 60.23),
    1e-3: (86.79, 60.14),
    1e-2: (87.01, 59.43),
    1e-1: (87.22, 60.87),
    10.0: (85.71, 66.78),
}
OBJECTIVE_ROWS = {
    "none": 61.10,
    "scale": 59.43,
    "cross_entropy": 60.13,
    "margin": 59.78,
    "gama": 59.85,
    "lpips": 58.01,
}
ATTACK_ROWS = {
    "FGSM": (66.48, 63.78, 61.04),
    "PGD-20": (63.14, 60.64, 58.21),
    "PGD-100": (61.10, 59.43, 58.01),
    "CW": (59.98, 58.13, 57.73),
    "DLR": (60.03, 58.31, 57.94),
    "GAMA": (59.78, 58.16, 57.61),
}
ATTACKS = {
    "FGSM": ("fgsm", 0),
    "PGD-20": ("pgd", 20),
    "PGD-100": ("pgd", 100),
    "CW": ("pgd_margin", 100),
    "DLR": ("pgd_dlr", 100),
    "GAMA": ("gama", 100),
}


@study("aas-table1", paper=PAPER, title="Table 1: one factor for all blocks")
def factors(request: Request, *, steps: int = 100, eps: float = 8 / 255, batch: int = 64) -> Record:
    """PGD crafted at each factor, judged unscaled; the scaled model's own figures beside it."""
    at = bench(request, eps, batch)
    found = {
        f"{factor:g}": at.compare(
            "pgd", steps, ScalingMethod(scales=[factor] * at.depth), f"factor {factor:g}"
        )
        for factor in FACTORS
    }
    rows: list[list[Any]] = []
    for factor, (name, one) in zip(FACTORS, found.items(), strict=True):
        own = [v * percent(one.clean.correct) for v in one.own] if one.own else [None, None]
        rows.append([name, *shares(one)[1:], *own, *FACTOR_ROWS.get(factor, (None, None))])
    record = at.record(found)
    columns = [
        "factor",
        f"PGD-{steps} %",
        "with plain PGD %",
        "control %",
        "scaled model, clean %",
        "scaled model, PGD %",
        "paper, clean %",
        "paper, PGD-100 %",
    ]
    record.tables.insert(0, Table("Table 1: one factor for all blocks", columns, rows, at.note()))
    record.notes.append(
        "The scaled model is judged on the images that the unscaled one gets right; others count as wrong."
    )
    return record


@study("aas-table2", paper=PAPER, title="Table 2: what the scales are found by")
def objectives(
    request: Request, *, steps: int = 100, eps: float = 8 / 255, batch: int = 64, starts: int = 1
) -> Record:
    """PGD with scales found by each objective, judged unscaled."""
    at = bench(request, eps, batch)
    names = ("cross_entropy", "margin", "gama", "kl", "lpips", "unit")
    ways = {"scale": ScalingMethod(scales=[at.best_factor()] * at.depth)} | {
        name: ScalingMethod(settings={"objective": name, "starts": starts}) for name in names
    }
    found = {name: at.compare("pgd", steps, way, f"scales by {name}") for name, way in ways.items()}
    plain = percent(found["unit"].plain.correct)
    rows: list[list[Any]] = [["none", plain, plain, None, OBJECTIVE_ROWS["none"]]]
    rows += [[name, *shares(one)[1:], OBJECTIVE_ROWS.get(name)] for name, one in found.items()]
    record = at.record(found)
    columns = ["scales by", f"PGD-{steps} %", "with plain PGD %", "control %", "paper, PGD-100 %"]
    record.tables.insert(0, Table("Table 2: objectives for the scales", columns, rows, at.note()))
    return record


@study("aas-table3", paper=PAPER, title="Table 3: six attacks, plain, with one factor and with AAS")
def attacks(
    request: Request,
    *,
    steps: int = 100,
    eps: float = 8 / 255,
    batch: int = 64,
    starts: int = 1,
    objective: str = "unit",
    space: str = "linear",
) -> Record:
    """Every attack of the paper; `steps` shortens its long ones."""
    at = bench(request, eps, batch)
    factor = at.best_factor()
    way = ScalingMethod(settings={"starts": starts, "objective": objective, "space": space})
    found, rows = {}, []
    for name, (base, length) in ATTACKS.items():
        count = min(length, steps)
        one = found[name] = at.compare(base, count, way, f"{name} with AAS")
        plain, *others = shares(one)
        rows.append([name, plain, at.left_at(factor, base, count), *others, *ATTACK_ROWS[name]])
    record = at.record(found)
    columns = [
        "attack",
        "plain %",
        f"factor {factor:g} %",
        "AAS %",
        "plain and AAS %",
        "control %",
        "paper, plain %",
        "paper, factor %",
        "paper, AAS %",
    ]
    record.tables.insert(0, Table("Table 3: accuracy that is left", columns, rows, at.note()))
    own = [f"{name} {v.own[1] * percent(v.clean.correct):.1f} %" for name, v in found.items() if v.own]
    record.notes.append(f"Diagnostic, the scaled model under its own attack: {', '.join(own)}.")
    return record
