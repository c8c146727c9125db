"""Figures 4, 5 and 6 of Robustness Tokens: how training goes, and what attacks do to activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from robvit.explanation.figures.activations import largest_activations
from robvit.record import Curve, Record, Table
from robvit.studies.common import StudyContext, mean, study
from robvit.studies.rob.common import (
    PAPER,
    PUBLISHED,
    TokenEffort,
    attack_features,
    backbone,
    learn_tokens,
)

LAST = 20  # steps whose mean stands for the end of a training
EFFORT = TokenEffort()


def _curve(values: Sequence[float]) -> list[list[float]]:
    return [[at, value] for at, value in enumerate(values, start=1)]


@study("rob-fig4", paper=PAPER, title="Fig. 4: training curves for several numbers of tokens", effort=EFFORT)
def token_counts(
    context: StudyContext, effort: TokenEffort, *, counts: Sequence[int] = (1, 10, 20, 50)
) -> Record:
    """One set of attacked images, a training for each number of tokens; `images` are those learned from."""
    effort = replace(effort, learn=context.count(effort.learn))
    model = backbone(context)
    images, _ = context.splits("sample", model.input_size[0], learn=effort.learn, judged=1)
    lines, rows = {}, []
    for count in counts:
        recipe = effort.recipe(count=count, seed=context.seed)
        history = learn_tokens(context, model, images, recipe, f"tokens-{count}").history
        sums = [clean + attacked for clean, attacked in history]
        lines[f"{count} tokens"] = _curve(sums)
        paper = PUBLISHED["fig4"].row(str(count)) if model.name == "dinov2-small" else (None,)
        rows.append([count, mean(sums[-LAST:]), *paper])
    record = context.record(model, images)
    note = f"The paper: 1600 ImageNet images of 224x224; ours: {len(images)}, {effort.steps} steps."
    record.curves = [Curve("Both cosines while tokens are learned", "step", "sum of both cosines", lines)]
    columns = ["tokens", f"sum of both cosines, mean of the last {LAST} steps", "published run, DINOv2-S"]
    record.tables = [Table("Fig. 4: how many tokens", columns, rows, note)]
    return record


@study(
    "rob-fig5", paper=PAPER, title="Fig. 5: both terms of the loss while tokens are learned", effort=EFFORT
)
def both_terms(context: StudyContext, effort: TokenEffort, *, count: int = 10) -> Record:
    """The paper's: the clean term stays, the attacked term rises quickly; `images` are those learned from."""
    effort = replace(effort, learn=context.count(effort.learn))
    model = backbone(context)
    images, _ = context.splits("sample", model.input_size[0], learn=effort.learn, judged=1)
    training = learn_tokens(context, model, images, effort.recipe(count=count, seed=context.seed))
    clean, attacked = ([step[side] for step in training.history] for side in (0, 1))
    record = context.record(model, images)
    lines = {"clean": _curve(clean), "attacked": _curve(attacked)}
    record.curves = [Curve("Cosine with the original clean features", "step", "cosine", lines)]
    rows: list[list[object]] = [
        ["clean, first steps", mean(clean[:5])],
        [f"clean, last {LAST}", mean(clean[-LAST:])],
        ["attacked, no tokens", training.baseline],
        ["attacked, first steps", mean(attacked[:5])],
        [f"attacked, last {LAST}", mean(attacked[-LAST:])],
    ]
    record.tables = [Table("Fig. 5: both terms", ["term", "cosine"], rows)]
    return record


@study(
    "rob-fig6",
    paper=PAPER,
    title="Fig. 6: largest activation per layer, with and without tokens",
    effort=EFFORT,
)
def activations(context: StudyContext, effort: TokenEffort) -> Record:
    """Largest absolute value in class or patch tokens after each block, clean and attacked.

    The mean over images; the published figure shows one image.
    """
    model, learn, judged = context.prepare(backbone(context), "sample", learn=effort.learn, judged=16)
    recipe = effort.recipe(seed=context.seed)
    tokens = learn_tokens(context, model, learn, recipe).tokens
    pairs = attack_features(model, judged, recipe.attack, "attacking without tokens")
    lines: dict[str, list[list[float]]] = {}
    gaps: dict[str, float] = {}
    for name, victim in (("no tokens", model), ("tokens", model.replace(tokens=tokens))):
        clean, attacked = (
            torch.cat([largest_activations(victim, pair[side]) for pair in pairs]).mean(0).tolist()
            for side in (0, 1)
        )
        lines |= {f"{name}, clean": _curve(clean), f"{name}, attacked": _curve(attacked)}
        gaps[name] = mean([abs(a - c) for a, c in zip(attacked, clean, strict=True)])
    record = context.record(model, judged)
    record.curves = [Curve("Largest activation after each block", "block", "largest |activation|", lines)]
    rows: list[list[object]] = [[name, gap] for name, gap in gaps.items()]
    title = "Fig. 6: mean gap between clean and attacked over the blocks"
    record.tables = [Table(title, ["model", "gap"], rows, "The paper: tokens bridge the gap.")]
    return record
