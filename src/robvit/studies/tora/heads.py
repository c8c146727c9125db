"""Table 2 of the TORA-ViT slides: each head alone, and the joint output against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from robvit.record import Curve, Finding, Record, Table
from robvit.statistics import mean_interval
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import point
from robvit.studies.tora.attacked import JudgedRow, attacks_table, judge_row, titles_of
from robvit.studies.tora.common import PAPER, PUBLISHED, WEAK, OneHead, bench
from robvit.studies.tora.efforts import TableEffort
from robvit.studies.tora.tables import claims_over, columns_of, figures, note_of
from robvit.verdict import Claim

HEADS, JOINT = ("accuracy", "robustness"), "joint"
Outcomes = Mapping[str, Sequence[Sequence[bool]]]  # by trade-off and head: what stood under each attack


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
    tora = at.train(trades)
    judged, rows = dict[str, JudgedRow](), list[list[Any]]()
    for trade in trades:
        model = tora.at(trade)
        for head in (*HEADS, JOINT):
            scenario = f"{trade:g}, {head}"
            network: nn.Module = model if head == JOINT else OneHead(model, head)
            identity = model.identity() if head == JOINT else f"{model.identity()} {head}"
            one = judged[scenario] = judge_row(at, network, scenario, effort, identity=identity)
            ours = figures(at, network, one, effort, identity)
            rows.append([scenario, *ours, *PUBLISHED["table2"].row(scenario)])
    outcomes, titles = {name: row.outcomes for name, row in judged.items()}, titles_of(effort)
    claims = _head_claims(judged, trades, titles)
    trials = [trial for one in judged.values() for trial in one.trials]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    against, finding = _against_the_mean(outcomes, trades, titles)
    record.tables = [
        Table("Table 2: heads alone and joint", ["", *columns_of(effort)], rows, note_of(at, effort)),
        against,
        attacks_table(judged, effort),
        claims_table(claims, "Claims on heads, pair by pair", together=True),
    ]
    record.findings = [finding]
    record.curves = [_by_trade(outcomes, trades, titles)]
    return record


def _by_trade(outcomes: Outcomes, trades: Sequence[float], titles: Sequence[str]) -> Curve:
    """The joint output's accuracy, clean and under the worst attack within each budget."""
    lines = {
        title: [point(trade, outcomes[f"{trade:g}, {JOINT}"][place]) for trade in trades]
        for place, title in enumerate(titles)
        if place == 0 or place >= len(WEAK)
    }
    return Curve("Accuracy and robustness by trade-off", "trade-off", "accuracy, %", lines)


def _head_claims(
    judged: Mapping[str, JudgedRow], trades: Sequence[float], titles: Sequence[str]
) -> list[Claim]:
    """That the joint output is ahead of each head: clean, by the slides' PGD, and within the last budget."""
    published, claims = PUBLISHED["table2"], list[Claim]()
    places = {0: "clean", 2: "PGD", len(titles) - 1: ""}  # with the column of the slides
    for trade in trades:
        joint = f"{trade:g}, {JOINT}"
        for head in HEADS:
            rival = f"{trade:g}, {head}"
            text = f"{joint} over the {head} head"
            claims += claims_over(judged, joint, rival, text, places, titles, published)
    return claims


def _against_the_mean(
    outcomes: Outcomes, trades: Sequence[float], titles: Sequence[str]
) -> tuple[Table, Finding]:
    """The joint output less the mean of both heads, image by image, and whether it is below it."""
    places = range(len(titles))
    by_trade = [[_ahead(outcomes, trade, place) for place in places] for trade in trades]
    rows: list[list[Any]] = [
        [f"{trade:g}", *(_cell(values) for values in row)]
        for trade, row in zip(trades, by_trade, strict=True)
    ]
    together = [
        [sum(values) / len(trades) for values in zip(*(row[place] for row in by_trade), strict=True)]
        for place in places
    ]
    rows.append(["all together", *(_cell(values) for values in together)])
    below = [title for title, values in zip(titles, together, strict=True) if mean_interval(values)[3] < 0]
    evidence = f"below it beyond chance: {', '.join(below)}" if below else "nowhere below it beyond chance"
    finding = Finding("the joint output and the mean of its heads", "amber" if below else "green", evidence)
    note = "Points with 95 % intervals, paired by image; each head is attacked as the model it is."
    return Table("Joint output less the mean of its heads", ["trade-off", *titles], rows, note), finding


def _ahead(outcomes: Outcomes, trade: float, place: int) -> list[float]:
    """For every image, in points, the joint output's success less the mean of the heads'."""
    joint, *heads = (outcomes[f"{trade:g}, {head}"][place] for head in (JOINT, *HEADS))
    return [
        100 * (one - sum(each) / len(HEADS))
        for one, each in zip(joint, zip(*heads, strict=True), strict=True)
    ]


def _cell(values: Sequence[float]) -> str:
    mean, _, low, high = mean_interval(values)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
