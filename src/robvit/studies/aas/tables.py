"""Tables 1, 2 and 3 of the attention-scaling paper: how much accuracy attacks leave, scaled and not."""

from __future__ import annotations

from typing import Any

from robvit.attacks.aas import FACTORS
from robvit.attention.comparison import Comparison, ScalingMethod
from robvit.record import Record, Table
from robvit.studies.aas.common import PAPER, PUBLISHED, bench, scaled_model, shares
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import attack_title, per_cent

# The paper's attacks: ours, and how many steps it gives them.
ATTACKS = {
    "FGSM": ("fgsm", 0),
    "PGD-20": ("pgd", 20),
    "PGD-100": ("pgd", 100),
    "CW": ("pgd_margin", 100),
    "DLR": ("pgd_dlr", 100),
    "GAMA": ("gama", 100),
}


@study("aas-table1", paper=PAPER, title="Table 1: one factor for all blocks")
def factors(context: StudyContext, *, steps: int = 100, eps: float = 8 / 255, batch: int = 64) -> Record:
    """PGD crafted at each factor, judged unscaled; the scaled model's own figures beside it."""
    at, published = bench(context, eps, batch), PUBLISHED["table1"]
    compared, rows = dict[str, Comparison](), list[list[Any]]()
    for factor in FACTORS:
        name = f"{factor:g}"
        method = ScalingMethod(scales=[factor] * at.depth)
        one = compared[name] = at.compare("pgd", steps, method, f"factor {name}")
        rows.append([name, *shares(one)[1:], *scaled_model(one), *published.row(name)])
    # A factor of one tests nothing; where the paper's scaled attack is the weaker one, it claims nothing.
    gains = {name: published.gain("1", name, "PGD-100") for name in compared if name != "1"}
    record = at.record(compared, {name: gain if gain and gain > 0 else None for name, gain in gains.items()})
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
    context: StudyContext, *, steps: int = 100, eps: float = 8 / 255, batch: int = 64, starts: int = 1
) -> Record:
    """PGD with scales found by each objective, judged unscaled."""
    at, published = bench(context, eps, batch), PUBLISHED["table2"]
    names = ("cross_entropy", "margin", "gama", "kl", "lpips", "unit")
    methods = {"scale": ScalingMethod(scales=[at.best_factor()] * at.depth)} | {
        name: ScalingMethod(settings={"objective": name, "starts": starts}) for name in names
    }
    compared = {n: at.compare("pgd", steps, method, f"scales by {n}") for n, method in methods.items()}
    plain = per_cent(compared["unit"].plain)
    rows: list[list[Any]] = [["none", plain, plain, None, *published.row("none")]]
    rows += [[name, *shares(one)[1:], *published.row(name)] for name, one in compared.items()]
    record = at.record(compared, {name: published.gain("none", name, "PGD-100") for name in compared})
    columns = ["scales by", f"PGD-{steps} %", "with plain PGD %", "control %", "paper, PGD-100 %"]
    record.tables.insert(0, Table("Table 2: objectives for the scales", columns, rows, at.note()))
    return record


@study("aas-table3", paper=PAPER, title="Table 3: six attacks, plain, with one factor and with AAS")
def attacks(
    context: StudyContext,
    *,
    steps: int = 100,
    eps: float = 8 / 255,
    batch: int = 64,
    starts: int = 1,
    objective: str = "unit",
    space: str = "linear",
) -> Record:
    """Every attack of the paper; `steps` shortens its long ones, which are then named by their length."""
    at = bench(context, eps, batch)
    factor = at.best_factor()
    method = ScalingMethod(settings={"starts": starts, "objective": objective, "space": space})
    compared, at_factor = dict[str, Comparison](), dict[str, float]()
    gains: dict[str, float | None] = {}
    rows: list[list[Any]] = []
    for paper_name, (base, length) in ATTACKS.items():
        count = min(length, steps)
        name = attack_title(base, {"steps": count} if count else {})
        published = PUBLISHED["table3"].row(paper_name)
        if name not in compared:  # shortened, PGD-20 and PGD-100 can be the same
            compared[name] = at.compare(base, count, method, f"{name} with AAS")
            at_factor[name] = at.accuracy_at(factor, base, count)
            gains[name] = _gain(*published)
        plain, *others = shares(compared[name])
        rows.append([name, plain, at_factor[name], *others, paper_name, *published])
    record = at.record(compared, gains)
    columns = [
        "attack",
        "plain %",
        f"factor {factor:g} %",
        "AAS %",
        "plain and AAS %",
        "control %",
        "paper's attack",
        "paper, plain %",
        "paper, factor %",
        "paper, AAS %",
    ]
    record.tables.insert(0, Table("Table 3: accuracy that is left", columns, rows, at.note()))
    own = [f"{name} {v:.1f} %" for name, one in compared.items() if (v := scaled_model(one)[1]) is not None]
    record.notes.append(f"Diagnostic, the scaled model under its own attack: {', '.join(own)}.")
    return record


def _gain(plain: float | None, _: float | None, scaled: float | None) -> float | None:
    """By how much more the paper's scaled attack breaks."""
    return None if plain is None or scaled is None else round(plain - scaled, 2)
