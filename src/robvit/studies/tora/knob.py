"""Beyond the slides: the knob between accuracy and robustness, and TORA with the other systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robvit.backbones.model import Model
from robvit.record import Curve, Record, Table, Trial
from robvit.studies.claims import claims_table, preferred
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import CLEAN, Attempt, per_cent, point, with_interval, worst_of
from robvit.studies.rob.common import learn_tokens
from robvit.studies.rob.effort import TokenEffort
from robvit.studies.tora.attacked import JudgedRow, attacks_table, judge_row, titles_of
from robvit.studies.tora.common import PAPER, bench
from robvit.studies.tora.efforts import AdapterEffort, AttackEffort
from robvit.studies.tora.tables import claims_over
from robvit.threat import Threat

WAYS = ("path", "states")


@study(
    "tora-knob",
    paper=PAPER,
    title="One model, its trade-off moved after training",
    effort=AttackEffort(steps=10),
)
def knob(
    context: StudyContext,
    effort: AttackEffort,
    *,
    trades: Sequence[float] = (0.1, 0.5, 0.9),
    places: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9),
) -> Record:
    """Fusions trained apart and interpolated ("states") against two ends trained together ("path")."""
    at = bench(context, effort)
    titles, compared = titles_of(effort, [CLEAN]), {0: "", 1 + effort.middle: ""}
    judged, rows = dict[str, JudgedRow](), list[list[Any]]()
    lines: dict[str, list[list[float]]] = {}
    for way in WAYS:
        trained = at.train(trades, knob=way)
        for place in places:
            scenario = f"{way}, {place:g}"
            one = judged[scenario] = judge_row(at, trained.at(place), scenario, effort, weak=[CLEAN])
            known = "trained" if way == "states" and place in trades else "between"
            rows.append([scenario, *map(with_interval, one.outcomes), known])
            for title, correct in zip(titles, one.outcomes, strict=True):
                lines.setdefault(f"{way}: {title}", []).append(point(place, correct))
    first, second = WAYS
    claims = [
        claim
        for place in places
        for claim in claims_over(
            judged,
            f"{first}, {place:g}",
            f"{second}, {place:g}",
            f"{first} over {second}, {place:g}",
            compared,
            titles,
        )
    ]
    trials = [trial for one in judged.values() for trial in one.trials]
    record = context.record(at.model, at.judged, trials=trials, claims=claims)
    note = (
        "Per cent with 95 % intervals. Both ways cost the same: "
        f"{len(trades)} x {effort.fusion_epochs:g} epochs of phase 2."
    )
    table = Table("Accuracy and robustness along the knob", ["knob, trade-off", *titles, ""], rows, note)
    named = claims_table(claims, "Claims on the knob, pair by pair", together=True, trained=claims)
    record.tables = [table, attacks_table(judged, effort), named]
    record.findings = [preferred(first, {second: claims})]
    record.curves = [Curve("The knob", "trade-off", "accuracy, %", lines)]
    return record


@study(
    "tora-composed",
    paper=PAPER,
    title="TORA with robustness tokens, and attacked with scaled attention",
    effort=AdapterEffort(),
)
def composed(
    context: StudyContext,
    effort: AdapterEffort,
    *,
    trade: float = 0.5,
    steps: int = 10,
    token_steps: int = 40,
    token_learn: int = 128,
) -> Record:
    """PGD and AAS of as many steps on TORA, with and without tokens that were learned for the backbone."""
    at = bench(context, effort)
    at.check_classifier()
    threat = Threat("linf", effort.eps)
    tora = at.train((trade,)).model
    token_effort = TokenEffort(learn=token_learn, steps=token_steps, inner_steps=4, eps=effort.eps)
    images = at.splits.train.take(range(min(token_learn, len(at.splits.train))))
    tokens = learn_tokens(context, at.model, images, token_effort.recipe(seed=context.seed)).tokens
    models: dict[str, Model] = {
        "backbone": at.model,
        "backbone, tokens": at.model.replace(tokens=tokens),
        "TORA": tora,
        "TORA, tokens": tora.replace(tokens=tokens),
    }
    pgd = Attempt("pgd", threat, {"steps": steps})
    aas = Attempt("aas", threat, {"steps": steps, "fit": "batch"})
    trials, rows = list[Trial](), list[list[object]]()
    for scenario, model in models.items():
        judged = at.judge(model, scenario, (CLEAN, pgd, aas))
        trials += judged
        rows.append([scenario, *(per_cent(t) for t in judged), per_cent(worst_of(*judged[1:]))])
    record = context.record(at.model, at.judged, trials=trials)
    columns = ["", "clean", pgd.title, f"AAS, {pgd.title} inside", "worst of both"]
    note = (
        f"Per cent within {threat}. Every attacker knows adapters and tokens. AAS crafts with scaled "
        "attention and is judged on the model as it is."
    )
    record.tables = [Table("TORA with the other systems", columns, rows, note)]
    return record
