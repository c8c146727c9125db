"""Tables 1 and 3 of the TORA-ViT slides at a small scale, the slides' figures beside ours.

The slides attack within 1/255 (FGSM, and PGD of 5 steps), which says little; beside it stands the worst of
PGD, AutoAttack and an attack that knows of the gates, within several budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from robvit.record import Finding, Record, Table
from robvit.statistics import holm
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import percentage
from robvit.studies.published import PublishedTable
from robvit.studies.tora.attacked import JudgedRow, attacks_table, judge_row, titles_of
from robvit.studies.tora.common import PAPER, PUBLISHED, WEAK, AdapterBench, bench, trained_for
from robvit.studies.tora.cost import cost
from robvit.studies.tora.efforts import TableEffort
from robvit.studies.tora.variants import COLUMNS as VARIANTS
from robvit.studies.tora.variants import others, variants_of
from robvit.verdict import SURE, Claim, claim_of, seen_together

SMALL = ["clean", "FGSM 1", "PGD-5 1", "C error"]
SLIDES = ["slides: clean", "FGSM", "PGD", "A", "R", "mCE"]
EFFORT = TableEffort()


def note_of(at: AdapterBench, effort: TableEffort) -> str:
    """What a reader of the tables has to know."""
    corrupted = len(at.first(effort.corrupted))
    return (
        "Per cent; budgets in 255ths. FGSM and PGD-5 within 1/255, as in RVT's code, with whose figures the "
        "slides compare, are a weak setting. C error is that of fifteen corruptions made here, severities "
        f"{', '.join(map(str, effort.severities))}, {corrupted} images, not normalised; worst: what all "
        f"attacks of the next table leave of {len(at.first(effort.strong))} images; mCE is the published "
        "one, of ImageNet-C's own files. The slides: ViT-B/16 on ImageNet, -A, -R and -C. Adapters learned "
        f"from {effort.learn} images within {effort.eps * 255:g}/255."
    )


def columns_of(effort: TableEffort) -> list[str]:
    """The columns of the tables' figures, and of the slides'."""
    return [*SMALL, *(f"worst {budget:g}" for budget in effort.budgets), *VARIANTS, *SLIDES]


def figures(
    at: AdapterBench, model: nn.Module, row: JudgedRow, effort: TableEffort, identity: str = ""
) -> list[float | None]:
    """A row of the tables up to the slides' figures: attacks, corruptions, ImageNet's variants."""
    left = [percentage(correct) for correct in row.outcomes]
    error = at.corruption_error(model, effort, identity)
    variants = variants_of(effort).measure(at, model, identity)
    return [*left[: len(WEAK)], error, *left[len(WEAK) :], *variants]


@study(
    "tora-table1",
    paper=PAPER,
    title="Table 1: TORA for several trade-offs beside other networks",
    effort=EFFORT,
)
def table1(
    context: StudyContext,
    effort: TableEffort,
    *,
    trades: Sequence[float] = (0.1, 0.5, 0.9),
    knob: str = "states",
    models: Sequence[str] = (),
) -> Record:
    """Clean, weak and strong attacks, corruptions, and the worst of all attacks as headline.

    With the `knob` "path" one phase 2 for the ends serves all trade-offs. `models` are other networks for
    the same classes, any that `robvit.load` takes.
    """
    at = bench(context, effort)
    at.check_classifier()
    published = PUBLISHED["table1"]
    rivals = {"backbone": at.model, **dict(others(at, models))}
    tora = at.train(trained_for(trades, knob), knob=knob)
    ours = {f"TORA, {trade:g}": tora.at(trade) for trade in trades}
    judged, rows = dict[str, JudgedRow](), list[list[Any]]()
    for scenario, model in (rivals | ours).items():
        one = judged[scenario] = judge_row(at, model, scenario, effort)
        rows.append([scenario, *figures(at, model, one, effort), *published.row(scenario)])
    empty = (None,) * (len(rows[0]) - 1 - len(SLIDES))
    rows += [[name, *empty, *row] for name, row in published.rows.items() if name not in judged]
    claims = _trade_claims({name: judged[name] for name in ours}, effort)
    trials = [trial for one in judged.values() for trial in one.trials]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    record.tables = [
        Table("Table 1: accuracy and robustness", ["", *columns_of(effort)], rows, note_of(at, effort)),
        attacks_table(judged, effort),
        *([claims_table(claims, "Claims on the trade-off, pair by pair", trained=claims)] if claims else []),
    ]
    record.findings = [_trades_off([judged[name] for name in ours], effort)]
    return record


def _trade_claims(rows: Mapping[str, JudgedRow], effort: TableEffort) -> list[Claim]:
    """That the least trade-off is ahead on clean images, and the largest one under every attack."""
    low, *_, high = *rows, *rows
    if low == high:
        return []
    titles, published = titles_of(effort), PUBLISHED["table1"]
    attacked = {1: "FGSM", 2: "PGD"} | dict.fromkeys(range(len(WEAK), len(titles)), "")
    return [
        *claims_over(rows, low, high, f"{low} over {high}", {0: "clean"}, titles, published),
        *claims_over(rows, high, low, f"{high} over {low}", attacked, titles, published),
    ]


def _trades_off(rows: Sequence[JudgedRow], effort: TableEffort) -> Finding:
    """Whether clean accuracy falls and robust accuracy rises with the trade-off, as the slides say.

    It does if the ends differ beyond chance, clean and within some budget, and not if a step is reversed
    beyond it; otherwise so many images do not tell.
    """
    names = ["clean", *(f"worst of all attacks {threat}:" for threat in effort.threats)]
    places = (0, *range(len(WEAK), len(WEAK) + len(effort.budgets)))
    left = [[row.outcomes[place] for row in rows] for place in places]
    rising = [left[0][::-1], *left[1:]]  # each from where accuracy is to be least
    ends = [_step(each[0], each[-1]) for each in rising]
    falls, *rises = seen_together(ends)
    steps = [_step(first, then) for each in rising for first, then in pairwise(each)]
    turned, opposite = _reversed(steps), _reversed(ends)
    trades = falls and any(rises)
    apart = "differ as they should" if trades else "are not told apart"
    listed = "; ".join(f"{name} {_listed(each)}" for name, each in zip(names, left, strict=True))
    told = (
        f"{listed}, from the least to the largest trade-off. Beyond chance (Holm's correction) the ends "
        f"{f'are reversed in {opposite} of {len(ends)}' if opposite else apart}, and {turned} of "
        f"{len(steps)} steps are reversed"
    )
    status = "amber" if turned or opposite else "green" if trades else "skipped"
    return Finding("the trade-off trades", status, told)


def _reversed(claims: Sequence[Claim]) -> int:
    """How many of them come out the other way, beyond chance after Holm's correction."""
    chances = holm([claim.p for claim in claims])
    return sum(p < SURE and claim.difference < 0 for claim, p in zip(claims, chances, strict=True))


def _step(first: Sequence[bool], then: Sequence[bool]) -> Claim:
    """That accuracy rises from one trade-off to another."""
    return claim_of("it rises", then, first)


def _listed(rows: Sequence[Sequence[bool]]) -> str:
    return ", ".join(f"{percentage(row):.1f}" for row in rows)


@study(
    "tora-table3", paper=PAPER, title="Table 3: tuning methods compared, with what they cost", effort=EFFORT
)
def table3(context: StudyContext, effort: TableEffort, *, trades: Sequence[float] = (0.1, 0.9)) -> Record:
    """Head-only, single adapter, AdapterFusion and TORA; operations and parameters on ViT-B/16."""
    at = bench(context, effort)
    judged, rows = dict[str, JudgedRow](), list[list[Any]]()
    for trade in trades:
        for tuning, (gflops, millions) in PUBLISHED["cost"].rows.items():
            scenario = f"{trade:g}, {tuning}"
            trained = at.train((trade,), tuning=tuning)
            one = judged[scenario] = judge_row(at, trained.model, scenario, effort)
            counted = cost(tuning)
            price = (counted.gflops, gflops, counted.millions, millions, trained.seen, trained.seconds / 3600)
            ours, slides = figures(at, trained.model, one, effort), PUBLISHED["table3"].row(scenario)
            rows.append([scenario, *price, *PUBLISHED["hours"].row(scenario), *ours, *slides])
    claims = _tuning_claims(judged, trades, titles_of(effort))
    trials = [trial for one in judged.values() for trial in one.trials]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    price_columns = ["GFLOPs", "slides", "M weights", "slides", "images seen", "hours", "GPU hours, slides"]
    note = (
        f"{note_of(at, effort)} Images seen: clean and attacked ones count each. Hours: those of all "
        "phases on this machine, also where another study trained them."
    )
    record.tables = [
        Table("Table 3: tuning methods", ["", *price_columns, *columns_of(effort)], rows, note),
        attacks_table(judged, effort),
        claims_table(claims, "Claims on tuning methods, pair by pair", together=True, trained=claims),
    ]
    return record


def _tuning_claims(
    judged: Mapping[str, JudgedRow], trades: Sequence[float], titles: Sequence[str]
) -> list[Claim]:
    """That TORA is ahead of every other tuning, for each trade-off: clean, and by the worst attack."""
    published, claims = PUBLISHED["table3"], list[Claim]()
    places = {0: "clean", 2: "PGD"}  # with the column of the slides
    places |= dict.fromkeys(range(len(WEAK), len(titles)), "")
    for trade in trades:
        ours = f"{trade:g}, tora"
        for rival in (name for name in judged if name.startswith(f"{trade:g}, ") and name != ours):
            text = f"{ours} over {rival.split(', ')[1]}"
            claims += claims_over(judged, ours, rival, text, places, titles, published)
    return claims


def claims_over(
    judged: Mapping[str, JudgedRow],
    ours: str,
    rival: str,
    text: str,
    places: Mapping[int, str],
    titles: Sequence[str],
    published: PublishedTable | None = None,
) -> list[Claim]:
    """That one row is ahead of another in the outcomes at `places`, with the slides' column of each."""
    claims = []
    for place, column in places.items():
        paper = published.gain(ours, rival, column) if published and column else None
        first, second = (judged[name].outcomes[place] for name in (ours, rival))
        claims.append(claim_of(f"{text}, {titles[place]}", first, second, paper))
    return claims
