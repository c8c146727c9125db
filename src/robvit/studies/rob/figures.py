"""Figures 4, 5 and 6 of Robustness Tokens: how training goes, and what attacks do to activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from robvit.explanation.figures.activations import largest_activations
from robvit.record import Curve, Record, Table
from robvit.statistics import mean_interval
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
    tokens_for,
)
from robvit.studies.rob.effort import TokenEffort, attack_told

LEARNED_FROM = "on the images learned from"
LAST = 20  # steps whose mean stands for the end of a training
EFFORT = TokenEffort()


def _curve(values: Sequence[float]) -> list[list[float]]:
    return [[at, value] for at, value in enumerate(values, start=1)]


@study(
    "rob-fig4",
    paper=PAPER,
    title="Fig. 4: training curves for several numbers of tokens",
    effort=TokenEffort(steps=200),
)
def token_counts(
    context: StudyContext, effort: TokenEffort, *, counts: Sequence[int] = (1, 10, 20, 50)
) -> Record:
    """One set of attacked images, a training for each number of tokens; `images` are those learned from."""
    effort = replace(effort, learn=context.learned(effort.learn))
    model = backbone(context, effort)
    images, _ = images_for(context, effort, model, learn=effort.learn, judged=1)
    lines, rows, ends = {}, [], dict[int, list[float]]()
    for count in counts:
        recipe = effort.recipe(count=count, seed=context.seed)
        training = learn_tokens(context, model, images, recipe, f"tokens-{count}")
        sums = [clean + attacked for clean, attacked in training.history]
        pairs = attack_features(model, images, recipe.attack, "the attacked images of the training")
        found = cosines(model, model.replace(tokens=training.tokens), pairs, recipe.axis)
        ends[count] = [sum(both) for both in zip(found["clean"], found["original"], strict=True)]
        lines[f"{count} tokens"] = _curve(sums)
        known = model.name in PUBLISHED["fig4"].columns
        paper = PUBLISHED["fig4"].cell(str(count), model.name) if known else None
        rows.append([count, mean(sums[-LAST:]), paper])
    record = context.record(model, images)
    note = f"The paper: 1600 ImageNet images of 224x224, 200 steps. {effort}"
    record.curves = [Curve("Both cosines while tokens are learned", "step", "sum of both cosines", lines)]
    columns = ["tokens", f"sum of both cosines, mean of the last {LAST} steps", "published run"]
    record.claims = [
        cosine_claim(f"{more} tokens over {fewer}, both cosines, {LEARNED_FROM}", ends[more], ends[fewer])
        for fewer, more in pairwise(counts)
    ]
    record.tables = [Table("Fig. 4: how many tokens", columns, rows, note)]
    record.tables += [claims_table(record.claims)] if record.claims else []
    return record


@study(
    "rob-fig5", paper=PAPER, title="Fig. 5: both terms of the loss while tokens are learned", effort=EFFORT
)
def both_terms(context: StudyContext, effort: TokenEffort, *, count: int = 10) -> Record:
    """The paper's: the clean term stays, the attacked term rises quickly; `images` are those learned from."""
    effort = replace(effort, learn=context.learned(effort.learn))
    model = backbone(context, effort)
    images, _ = images_for(context, effort, model, learn=effort.learn, judged=1)
    recipe = effort.recipe(count=count, seed=context.seed)
    training = learn_tokens(context, model, images, recipe)
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
    pairs = attack_features(model, images, recipe.attack, "the attacked images of the training")
    bare, ends = (
        cosines(model, m, pairs, recipe.axis) for m in (model, model.replace(tokens=training.tokens))
    )
    record.claims = [
        cosine_claim(f"attacked, tokens over no tokens, {LEARNED_FROM}", ends["original"], bare["original"]),
        cosine_claim(
            f"clean, what tokens cost: none over tokens, {LEARNED_FROM}", bare["clean"], ends["clean"]
        ),
    ]
    table = Table("Fig. 5: both terms", ["term", "cosine"], rows, effort.told(training.tokens))
    record.tables = [table, claims_table(record.claims)]
    return record


# What the paper says that attacks do to the largest activation of each family's ViT-L, and tokens afterwards.
DIRECTIONS = {
    "dinov2": ("lower", "brought back to nominal values"),
    "openclip": ("lower", "even increased"),
    "deit3": ("higher", "the gap is bridged"),
}


@study(
    "rob-fig6",
    paper=PAPER,
    title="Fig. 6: largest activation per layer, with and without tokens",
    effort=EFFORT,
)
def activations(context: StudyContext, effort: TokenEffort, *, tokens: str = "") -> Record:
    """Largest absolute value in class or patch tokens after each block, clean and attacked.

    The mean over images; the published figure shows one image. Which way attacks move the largest value
    of all blocks is told with its interval, beside what the paper says of the family.
    """
    model = backbone(context, effort)
    learn, judged = images_for(context, effort, model, learn=effort.learn, judged=context.count(16))
    values = tokens_for(context, effort, model, learn, tokens)
    attack = effort.feature_attack(effort.inner_steps)
    pairs = attack_features(model, judged, attack, "attacking without tokens")
    paper = next((said for name, said in DIRECTIONS.items() if model.name.startswith(name)), (None, None))
    lines, rows = dict[str, list[list[float]]](), list[list[object]]()
    for name, victim, said in (
        ("no tokens", model, paper[0]),
        ("tokens", model.replace(tokens=values), paper[1]),
    ):
        clean, attacked = (
            torch.cat([largest_activations(victim, pair[side]) for pair in pairs]) for side in (0, 1)
        )
        lines[f"{name}, clean"] = _curve(clean.mean(0).tolist())
        lines[f"{name}, attacked"] = _curve(attacked.mean(0).tolist())
        moved = (attacked.amax(1) - clean.amax(1)).tolist()
        *_, low, high = mean_interval(moved)
        gap = float((attacked.mean(0) - clean.mean(0)).abs().mean())
        way = "lower" if high < 0 else "higher" if low > 0 else "neither way"
        largest = float(clean.amax(1).mean())
        rows.append([name, gap, largest, mean(moved), f"{low:+.2f} to {high:+.2f}", way, said])
    record = context.record(model, judged)
    record.curves = [Curve("Largest activation after each block", "block", "largest |activation|", lines)]
    columns = [
        "model",
        "mean gap over the blocks",
        "largest of all blocks, clean",
        "attacked less clean",
        "95 % interval",
        "attacks set it",
        "the paper, ViT-L",
    ]
    note = f"The paper: tokens bridge the gap. Attacked by {attack_told(attack)}. {effort.told(values)}"
    record.tables = [Table("Fig. 6: gaps between clean and attacked activations", columns, rows, note)]
    return record
