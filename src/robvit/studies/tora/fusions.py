"""Where the softmax of the fusion is taken, and what the slides leave open, each choice beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robvit.record import Record, Table, Trial
from robvit.registry import unknown
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import with_interval
from robvit.studies.tora.common import PAPER, WEAK, bench, title_of
from robvit.studies.tora.efforts import AttackEffort
from robvit.verdict import claim_of

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
    """Every choice trained alike, for each trade-off: clean, the slides' weak attacks, and PGD by budget.

    The first choice is compared with each of the others.
    """
    for name in choices:
        if name not in CHOICES:
            raise unknown("choice", name, list(CHOICES))
    at = bench(context, effort)
    attempts = (*WEAK, *effort.attempts)
    rows, judged = list[list[Any]](), dict[tuple[str, float], list[Trial]]()
    for name in choices:
        for trade in trades:
            model = at.train((trade,), **CHOICES[name])
            found = judged[name, trade] = at.judge(model, f"{name}, {trade:g}", attempts)
            rows.append([name, f"{trade:g}", *(with_interval(t.correct) for t in found)])
    ours = choices[0]
    claims = [
        claim_of(
            f"{ours} over {name}, {trade:g}, {title_of(attempts[place])}",
            judged[ours, trade][place].correct,
            judged[name, trade][place].correct,
        )
        for name in choices[1:]
        for trade in trades
        for place in (0, len(WEAK) + effort.middle)
    ]
    trials = [trial for found in judged.values() for trial in found]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    columns = ["", "trade-off", *(title_of(attempt) for attempt in attempts)]
    note = f"Per cent with 95 % intervals; adapters learned from {effort.learn} images."
    record.tables = [Table("Figure (b): places of the softmax", columns, rows, note)]
    if claims:
        record.tables.append(claims_table(claims, "Claims on choices, pair by pair"))
    return record
