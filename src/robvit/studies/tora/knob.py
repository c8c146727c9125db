"""Beyond the slides: the knob between accuracy and robustness, and TORA with the other systems."""

from __future__ import annotations

from collections.abc import Sequence

from robvit.backbones.model import Model
from robvit.record import Curve, Record, Table, Trial
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import CLEAN, Attempt, per_cent, worst_of
from robvit.studies.rob.common import learn_tokens
from robvit.studies.rob.effort import TokenEffort
from robvit.studies.tora.common import PAPER, STRONG, AdapterEffort, bench

EFFORT = AdapterEffort()


@study("tora-knob", paper=PAPER, title="One model, its trade-off moved after training", effort=EFFORT)
def knob(
    context: StudyContext,
    effort: AdapterEffort,
    *,
    trades: Sequence[float] = (0.1, 0.5, 0.9),
    places: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9),
    steps: int = 10,
) -> Record:
    """Fusions trained apart and interpolated ("states") against two ends trained together ("path")."""
    at = bench(context, effort)
    pgd = Attempt("pgd", STRONG[0], {"steps": steps})
    trials, rows = list[Trial](), list[list[object]]()
    lines: dict[str, list[list[float]]] = {}
    for way in ("states", "path"):
        model = at.train(trades, knob=way)
        for place in places:
            scenario = f"{way}, {place:g}"
            judged = at.judge(model.replace(trade_off=place), scenario, (CLEAN, pgd))
            clean, robust = (per_cent(t) for t in judged)
            trials += judged
            known = "trained" if way == "states" and place in trades else "between"
            rows.append([scenario, clean, robust, known])
            lines.setdefault(f"{way}: clean", []).append([place, clean / 100])
            lines.setdefault(f"{way}: PGD {STRONG[0]}", []).append([place, robust / 100])
    record = context.record(at.model, at.judged, trials=trials)
    columns = ["knob, trade-off", "clean", f"{pgd.title} {STRONG[0]}", ""]
    note = f"Both ways cost the same: {len(trades)} x {effort.fusion_epochs:g} epochs of phase 2."
    record.tables = [Table("Accuracy and robustness along the knob", columns, rows, note)]
    record.curves = [Curve("The knob", "trade-off", "accuracy", lines, percent=True)]
    return record


@study(
    "tora-composed",
    paper=PAPER,
    title="TORA with robustness tokens, and attacked with scaled attention",
    effort=EFFORT,
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
    tora = at.train((trade,))
    token_effort = TokenEffort(learn=token_learn, steps=token_steps, inner_steps=4, eps=effort.eps)
    images = at.splits.train.take(range(min(token_learn, len(at.splits.train))))
    tokens = learn_tokens(context, at.model, images, token_effort.recipe(seed=context.seed)).tokens
    models: dict[str, Model] = {
        "backbone": at.model,
        "backbone, tokens": at.model.replace(tokens=tokens),
        "TORA": tora,
        "TORA, tokens": tora.replace(tokens=tokens),
    }
    pgd = Attempt("pgd", STRONG[0], {"steps": steps})
    aas = Attempt("aas", STRONG[0], {"steps": steps, "fit": "batch"})
    trials, rows = list[Trial](), list[list[object]]()
    for scenario, model in models.items():
        judged = at.judge(model, scenario, (CLEAN, pgd, aas))
        trials += judged
        rows.append([scenario, *(per_cent(t) for t in judged), per_cent(worst_of(*judged[1:]))])
    record = context.record(at.model, at.judged, trials=trials)
    columns = ["", "clean", pgd.title, f"AAS, {pgd.title} inside", "worst of both"]
    note = (
        f"Per cent within {STRONG[0]}. Every attacker knows adapters and tokens. AAS crafts with scaled "
        "attention and is judged on the model as it is."
    )
    record.tables = [Table("TORA with the other systems", columns, rows, note)]
    return record
