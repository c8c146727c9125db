"""Where the softmax of the fusion is taken, and what the slides leave open, each choice beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robvit.record import Record, Table, Trial
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import Attempt, with_interval
from robvit.studies.tora.common import PAPER, STRONG, WEAK, AdapterEffort, bench

# What a row changes in the adapters' settings.
CHOICES = {
    "softmax over the adapters": {},
    "over tokens, then over the adapters": {"fusion": "tokens"},
    "over the tokens of both adapters": {"fusion": "both"},
    "a gate for each token (AdapterFusion)": {"fusion": "own"},
    "the slides' wiring": {"wiring": "slides"},
    "one fusion in phase 1": {"phase1": "shared"},
}


@study(
    "tora-fig-softmax",
    paper=PAPER,
    title="Figure (b): where the softmax of the fusion is taken, and the wiring and phases of the slides",
    effort=AdapterEffort(),
)
def softmax(
    context: StudyContext,
    effort: AdapterEffort,
    *,
    trades: Sequence[float] = (0.1, 0.9),
    steps: int = 20,
    choices: Sequence[str] = tuple(CHOICES),
) -> Record:
    """Every choice trained alike, for each trade-off: clean, the slides' weak attacks, and PGD at 4/255."""
    at = bench(context, effort)
    pgd = Attempt("pgd", STRONG[0], {"steps": steps})
    attempts = (*WEAK, pgd)
    trials, rows = list[Trial](), list[list[Any]]()
    for name in choices:
        for trade in trades:
            model = at.train((trade,), **CHOICES[name])
            judged = at.judge(model, f"{name}, {trade:g}", attempts)
            rows.append([name, f"{trade:g}", *(with_interval(t.correct) for t in judged)])
            trials += judged
    record = context.record(at.model, at.judged, trials=trials)
    columns = ["", "trade-off", *(f"{a.title}, {a.threat}" if a.threat else a.title for a in attempts)]
    note = f"Per cent with 95 % intervals; adapters learned from {effort.learn} images."
    record.tables = [Table("Figure (b): places of the softmax", columns, rows, note)]
    return record
