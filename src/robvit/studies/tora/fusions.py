"""Where the softmax of the fusion is taken, and what the slides leave open, each choice beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robvit.record import Record, Table
from robvit.registry import unknown
from robvit.studies.claims import claims_table, preferred
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import with_interval
from robvit.studies.tora.attacked import JudgedRow, attacks_table, judge_row, titles_of
from robvit.studies.tora.common import PAPER, WEAK, bench
from robvit.studies.tora.efforts import AttackEffort
from robvit.studies.tora.tables import claims_over

# What a row changes in the adapters' settings; the first is what `robvit train tora` does.
CHOICES = {
    "softmax over the adapters": {},
    "over tokens, then over the adapters": {"fusion": "tokens"},
    "over the tokens of both adapters": {"fusion": "both"},
    "a gate for each token (AdapterFusion)": {"tuning": "adapterfusion"},
    "the slides' wiring": {"wiring": "slides"},
    "one fusion in phase 1": {"phase1": "shared"},
    "phase 2 from a fresh fusion": {"start": "fresh"},
}


@study(
    "tora-fig-softmax",
    paper=PAPER,
    title="Figure (b): where the softmax of the fusion is taken, and the wiring and phases of the slides",
    effort=AttackEffort(),
)
def softmax(
    context: StudyContext,
    effort: AttackEffort,
    *,
    trades: Sequence[float] = (0.1, 0.9),
    choices: Sequence[str] = tuple(CHOICES),
) -> Record:
    """Every choice trained alike, for each trade-off: clean, the slides' weak attacks, the worst by budget.

    The first choice is compared with each of the others.
    """
    for name in choices:
        if name not in CHOICES:
            raise unknown("choice", name, list(CHOICES))
    at = bench(context, effort)
    titles, compared = titles_of(effort), {0: "", len(WEAK) + effort.middle: ""}
    rows, judged = list[list[Any]](), dict[str, JudgedRow]()
    for name in choices:
        for trade in trades:
            model, scenario = at.train((trade,), **CHOICES[name]).model, f"{name}, {trade:g}"
            one = judged[scenario] = judge_row(at, model, scenario, effort)
            rows.append([name, f"{trade:g}", *map(with_interval, one.outcomes)])
    ours = choices[0]
    against = {
        name: [
            claim
            for trade in trades
            for claim in claims_over(
                judged,
                f"{ours}, {trade:g}",
                f"{name}, {trade:g}",
                f"{ours} over {name}, {trade:g}",
                compared,
                titles,
            )
        ]
        for name in choices[1:]
    }
    claims = [claim for each in against.values() for claim in each]
    trials = [trial for one in judged.values() for trial in one.trials]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    note = f"Per cent with 95 % intervals; adapters learned from {effort.learn} images."
    table = Table("Figure (b): places of the softmax", ["", "trade-off", *titles], rows, note)
    record.tables = [table, attacks_table(judged, effort)]
    if claims:
        title = "Claims on choices, pair by pair"
        record.tables.append(claims_table(claims, title, together=True, trained=claims))
        record.findings = [preferred(ours, against)]
    return record
