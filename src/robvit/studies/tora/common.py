"""What the studies of TORA share: adapters trained once, and how a model is measured."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.data.corruptions import CORRUPTIONS
from robvit.defenses.tora.attack import gate_aware
from robvit.defenses.tora.io import adapted
from robvit.evaluation.attack_shards import Job, craft
from robvit.evaluation.record import Trial
from robvit.progress import progress
from robvit.studies.common import Request
from robvit.studies.rob.common import parts
from robvit.threat import Threat
from robvit.training.fit import Splits
from robvit.training.recipe import Recipe, load_recipe
from robvit.training.tora import Plan, train_adapters

BATCH = 50
RVT = Threat("linf", 1 / 255)  # the weak budget that the slides' comparison implies
STRONG = (Threat("linf", 4 / 255), Threat("linf", 8 / 255))
SEVERITY = 3


@dataclass(frozen=True)
class Effort:
    """How much is spent; the defaults take minutes on one processor core."""

    learn: int = 1500
    epochs: float = 3
    fusion_epochs: float = 1
    eps: float = 4 / 255
    training: str = ""

    def recipe(self, seed: int) -> Recipe:
        """The recipe of `robvit train tora` at this scale."""
        size = {"epochs": self.epochs, "warmup": min(0.3, self.epochs / 4), "batch": BATCH, "judge_steps": 1}
        return load_recipe("tora", **size, **{"inner.eps": self.eps, "seed": seed})

    def folder(self, request: Request) -> Path:
        """Where trainings are kept, so that several studies can share them."""
        return Path(self.training) if self.training else request.out / "training"


@dataclass(frozen=True)
class Subject:
    """A backbone, what its adapters learn from, the images that judge, and the request that names them."""

    request: Request
    model: Model
    splits: Splits
    judge: ImageDataset


def subject(request: Request, effort: Effort, images: int) -> Subject:
    """The wanted backbone and images: by default robvit-mini and CIFAR-10."""
    model = request.load("robvit-mini")
    spec = Request(**{**vars(request), "data": request.data or "cifar10"})
    held = max(4, effort.learn // 50)  # a formality: the last weights count
    learn, judge = parts(spec, model.input_size[0], effort.learn + held, request.images or images)
    apart = (learn.take(range(held, len(learn))), learn.take(range(held)))
    return Subject(spec, model, Splits(*apart), judge)


def trained(
    request: Request,
    held: Subject,
    effort: Effort,
    trades: tuple[float, ...],
    *,
    tuning: str = "tora",
    knob: str = "states",
) -> Model:
    """The backbone with adapters for these trade-offs; what was trained before is taken up again."""
    plan = Plan(effort.recipe(request.seed), tuning, trades, knob, effort.fusion_epochs)
    folder = effort.folder(request) / tuning

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    adapters, _ = train_adapters(held.model, held.splits, plan, folder, say=say)
    return adapted(held.model, adapters)


class OneHead(nn.Module):
    """One head of a model as a model of its own."""

    def __init__(self, model: Model, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model.heads_apart(x)[self.name]


# Attack, budget, settings; "clean" has no budget.
Attempt = tuple[str, Threat | None, Mapping[str, object]]
# What the slides' tables measure, in the setting of RVT's code.
WEAK: tuple[Attempt, ...] = (
    ("clean", None, {}),
    ("fgsm", RVT, {}),
    ("pgd", RVT, {"steps": 5, "step_size": 0.5 / 255}),
)


def attacked(
    request: Request,
    model: nn.Module,
    identity: str,
    images: ImageDataset,
    scenario: str,
    attacks: Sequence[Attempt],
) -> list[Trial]:
    """A trial for each attack, kept in shards in the request's folder."""
    trials = []
    for name, threat, settings in attacks:
        job = Job(name, threat, dict(settings), model, identity, images, batch=BATCH)
        label = f"{scenario}, {name}" + (f", {threat}" if threat else "")
        with progress(label, total=len(images)) as advance:
            place = f"shards/{job.key()[:16]}"
            made = craft(job, request.out / place, advance)
        trials.append(replace(made, scenario=scenario, shards=place if job.makes_images else ""))
    return trials


def adaptive(model: Model, images: ImageDataset, scenario: str, threat: Threat, steps: int) -> Trial:
    """The gate-aware attack as a trial; its settings say which goal broke how many images."""
    correct, said, far, broken = list[bool](), list[int](), list[float](), dict[str, int]()
    forward = backward = 0
    with progress(f"{scenario}, gate-aware, {threat}", total=len(images)) as advance:
        for x, y in images.batches(BATCH):
            found = gate_aware(model, x, y, threat, attack="apgd", steps=steps)
            correct += (~found.success).tolist()
            with torch.no_grad():
                said += model(found.adv).argmax(1).tolist()
            far += threat.size(found.adv - x).tolist()
            forward, backward = forward + found.forward, backward + found.backward
            for name, count in found.broken_by.items():
                broken[name] = broken.get(name, 0) + count
            advance(len(x))
    settings = {"steps": steps, "broken by": broken}
    return Trial(
        "gate-aware", threat.budget, settings, correct, said, far, forward, backward, scenario=scenario
    )


@torch.no_grad()
def corruption_error(model: nn.Module, images: ImageDataset, severity: int = SEVERITY) -> float:
    """The mean error in per cent over the fifteen corruptions at one severity."""
    wrong = total = 0
    with progress("corruptions", total=len(CORRUPTIONS)) as advance:
        for entry in CORRUPTIONS:
            for x, y in images.corrupted(f"{entry.name}:{severity}").batches(BATCH):
                wrong += int((model(x).argmax(1) != y).sum())
                total += len(y)
            advance()
    return 100 * wrong / total


def per_cent(trial: Trial) -> float:
    return 100 * sum(trial.correct) / len(trial.correct)
