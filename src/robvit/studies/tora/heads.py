"""Table 2 of the TORA-ViT slides: each head alone, and the joint output against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from robvit.record import Curve, Finding, Record, Table, Trial
from robvit.statistics import mean_interval
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import Attempt, per_cent, point
from robvit.studies.tora.common import PAPER, PUBLISHED, WEAK, OneHead, bench, title_of
from robvit.studies.tora.efforts import TableEffort
from robvit.studies.tora.tables import SLIDES, SMALL, claims_over, note_of
from robvit.studies.tora.variants import COLUMNS as VARIANTS
from robvit.studies.tora.variants import variants_of
from robvit.verdict import Claim

HEADS, JOINT = ("accuracy", "robustness"), "joint"
Judged = Mapping[str, Sequence[Trial]]  # by trade-off and head


@study(
    "tora-table2",
    paper=PAPER,
    title="Table 2: each head and the joint prediction for five trade-offs",
    effort=TableEffort(),
)
def table2(
    context: StudyContext, effort: TableEffort, *, trades: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9)
) -> Record:
    """Each head is attacked as the model it is; the joint output as the mean of both."""
    at = bench(context, effort)
    variants, attempts = variants_of(effort), (*WEAK, *effort.attempts)
    tora = at.train(trades)
    judged, rows = dict[str, list[Trial]](), list[list[Any]]()
    for trade in trades:
        model = tora.replace(trade_off=trade)
        for head in (*HEADS, JOINT):
            scenario = f"{trade:g}, {head}"
            network: nn.Module = model if head == JOINT else OneHead(model, head)
            identity = f"{model.identity()} {head}"
            judged[scenario] = at.judge(network, scenario, attempts, identity)
            left = [per_cent(trial) for trial in judged[scenario]]
            error = at.corruption_error(network, effort, identity)
            ours = (*left[: len(WEAK)], error, *left[len(WEAK) :], *variants.measure(at, network, identity))
            rows.append([scenario, *ours, *PUBLISHED["table2"].row(scenario)])
    claims = _head_claims(judged, trades, attempts)
    trials = [trial for found in judged.values() for trial in found]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    budgets = [f"{a.title} {b:g}" for a, b in zip(effort.attempts, effort.budgets, strict=True)]
    columns = ["", *SMALL, *budgets, *VARIANTS, *SLIDES]
    against, finding = _against_the_mean(judged, trades, attempts)
    record.tables = [
        Table("Table 2: heads alone and joint", columns, rows, note_of(at, effort)),
        against,
        claims_table(claims, "Claims on heads, pair by pair"),
    ]
    record.findings = [finding]
    record.curves = [_by_trade(judged, trades, attempts)]
    return record


def _by_trade(judged: Judged, trades: Sequence[float], attempts: Sequence[Attempt]) -> Curve:
    """The joint output's accuracy, clean and under PGD within each budget."""
    lines = {
        title_of(attempt): [point(trade, judged[f"{trade:g}, {JOINT}"][place].correct) for trade in trades]
        for place, attempt in enumerate(attempts)
        if place == 0 or place >= len(WEAK)
    }
    return Curve("Accuracy and robustness by trade-off", "trade-off", "accuracy, %", lines)


def _head_claims(judged: Judged, trades: Sequence[float], attempts: Sequence[Attempt]) -> list[Claim]:
    """That the joint output is ahead of each head: clean, by the slides' PGD, and within the last budget."""
    published, claims = PUBLISHED["table2"], list[Claim]()
    places = {0: "clean", 2: "PGD", len(attempts) - 1: ""}  # with the column of the slides
    titles = [title_of(attempt) for attempt in attempts]
    for trade in trades:
        joint = f"{trade:g}, {JOINT}"
        for head in HEADS:
            rival = f"{trade:g}, {head}"
            text = f"{joint} over the {head} head"
            claims += claims_over(judged, joint, rival, text, places, titles, published)
    return claims


def _against_the_mean(
    judged: Judged, trades: Sequence[float], attempts: Sequence[Attempt]
) -> tuple[Table, Finding]:
    """The joint output less the mean of both heads, image by image, and whether it is below it."""
    places = range(len(attempts))
    by_trade = [[_ahead(judged, trade, place) for place in places] for trade in trades]
    rows: list[list[Any]] = [
        [f"{trade:g}", *(_cell(values) for values in row)]
        for trade, row in zip(trades, by_trade, strict=True)
    ]
    together = [
        [sum(values) / len(trades) for values in zip(*(row[place] for row in by_trade), strict=True)]
        for place in places
    ]
    rows.append(["all together", *(_cell(values) for values in together)])
    below = [
        title_of(attempt)
        for attempt, values in zip(attempts, together, strict=True)
        if mean_interval(values)[3] < 0
    ]
    evidence = f"below it beyond chance: {', '.join(below)}" if below else "nowhere below it beyond chance"
    finding = Finding("the joint output and the mean of its heads", "amber" if below else "green", evidence)
    note = "Points with 95 % intervals, paired by image; each head is attacked as the model it is."
    columns = ["trade-off", *(title_of(attempt) for attempt in attempts)]
    return Table("Joint output less the mean of its heads", columns, rows, note), finding


def _ahead(judged: Judged, trade: float, place: int) -> list[float]:
    """For every image, in points, the joint output's success less the mean of the heads'."""
    joint, *heads = (judged[f"{trade:g}, {head}"][place].correct for head in (JOINT, *HEADS))
    return [
        100 * (one - sum(each) / len(HEADS))
        for one, each in zip(joint, zip(*heads, strict=True), strict=True)
    ]


def _cell(values: Sequence[float]) -> str:
    mean, _, low, high = mean_interval(values)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
