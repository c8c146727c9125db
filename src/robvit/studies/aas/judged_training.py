"""A training of the AAS-AT studies, done once, and its judgement, which is kept beside it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from robvit.attention import attention_layers, kept_scales
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.trials import spread
from robvit.loading import load
from robvit.measuring.comparison import Comparison, compare_scaling
from robvit.progress import progress
from robvit.record import Table, Trial
from robvit.studies.aas.training_effort import AasTrainingEffort
from robvit.studies.common import StudyContext
from robvit.studies.judging import judge, per_cent, worst_of
from robvit.training.fit import WEIGHTS
from robvit.training.train import run_job

IMAGES, FIT = 64, 256


@dataclass(frozen=True)
class JudgedTraining:
    """A model trained by a recipe, judged with its last weights."""

    recipe: str
    model: Model
    images: ImageDataset
    comparison: Comparison
    autoattack: Trial
    moves: list[Table]  # of the scales, as the training's record tells them

    @property
    def scales(self) -> list[float]:
        """The scales that are a part of the model, block by block; 1 where it has none."""
        scales = kept_scales(self.model)
        return [1.0] * len(attention_layers(self.model)) if scales is None else scales.tolist()

    def same_network(self, other: JudgedTraining) -> bool:
        """Whether another training ended with these very weights and scales."""
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        return self.scales == other.scales and all(torch.equal(ours, theirs) for ours, theirs in pairs)

    def accuracies(self) -> list[float]:
        """Clean, under PGD, under PGD and AAS, and under AutoAttack as well, in per cent."""
        both = self.comparison.both
        return [
            per_cent(self.comparison.clean),
            per_cent(self.comparison.plain),
            100 * sum(both) / len(both),
            per_cent(self.autoattack),
        ]

    def trials(self, scenario: str, *, control: bool) -> list[Trial]:
        """Every trial under a name; only one training's are no controls."""
        found = [*self.comparison.trials, self.autoattack]
        return [replace(t, scenario=scenario, control=control or t.control) for t in found]


Seeds = dict[int, JudgedTraining]


def train_and_judge(
    context: StudyContext, effort: AasTrainingEffort, recipe: str, every: int, title: str
) -> Seeds:
    """Train by a recipe with every seed, from the given model's weights, and judge on test images.

    What was trained and judged before is taken up again. The study's folder gets a copy of the weights.
    """
    found: Seeds = {}
    for seed in effort.seeds:
        job = effort.job(context, recipe, every, seed)
        place = effort.place(context, recipe, job)
        with progress(f"training {title}, seed {seed}", total=1) as advance:
            trained = run_job(job, place, progress=advance)
        _copy(place / WEIGHTS, context.out, title if len(effort.seeds) == 1 else f"{title}, seed {seed}")
        model = load(str(place / WEIGHTS))
        size = model.input_size[0]
        images = context.dataset("sample", "test", size, context.count(IMAGES))
        fit = context.dataset("sample", "train", size, FIT)
        comparison, autoattack = _judge(replace(context, out=place), model, images, fit, effort)
        found[seed] = JudgedTraining(recipe, model, images, comparison, autoattack, trained.tables)
    return found


def _copy(weights: Path, folder: Path, title: str) -> None:
    """Leave weights under a name that tells what they are, for other studies."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(weights, folder / f"{title.replace(', ', '-').replace(' ', '-')}{weights.suffix}")


def _judge(
    context: StudyContext, model: Model, images: ImageDataset, fit: ImageDataset, effort: AasTrainingEffort
) -> tuple[Comparison, Trial]:
    """PGD, and PGD with AAS, against the control of equal cost; then AutoAttack on what these leave."""
    with progress(f"{effort.pgd.title} with AAS", total=len(images)) as advance:
        comparison = compare_scaling(
            model,
            images,
            effort.threat,
            settings=dict(effort.pgd.settings),
            train=fit,
            seed=context.seed,
            memory=context.out / "batches",
            progress=advance,
        )
    before = worst_of(comparison.plain, comparison.scaled)
    alive = [i for i, correct in enumerate(before.correct) if correct]
    attempt = replace(effort.autoattack, settings={**effort.autoattack.settings, "seed": context.seed})
    if not alive:
        return comparison, replace(before, attack="autoattack", settings=dict(attempt.settings))
    (left,) = judge(context, model, images.take(alive), [attempt], scenario="")
    # The images lie beside the training, not beside the record.
    return comparison, spread(replace(left, shards="", shards_sha256=""), alive, before)
