"""Tables 1, 2 and 3 of the attention-scaling paper: how much accuracy attacks leave, scaled and not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from robvit.attacks.aas import FACTORS
from robvit.measuring.comparison import Comparison, ScalingMethod
from robvit.record import Finding, Record, Table
from robvit.registry import unknown
from robvit.studies.aas.common import (
    EFFORT,
    MOVED,
    PAPER,
    ScalingEffort,
    arm_columns,
    bench,
    furthest_move,
    published_for,
    scaled_model,
    shares,
)
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import attack_title

# The paper's attacks: ours, and how many steps it gives them.
ATTACKS = {
    "FGSM": ("fgsm", 0),
    "PGD-20": ("pgd", 20),
    "PGD-100": ("pgd", 100),
    "CW": ("pgd_margin", 100),
    "DLR": ("pgd_dlr", 100),
    "GAMA": ("gama", 100),
}
OWN = ["scaled model, clean %", "scaled model, attacked %"]
OWN_NOTE = "The scaled model is judged on the images that the unscaled one gets right; others count as wrong."


@study("aas-table1", paper=PAPER, title="Table 1: one factor for all blocks", effort=EFFORT)
def factors(context: StudyContext, effort: ScalingEffort, *, tried: Sequence[float] = FACTORS) -> Record:
    """PGD crafted at each factor, judged unscaled; the scaled model's own figures beside it."""
    at, published = bench(context, effort), published_for("table1", context)
    compared, rows = dict[str, Comparison](), list[list[Any]]()
    for factor in tried:
        name = f"{factor:g}"
        method = ScalingMethod(scales=[factor] * at.depth)
        one = compared[name] = at.compare("pgd", effort.steps, method, f"factor {name}")
        rows.append([name, *shares(one), *scaled_model(one), *published.row(name)])
    # A factor of one tests nothing; where the paper's scaled attack is the weaker one, it claims nothing.
    gains = {name: published.gain("1", name, "PGD-100") for name in compared if name != "1"}
    record = at.record(compared, {name: gain if gain and gain > 0 else None for name, gain in gains.items()})
    columns = ["factor", *(c.replace("AAS", "it") for c in arm_columns(one)), *OWN]
    columns += ["paper, clean %", "paper, PGD-100 %"]
    title = f"Table 1: one factor for all blocks, {attack_title('pgd', {'steps': effort.steps})}"
    record.tables.insert(0, Table(title, columns, rows, at.note()))
    record.notes.append(OWN_NOTE)
    return record


@study("aas-table2", paper=PAPER, title="Table 2: what the scales are found by", effort=EFFORT)
def objectives(
    context: StudyContext,
    effort: ScalingEffort,
    *,
    names: Sequence[str] = ("cross_entropy", "margin", "gama", "kl", "lpips", "unit"),
) -> Record:
    """PGD with scales found by each objective, judged unscaled; `lpips` is Eq. 3 to the letter."""
    at, published = bench(context, effort), published_for("table2", context)
    methods = {"scale": ScalingMethod(scales=[at.unsearched.best_factor] * at.depth)}
    methods |= {name: replace(effort, objective=name).method() for name in names}
    compared = {n: at.compare("pgd", effort.steps, way, f"scales by {n}") for n, way in methods.items()}
    rows: list[list[Any]] = [
        [name, *shares(one), *scaled_model(one), *published.row(name)] for name, one in compared.items()
    ]
    record = at.record(compared, {name: published.gain("none", name, "PGD-100") for name in compared})
    columns = ["scales by", *arm_columns(compared["scale"]), *OWN, "paper, clean %", "paper, PGD-100 %"]
    title = f"Table 2: objectives for the scales, {attack_title('pgd', {'steps': effort.steps})}"
    record.tables.insert(0, Table(title, columns, rows, at.note()))
    record.notes.append(OWN_NOTE)
    return record


@study(
    "aas-table3",
    paper=PAPER,
    title="Table 3: six attacks, plain, with one factor and with AAS",
    effort=EFFORT,
)
def attacks(
    context: StudyContext, effort: ScalingEffort, *, attacks: Sequence[str] = tuple(ATTACKS)
) -> Record:
    """Every attack of the paper; `steps` shortens its long ones, which are then named by their length."""
    at = bench(context, effort)
    compared = dict[str, Comparison]()
    gains: dict[str, float | None] = {}
    rows: list[list[Any]] = []
    for paper_name in attacks:
        if paper_name not in ATTACKS:
            raise unknown("attack of Table 3", paper_name, list(ATTACKS))
        base, length = ATTACKS[paper_name]
        count = min(length, effort.steps)
        name = attack_title(base, {"steps": count} if count else {})
        published = published_for("table3", context).row(paper_name)
        if name not in compared:  # shortened, PGD-20 and PGD-100 can be the same
            compared[name] = at.compare(base, count, effort.method(), f"{name} with AAS")
            gains[name] = _gain(*published)
        one = compared[name]
        rows.append([name, *shares(one), *scaled_model(one), paper_name, *published])
    record = at.record(compared, gains)
    columns = ["attack", *arm_columns(one), *OWN, "paper's attack"]
    columns += ["paper, plain %", "paper, factor %", "paper, AAS %"]
    title = f"Table 3: accuracy that is left, factor {at.unsearched.best_factor:g}"
    record.tables.insert(0, Table(title, columns, rows, at.note()))
    record.notes.append(OWN_NOTE)
    return record


def _gain(plain: float | None, _: float | None, scaled: float | None) -> float | None:
    """By how much more the paper's scaled attack breaks."""
    return None if plain is None or scaled is None else round(plain - scaled, 2)


LITERAL = "lpips, gradient steps, linear, train"  # Algorithm 1 with Eq. 3 as the paper writes them
STILL = 0.05  # of the range of a scale: below it the scales are those of the random start


@study("aas-search", paper=PAPER, title="Algorithm 1: every way to take its steps", effort=EFFORT)
def searches(
    context: StudyContext,
    effort: ScalingEffort,
    *,
    objectives: Sequence[str] = ("lpips", "unit"),
    directions: Sequence[str] = ("gradient", "sign", "unit"),
    spaces: Sequence[str] = ("linear", "log"),
    fits: Sequence[str] = ("train", "batch"),
) -> Record:
    """Do the scales move, where do they end, and does PGD gain? The paper: lpips, gradient, linear, train."""
    at = bench(context, effort)
    compared = dict[str, Comparison]()
    for objective in objectives:
        for direction in directions:
            for space in spaces:
                for fit in fits:
                    way = replace(effort, objective=objective, direction=direction, space=space, fit=fit)
                    name = f"{objective}, {direction} steps, {space}, {fit}"
                    compared[name] = at.compare("pgd", effort.steps, way.method(), name)
    rows: list[list[Any]] = [[name, *shares(one), *scaled_model(one)] for name, one in compared.items()]
    record = at.record(compared, dict.fromkeys(compared))
    *_, last = compared.values()
    title = f"Algorithm 1, {attack_title('pgd', {'steps': effort.steps})}"
    record.tables.insert(0, Table(title, ["search", *arm_columns(last), *OWN], rows, at.note()))
    record.notes.append(OWN_NOTE)
    if LITERAL in compared:
        finding = movement(compared)
        record.findings.append(finding)
        told = {MOVED: finding.evidence}
        record.tables = [replace(t, note=f"{t.note} {told.get(t.title, '')}".strip()) for t in record.tables]
    return record


def movement(compared: Mapping[str, Comparison]) -> Finding:
    """Whether the literal algorithm moves its scales, told either way with its figure."""
    moves = {name: furthest_move(one) for name, one in compared.items()}
    literal = moves.pop(LITERAL)
    still = literal < STILL
    text = (
        f"The literal algorithm ({LITERAL}) {'does not move' if still else 'moves'}: its ascent took the "
        f"scale that it moved most {literal:.2g} away from the random start, in a range of 1"
    )
    if moves:
        most = max(moves, key=lambda name: moves[name])
        text += f"; of the other ways {most} moved most, {moves[most]:.2g}"
    return Finding("the literal algorithm moves", "amber" if still else "green", f"{text}.")
