"""Table 3 of Robustness Tokens: feature cosines of other foundation models, with their deviations."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev
from typing import Any

from robvit.record import Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, mean, study
from robvit.studies.rob.common import (
    PAPER,
    PUBLISHED,
    attack_features,
    backbone,
    cosine_claim,
    cosines,
    images_for,
    learn_tokens,
    open_tokens,
)
from robvit.studies.rob.effort import TokenEffort, attack_told

NOTE = (
    "Means and standard deviations over batches, as the paper's; ours of training images by the last batches."
)


@study(
    "rob-table3",
    paper=PAPER,
    title="Table 3: feature cosine of other foundation models",
    effort=TokenEffort(),
)
def table3(context: StudyContext, effort: TokenEffort, *, tokens: str = "", last: int = 100) -> Record:
    """Cosine before and after: over the last training batches, as the paper's, and on other images.

    Tokens from a file tell of other images alone.
    """
    model = backbone(context, effort)
    learn, judged = images_for(context, effort, model, learn=effort.learn, judged=context.count(48))
    known = "table3" if model.name in PUBLISHED["table3"].rows else "table2"
    before, after, *deviations = (*PUBLISHED[known].row(model.name)[:4], None, None)
    spread = deviations[:2] if known == "table3" else (None, None)
    rows = list[list[Any]]()
    if tokens:
        values = open_tokens(tokens, model)
    else:
        training = learn_tokens(context, model, learn, effort.recipe(seed=context.seed))
        values = training.tokens
        attacked = [cosine for _, cosine in training.history[-last:]]
        rows += [
            ["regular, training images", *_spread(training.baselines, effort.batch), before, spread[0]],
            [f"tokens, last {len(attacked)} training batches", *_spread(attacked, 1), after, spread[1]],
        ]
    attack = effort.feature_attack(effort.inner_steps)
    pairs = attack_features(model, judged, attack, "attacking other images")
    bare, hardened = (cosines(model, m, pairs, effort.axis) for m in (model, model.replace(tokens=values)))
    rows += [
        ["regular, other images", *_spread(bare["own"], effort.batch), None, None],
        ["tokens, other images", *_spread(hardened["original"], effort.batch), None, None],
    ]
    columns = ["", "ours", "± ours", "paper", "± paper"]
    note = f"{NOTE} Attacked by {attack_told(attack)}. {effort.told(values)}"
    table = Table(f"Table 3: feature cosine, {model.name}", columns, rows, note)
    gain = PUBLISHED[known].step(model.name, "cosine", "cosine, tokens")
    claims = [
        cosine_claim("tokens over no tokens, other images", hardened["original"], bare["original"], gain)
    ]
    return context.record(model, judged, tables=[table, claims_table(claims)], claims=claims)


def _spread(values: Sequence[float], batch: int) -> tuple[float, float | None]:
    """The mean, and the standard deviation over batches; None where there is but one."""
    means = [mean(list(values[i : i + batch])) for i in range(0, len(values), batch)]
    return mean(list(values)), stdev(means) if len(means) > 1 else None
