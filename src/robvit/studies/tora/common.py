"""What the studies of TORA share: adapters trained once, and what their models are judged by."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.data.corruptions import CORRUPTIONS
from robvit.defenses.tora.io import adapted
from robvit.defenses.tora.modules import Adapters
from robvit.errors import InputError
from robvit.locks import alone_in
from robvit.progress import progress
from robvit.record import Trial
from robvit.resuming import key_of
from robvit.studies.common import StudyContext
from robvit.studies.judging import CLEAN, Attempt, judge
from robvit.studies.published import read_published
from robvit.studies.tora.efforts import AdapterEffort, TableEffort
from robvit.threat import Threat
from robvit.training.recipe import changed
from robvit.training.splits import Splits
from robvit.training.tora import phases_of, train_adapters

PUBLISHED = read_published("tora")
PAPER = PUBLISHED.paper
IMAGES = 100
RVT = Threat("linf", 1 / 255)  # the weak budget that the slides' comparison implies
# What the slides' tables measure, in the setting of RVT's code.
WEAK = (CLEAN, Attempt("fgsm", RVT), Attempt("pgd", RVT, {"steps": 5, "step_size": 0.5 / 255}))


class Trained(NamedTuple):
    """A backbone with adapters, and what training them took: all of its phases, whoever trained them first.

    `seen` counts images, clean and attacked ones each, and `attacked` the attacked ones.
    """

    model: Model
    seconds: float
    seen: int
    attacked: int = 0

    def at(self, trade: float) -> Model:
        """The model at a trade-off and at no other: so studies that trained for others know it again."""
        moved = self.model.replace(trade_off=trade)
        assert isinstance(moved.adapters, Adapters)
        return moved.replace(adapters=moved.adapters.settled())


@dataclass(frozen=True)
class AdapterBench:
    """A backbone, what its adapters learn from and are spent on, and the images that judge."""

    context: StudyContext
    effort: AdapterEffort
    model: Model
    splits: Splits
    judged: ImageDataset

    def folder(self, *choices: str) -> Path:
        """Where a training is kept: named by all that decides it, so that studies share it and never mix."""
        effort, sets = self.effort, (self.splits.train, self.splits.validation)
        facts = {
            "recipe": effort.recipe(self.context.seed).digest(),
            "fusion epochs": effort.fusion_epochs,
            "backbone": self.model.identity(),
            "images": [[images.digest(), images.size, images.resize] for images in sets],
        }
        size = f"{effort.learn}x{effort.epochs:g}+{effort.fusion_epochs:g}"
        return effort.folder(self.context) / "-".join((*choices, size, key_of(facts)[:12]))

    def train(
        self,
        trades: Sequence[float],
        *,
        tuning: str = "tora",
        knob: str = "states",
        fusion: str = "adapters",
        wiring: str = "mean",
        phase1: str = "separate",
        start: str = "mixed",
    ) -> Trained:
        """The backbone with adapters for these trade-offs; what was trained before is taken up again.

        Of two studies that ask for the same training at once, one waits for the other.
        """
        parts = {"tuning": tuning, "fusion": fusion, "wiring": wiring, "phase1": phase1}
        wishes: dict[str, Any] = {**parts, "trades": trades, "knob": knob, "start": start}
        wishes["fusion_epochs"] = self.effort.fusion_epochs
        changes = {f"adapters.{name}": value for name, value in wishes.items()}
        recipe = changed(self.effort.recipe(self.context.seed), changes)
        folder = self.folder(*parts.values())

        def log(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        with alone_in(folder, wait=True):
            adapters, runs = train_adapters(self.model, self.splits, recipe, folder, log=log)
        seconds = sum(run.seconds for run in runs.values())
        phases = phases_of(recipe)
        seen = sum(phase.seen(runs[phase.name].step) for phase in phases)
        attacked = sum(phase.attacked(runs[phase.name].step) for phase in phases)
        return Trained(adapted(self.model, adapters), seconds, seen, attacked)

    def check_classifier(self) -> None:
        """Refuse a backbone that cannot be judged itself, before anything is trained on it."""
        wanted = len(self.judged.classes)
        if self.model.classes != wanted:
            raise InputError(
                f"this study judges the backbone too, with a classifier for the data's {wanted} classes; "
                f"{self.model.name} has {self.model.classes or 'none'}: give one by --set head=FILE "
                "(`robvit train head --kind linear-class`)"
            )

    def judge(
        self, model: nn.Module, scenario: str, attempts: Sequence[Attempt], identity: str = ""
    ) -> list[Trial]:
        """A trial for each attack on the judged images; the slides' PGD is told from ours by its variant."""
        found = judge(self.context, model, self.judged, attempts, scenario=scenario, identity=identity)
        return [
            replace(trial, variant="as in the slides") if attempt == WEAK[-1] else trial
            for attempt, trial in zip(attempts, found, strict=True)
        ]

    def first(self, count: int) -> ImageDataset:
        """The first so many of the judged images, all of them if that is 0."""
        return self.judged.take(range(min(count or len(self.judged), len(self.judged))))

    def sized(self, images: ImageDataset) -> ImageDataset:
        """Images at the backbone's size."""
        return images.resized(self.model.input_size[0], self.context.resize)

    def corruption_error(self, model: nn.Module, effort: TableEffort, identity: str = "") -> float:
        """The mean error in per cent over the fifteen corruptions at the effort's severities."""
        errors, clean = list[bool](), self.first(effort.corrupted)
        with progress("corruptions", total=len(CORRUPTIONS) * len(effort.severities)) as advance:
            for entry, severity in product(CORRUPTIONS, effort.severities):
                name = f"{entry.name}:{severity}"
                images = clean.corrupted(name)
                (trial,) = judge(self.context, model, images, [CLEAN], scenario=name, identity=identity)
                errors += [not correct for correct in trial.correct]
                advance()
        return 100 * sum(errors) / len(errors)


def title_of(attempt: Attempt) -> str:
    """An attack with its budget."""
    return f"{attempt.title} {attempt.threat}" if attempt.threat else attempt.title


def trained_for(trades: Sequence[float], knob: str) -> Sequence[float]:
    """The trade-offs that a training is asked for: a path leads over all that lie between its ends."""
    return (trades[0], trades[-1]) if knob == "path" and len(trades) > 1 else trades


def bench(context: StudyContext, effort: AdapterEffort, images: int = IMAGES) -> AdapterBench:
    """The given backbone and images: by default robvit-mini and CIFAR-10."""
    validation = max(4, effort.learn // 50)  # a formality: the last weights count
    model, learn, judged = context.prepare(
        context.load("robvit-mini", head=effort.head or None),
        "cifar10",
        learn=effort.learn + validation,
        judged=images,
    )
    if effort.attacks:
        context = replace(context, attacks=Path(effort.attacks))
    splits = Splits(learn.take(range(validation, len(learn))), learn.take(range(validation)))
    return AdapterBench(context, effort, model, splits, judged)


class OneHead(nn.Module):
    """One head of a model as a model of its own."""

    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model.heads_apart(x)[self.name]
