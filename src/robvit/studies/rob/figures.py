"""Figures 4, 5 and 6 of Robustness Tokens: how training goes, and what attacks do to activations."""

from __future__ import annotations

import torch

from robvit.evaluation.record import Curve, Record, Table
from robvit.explanation.figures.activations import largest_activations
from robvit.studies.common import Request, study, study_record
from robvit.studies.rob.common import PAPER, Effort, attacked, backbone, learned, mean, parts

# Sum of both cosines at the end of the published trainings of DINOv2-S, by the number of tokens.
PUBLISHED_SUM = {1: 1.741, 10: 1.804}
LAST = 20  # steps whose mean stands for the end of a training


@study("rob-fig4", paper=PAPER, title="Fig. 4: training curves for several numbers of tokens")
def token_counts(
    request: Request, *, counts: tuple[int, ...] = (1, 10, 20, 50), steps: int = 60, learn: int = 192
) -> Record:
    """One set of attacked images, a training for each number of tokens."""
    model, effort = backbone(request), Effort(learn=request.images or learn, steps=steps)
    images, _ = parts(request, model.input_size[0], effort.learn, 1)
    lines, rows = {}, []
    for count in counts:
        recipe = effort.recipe(count=count, seed=request.seed)
        history = learned(request, model, images, recipe, f"tokens-{count}").history
        lines[f"{count} tokens"] = [[step, a + b] for step, (a, b) in enumerate(history, start=1)]
        end = mean([a + b for a, b in history[-LAST:]])
        published = PUBLISHED_SUM.get(count) if model.name == "dinov2-small" else None
        rows.append([count, end, published])
    record = study_record(request, model, images)
    note = f"The paper: 1600 ImageNet images of 224x224; ours: {len(images)}, {steps} steps."
    record.curves = [Curve("Both cosines while tokens are learned", "step", "sum of both cosines", lines)]
    columns = ["tokens", f"sum of both cosines, mean of the last {LAST} steps", "published run, DINOv2-S"]
    record.tables = [Table("Fig. 4: how many tokens", columns, rows, note)]
    return record


@study("rob-fig5", paper=PAPER, title="Fig. 5: both terms of the loss while tokens are learned")
def both_terms(request: Request, *, count: int = 10, steps: int = 60, learn: int = 192) -> Record:
    """The paper's: the clean term stays, the attacked term rises quickly."""
    model, effort = backbone(request), Effort(learn=request.images or learn, steps=steps)
    images, _ = parts(request, model.input_size[0], effort.learn, 1)
    training = learned(request, model, images, effort.recipe(count=count, seed=request.seed))
    kept, withstood = ([step[side] for step in training.history] for side in (0, 1))
    record = study_record(request, model, images)
    lines = {
        name: [[step, value] for step, value in enumerate(values, start=1)]
        for name, values in (("clean", kept), ("attacked", withstood))
    }
    record.curves = [Curve("Cosine with the original clean features", "step", "cosine", lines)]
    rows: list[list[object]] = [
        ["clean, first steps", mean(kept[:5])],
        [f"clean, last {LAST}", mean(kept[-LAST:])],
        ["attacked, no tokens", training.baseline],
        ["attacked, first steps", mean(withstood[:5])],
        [f"attacked, last {LAST}", mean(withstood[-LAST:])],
    ]
    record.tables = [Table("Fig. 5: both terms", ["term", "cosine"], rows)]
    return record


@study("rob-fig6", paper=PAPER, title="Fig. 6: largest activation per layer, with and without tokens")
def activations(request: Request, *, steps: int = 60, learn: int = 192) -> Record:
    """Largest absolute value in class or patch tokens after each block, clean and attacked.

    The mean over images; the published figure shows one image.
    """
    model, effort = backbone(request), Effort(learn=learn, steps=steps)
    images, judge = parts(request, model.input_size[0], effort.learn, request.images or 16)
    recipe = effort.recipe(seed=request.seed)
    tokens = learned(request, model, images, recipe).tokens
    pairs = list(attacked(model, judge, recipe.attack, "attacking without tokens"))
    lines = {}
    for name, victim in (("no tokens", model), ("tokens", model.replace(tokens=tokens))):
        for side, seen in enumerate(("clean", "attacked")):
            peaks = torch.cat([largest_activations(victim, pair[side]) for pair in pairs]).mean(0).tolist()
            lines[f"{name}, {seen}"] = [[layer, peak] for layer, peak in enumerate(peaks, start=1)]
    record = study_record(request, model, judge)
    record.curves = [Curve("Largest activation after each block", "block", "largest |activation|", lines)]
    gap = {
        name: mean(
            [
                abs(a[1] - c[1])
                for a, c in zip(lines[f"{name}, attacked"], lines[f"{name}, clean"], strict=True)
            ]
        )
        for name in ("no tokens", "tokens")
    }
    rows: list[list[object]] = [[name, value] for name, value in gap.items()]
    title = "Fig. 6: mean gap between clean and attacked over the blocks"
    record.tables = [Table(title, ["model", "gap"], rows, "The paper: tokens bridge the gap.")]
    return record
