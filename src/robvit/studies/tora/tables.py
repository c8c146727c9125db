"""Tables 1 and 3 of the TORA-ViT slides at a small scale, the slides' figures beside ours.

The slides attack within 1/255 (FGSM, and PGD of 5 steps), which says little; PGD and AutoAttack within
several budgets stand beside it, and the headline is the worst of them and of the gate-aware attack.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from robvit.record import Finding, Record, Table, Trial
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import Attempt, per_cent, worst_of
from robvit.studies.published import PublishedTable
from robvit.studies.tora.attacked import Attacked, attack_within, fuses, gate_aware_trial, headline
from robvit.studies.tora.common import PAPER, PUBLISHED, WEAK, AdapterBench, bench, title_of
from robvit.studies.tora.cost import cost
from robvit.studies.tora.efforts import TableEffort
from robvit.studies.tora.variants import COLUMNS as VARIANTS
from robvit.studies.tora.variants import others, variants_of
from robvit.verdict import Claim, claim_of

SMALL = ["clean", "FGSM 1", "PGD-5 1", "C error"]
SLIDES = ["slides: clean", "FGSM", "PGD", "A", "R", "mCE"]
EFFORT = TableEffort()


def note_of(at: AdapterBench, effort: TableEffort) -> str:
    """What a reader of the tables has to know."""
    corrupted = len(at.first(effort.corrupted))
    return (
        "Per cent; budgets in 255ths. FGSM and PGD-5 within 1/255, as in RVT's code, with whose figures the "
        "slides compare, are a weak setting. C error is that of fifteen corruptions made here, severities "
        f"{', '.join(map(str, effort.severities))}, {corrupted} images, not normalised; mCE is the published "
        "one, of ImageNet-C's own files. The slides: ViT-B/16 on ImageNet, -A, -R and -C. Adapters learned "
        f"from {effort.learn} images within {effort.eps * 255:g}/255."
    )


@dataclass(frozen=True)
class JudgedRow:
    """A row of Table 1: the slides' attacks, and those within each budget."""

    weak: list[Trial]
    within: list[Attacked]

    @property
    def trials(self) -> list[Trial]:
        return [*self.weak, *(trial for one in self.within for trial in one.trials)]


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
    targets: int = 3,
    queries: int = 100,
    strong: int = 0,
    models: Sequence[str] = (),
) -> Record:
    """Clean, weak and strong attacks, corruptions, and the worst of all attacks as headline.

    AutoAttack, with so many `steps`, `targets` and `queries`, and the gate-aware attack see the first
    `strong` images, all if that is 0. `models` are other networks for the same classes, any that
    `robvit.load` takes.
    """
    at = bench(context, effort)
    at.check_classifier()
    variants, published, few = variants_of(effort), PUBLISHED["table1"], at.first(strong)
    rivals = {"backbone": at.model, **dict(others(at, models))}
    tora = at.train(trades)
    knob = {f"TORA, {trade:g}": tora.replace(trade_off=trade) for trade in trades}
    long = Attempt("autoattack", None, {"steps": effort.steps, "targets": targets, "queries": queries})
    judged, rows = dict[str, JudgedRow](), list[list[Any]]()
    for scenario, model in (rivals | knob).items():
        weak = at.judge(model, scenario, WEAK)
        one = JudgedRow(weak, attack_within(at, model, scenario, effort.attempts, long, few))
        judged[scenario] = one
        left = [per_cent(trial) for trial in weak]
        worst = [100 * sum(each) / len(each) for each in headline(one.within)]
        more = (at.corruption_error(model, effort), *worst, *variants.measure(at, model))
        rows.append([scenario, *left, *more, *published.row(scenario)])
    empty = (None,) * (len(rows[0]) - 1 - len(SLIDES))
    rows += [[name, *empty, *row] for name, row in published.rows.items() if name not in judged]
    columns = ["", *SMALL, *(f"worst {budget:g}" for budget in effort.budgets), *VARIANTS, *SLIDES]
    claims = _trade_claims([(name, judged[name]) for name in knob], effort)
    trials = [trial for one in judged.values() for trial in one.trials]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    seen = f"worst: of all attacks of the next table on its {len(few)} images."
    record.tables = [
        Table("Table 1: accuracy and robustness", columns, rows, f"{note_of(at, effort)} {seen}"),
        _attacks_table(judged, effort, long, len(few)),
        *([claims_table(claims, "Claims on the trade-off, pair by pair")] if claims else []),
    ]
    record.findings = [_trades_off([judged[name] for name in knob])]
    record.notes = ["The headline is the worst of PGD, AutoAttack and the gate-aware attack for each image."]
    return record


def _attacks_table(judged: Mapping[str, JudgedRow], effort: TableEffort, long: Attempt, count: int) -> Table:
    rows = [[name, str(one.threat), *one.cells()] for name, row in judged.items() for one in row.within]
    columns = ["", "within", effort.attempts[0].title, long.title, "gate-aware", "worst of these"]
    images = len(next(iter(judged.values())).weak[0].correct)
    note = f"Per cent with 95 % intervals; PGD on {images} images, the others and the worst on {count}."
    return Table("Attacks by budget", columns, rows, note)


def _trade_claims(rows: Sequence[tuple[str, JudgedRow]], effort: TableEffort) -> list[Claim]:
    """That the least trade-off is ahead on clean images, and the largest one under every attack."""
    (low, least), (high, most) = rows[0], rows[-1]
    if low == high:
        return []
    published = PUBLISHED["table1"]

    def ahead(what: str, column: str, first: tuple[str, Trial], second: tuple[str, Trial]) -> Claim:
        (better, one), (worse, other) = first, second
        paper = published.gain(better, worse, column)
        return claim_of(f"{better} over {worse}, {what}", one.correct, other.correct, paper)

    claims = [ahead("clean", "clean", (low, least.weak[0]), (high, most.weak[0]))]
    for at, column in ((1, "FGSM"), (2, "PGD")):
        claims.append(ahead(title_of(WEAK[at]), column, (high, most.weak[at]), (low, least.weak[at])))
    for attempt, one, other in zip(effort.attempts, most.within, least.within, strict=True):
        text = f"{high} over {low}, {title_of(attempt)}"
        claims.append(claim_of(text, one.pgd.correct, other.pgd.correct))
    standing = (headline(row.within) for row in (most, least))
    for threat, first, second in zip(effort.threats, *standing, strict=True):
        claims.append(claim_of(f"{high} over {low}, worst of all {threat}", first, second))
    return claims


def _trades_off(rows: Sequence[JudgedRow]) -> Finding:
    """Whether clean accuracy falls and robust accuracy rises with the trade-off, as the slides say."""
    clean = [per_cent(row.weak[0]) for row in rows]
    falls = all(a >= b for a, b in pairwise(clean))
    evidence, rises = [f"clean {_listed(clean)}"], True
    for place, one in enumerate(rows[0].within):
        standing = [headline(row.within)[place] for row in rows]
        robust = [100 * sum(each) / len(each) for each in standing]
        rises = rises and all(a <= b for a, b in pairwise(robust))
        evidence.append(f"worst of all attacks {one.threat}: {_listed(robust)}")
    status = "green" if falls and rises else "amber"
    told = f"{'; '.join(evidence)}, from the least to the largest trade-off"
    return Finding("the trade-off trades", status, told)


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


@study(
    "tora-table3", paper=PAPER, title="Table 3: tuning methods compared, with what they cost", effort=EFFORT
)
def table3(context: StudyContext, effort: TableEffort, *, trades: Sequence[float] = (0.1, 0.9)) -> Record:
    """Head-only, single adapter, AdapterFusion and TORA; operations and parameters on ViT-B/16.

    What has gates is also attacked through them, within the largest budget.
    """
    at = bench(context, effort)
    variants, last = variants_of(effort), effort.attempts[-1]
    attempts = (*WEAK, *effort.attempts)
    judged, rows = dict[str, list[Trial]](), list[list[Any]]()
    extra = list[Trial]()
    for trade in trades:
        for tuning, (gflops, millions) in PUBLISHED["cost"].rows.items():
            scenario = f"{trade:g}, {tuning}"
            start = time.monotonic()
            model = at.train((trade,), tuning=tuning)
            hours = (time.monotonic() - start) / 3600
            found = at.judge(model, scenario, attempts)
            worst = found[-1]
            if fuses(model):
                assert last.threat is not None
                extra.append(gate_aware_trial(at, model, at.judged, scenario, last.threat, effort.steps))
                worst = worst_of(worst, extra[-1])
            judged[scenario] = [*found, worst]
            counted = cost(tuning)
            price = (counted.gflops, gflops, counted.millions, millions, hours)
            error = at.corruption_error(model, effort)
            ours = (*(per_cent(t) for t in (*found, worst)), error, *variants.measure(at, model))
            slides = PUBLISHED["table3"].row(scenario)
            rows.append([scenario, *price, *PUBLISHED["hours"].row(scenario), *ours, *slides])
    titles = [*(title_of(one) for one in attempts), f"worst with gate-aware {last.threat}"]
    claims = _tuning_claims(judged, trades, titles)
    trials = [*(trial for found in judged.values() for trial in found[:-1]), *extra]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    price_columns = ["GFLOPs", "slides", "M weights", "slides", "hours of training here", "GPU hours, slides"]
    budgets = [f"{a.title} {b:g}" for a, b in zip(effort.attempts, effort.budgets, strict=True)]
    measured = [*SMALL[:3], *budgets, f"worst {effort.budgets[-1]:g}", SMALL[3]]
    note = f"{note_of(at, effort)} Hours are what was trained here and now: shared parts count once."
    table = Table("Table 3: tuning methods", ["", *price_columns, *measured, *VARIANTS, *SLIDES], rows, note)
    record.tables = [table, claims_table(claims, "Claims on tuning methods, pair by pair")]
    return record


def _tuning_claims(
    judged: Mapping[str, list[Trial]], trades: Sequence[float], titles: Sequence[str]
) -> list[Claim]:
    """That TORA is ahead of every other tuning, for each trade-off: clean, and by PGD within each budget.

    Within the last budget the worst of PGD and the gate-aware attack counts.
    """
    published, claims = PUBLISHED["table3"], list[Claim]()
    places = {0: "clean", 2: "PGD"}  # with the column of the slides
    places |= dict.fromkeys((*range(len(WEAK), len(titles) - 2), len(titles) - 1), "")
    for trade in trades:
        ours = f"{trade:g}, tora"
        for rival in (name for name in judged if name.startswith(f"{trade:g}, ") and name != ours):
            text = f"{ours} over {rival.split(', ')[1]}"
            claims += claims_over(judged, ours, rival, text, places, titles, published)
    return claims


def claims_over(
    judged: Mapping[str, Sequence[Trial]],
    ours: str,
    rival: str,
    text: str,
    places: Mapping[int, str],
    titles: Sequence[str],
    published: PublishedTable,
) -> list[Claim]:
    """That one row is ahead of another in the trials at `places`, with the slides' column of each if any."""
    claims = []
    for place, column in places.items():
        paper = published.gain(ours, rival, column) if column else None
        first, second = (judged[name][place].correct for name in (ours, rival))
        claims.append(claim_of(f"{text}, {titles[place]}", first, second, paper))
    return claims
