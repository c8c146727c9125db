"""What the studies of TORA share: adapters trained once, and what their models are judged by."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import nn

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.data.corruptions import CORRUPTIONS
from robvit.defenses.tora.attack import gate_aware
from robvit.defenses.tora.io import adapted
from robvit.evaluation.trials import joined, trial_of
from robvit.progress import progress
from robvit.record import Trial
from robvit.studies.common import StudyContext, TrainingEffort
from robvit.studies.judging import BATCH, CLEAN, Attempt, judge
from robvit.studies.published import read_published
from robvit.threat import Threat
from robvit.training.recipe import Recipe, changed, load_recipe
from robvit.training.splits import Splits
from robvit.training.tora import train_adapters

PUBLISHED = read_published("tora")
PAPER = PUBLISHED.paper
IMAGES = 100
RVT = Threat("linf", 1 / 255)  # the weak budget that the slides' comparison implies
STRONG = (Threat("linf", 4 / 255), Threat("linf", 8 / 255))
SEVERITY = 3
# What the slides' tables measure, in the setting of RVT's code.
WEAK = (CLEAN, Attempt("fgsm", RVT), Attempt("pgd", RVT, {"steps": 5, "step_size": 0.5 / 255}))


@dataclass(frozen=True)
class AdapterEffort(TrainingEffort):
    """What is spent on training adapters within `eps`; the defaults take minutes on one processor core."""

    learn: int = 1500
    epochs: float = 3
    training: str = ""
    fusion_epochs: float = 1
    eps: float = 4 / 255

    def recipe(self, seed: int) -> Recipe:
        """The recipe of `robvit train tora` at this scale."""
        size = {"epochs": self.epochs, "warmup": min(0.3, self.epochs / 4), "batch": BATCH, "judge_steps": 1}
        return load_recipe("tora", **size, **{"inner.eps": self.eps, "seed": seed})


@dataclass(frozen=True)
class AdapterBench:
    """A backbone, what its adapters learn from and are spent on, and the images that judge."""

    context: StudyContext
    effort: AdapterEffort
    model: Model
    splits: Splits
    judged: ImageDataset

    def train(
        self,
        trades: Sequence[float],
        *,
        tuning: str = "tora",
        knob: str = "states",
        fusion: str = "adapters",
        wiring: str = "mean",
        phase1: str = "separate",
    ) -> Model:
        """The backbone with adapters for these trade-offs; what was trained before is taken up again."""
        parts = {"tuning": tuning, "fusion": fusion, "wiring": wiring, "phase1": phase1}
        wishes = {**parts, "trades": trades, "knob": knob, "fusion_epochs": self.effort.fusion_epochs}
        changes = {f"adapters.{name}": value for name, value in wishes.items()}
        recipe = changed(self.effort.recipe(self.context.seed), changes)
        folder = self.effort.folder(self.context) / "-".join(parts.values())

        def log(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        adapters, _ = train_adapters(self.model, self.splits, recipe, folder, log=log)
        return adapted(self.model, adapters)

    def judge(
        self, model: nn.Module, scenario: str, attempts: Sequence[Attempt], identity: str = ""
    ) -> list[Trial]:
        """A trial for each attack on the judged images."""
        return judge(self.context, model, self.judged, attempts, scenario=scenario, identity=identity)

    def sized(self, images: ImageDataset) -> ImageDataset:
        """Images at the backbone's size."""
        return images.resized(self.model.input_size[0], self.context.resize)

    def corruption_error(
        self, model: nn.Module, identity: str = "", severities: Sequence[int] = (SEVERITY,)
    ) -> float:
        """The mean error in per cent over the fifteen corruptions at these severities."""
        errors = []
        with progress("corruptions", total=len(CORRUPTIONS) * len(severities)) as advance:
            for entry, severity in product(CORRUPTIONS, severities):
                name = f"{entry.name}:{severity}"
                images = self.judged.corrupted(name)
                (trial,) = judge(self.context, model, images, [CLEAN], scenario=name, identity=identity)
                errors += [not correct for correct in trial.correct]
                advance()
        return 100 * sum(errors) / len(errors)

    def gate_aware(self, model: Model, scenario: str, threat: Threat, steps: int) -> Trial:
        """The gate-aware attack as a trial; its settings say which goal broke how many images."""
        trials, successes = list[Trial](), dict[str, int]()
        with progress(f"{scenario}, gate-aware, {threat}", total=len(self.judged)) as advance:
            for x, y in self.judged.batches(BATCH):
                attack = gate_aware(model, x, y, threat, attack="apgd", steps=steps)
                trials.append(trial_of(attack.outcome, "gate-aware", threat, scenario=scenario))
                for name, count in attack.success_by.items():
                    successes[name] = successes.get(name, 0) + count
                advance(len(x))
        return replace(joined(trials), settings={"steps": steps, "success by": successes})


def bench(context: StudyContext, effort: AdapterEffort, images: int = IMAGES) -> AdapterBench:
    """The given backbone and images: by default robvit-mini and CIFAR-10."""
    validation = max(4, effort.learn // 50)  # a formality: the last weights count
    model, learn, judged = context.prepare(
        context.load("robvit-mini"), "cifar10", learn=effort.learn + validation, judged=images
    )
    splits = Splits(learn.take(range(validation, len(learn))), learn.take(range(validation)))
    return AdapterBench(context, effort, model, splits, judged)


class OneHead(nn.Module):
    """One head of a model as a model of its own."""

    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model.heads_apart(x)[self.name]
