"""What the studies of AAS-AT spend on a training and its judgement, and which recipes belong together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robvit.errors import InputError
from robvit.resuming import key_of
from robvit.studies.aas.common import PAPER_STEPS
from robvit.studies.common import StudyContext, TrainingEffort
from robvit.studies.judging import Attempt
from robvit.threat import Threat
from robvit.training.job import Job, job_of
from robvit.training.recipe import load_recipe

MODEL = "robvit-mini"
HELD_OUT = 250  # images at most that a short training spares to tell how it ended
# Epochs between validations: only the end is judged, and the last weights count. The best of several could
# be from before the first move of the scales, where AAS-AT is the training without it, bit for bit.
LAST = 10_000
OWN = "aas-paper-"  # how the recipes of the paper's own trainings begin


@dataclass(frozen=True)
class AasTrainingEffort(TrainingEffort):
    """What a training and its judgement cost, for each of the seeds.

    0 leaves a recipe's own number, and for the judgement's `steps`, `targets` and `queries` the paper's;
    `aa_steps` are those of the attacks in AutoAttack. `rate` is the peak learning rate, `batch` the images of
    a step. Training and judgement are within `eps`. `extra` names the synthetic images of recipes that take a
    share of them; without it they train on real ones alone.
    """

    learn: int = 1000
    epochs: float = 6
    training: str = ""
    inner_steps: int = 2
    rate: float = 0
    batch: int = 0
    eps: float = 8 / 255
    steps: int = 20
    aa_steps: int = 0
    targets: int = 0
    queries: int = 100
    extra: str = ""
    seeds: Sequence[int] = (0,)

    def job(self, context: StudyContext, recipe: str, every: int, seed: int) -> Job:
        """The training by a recipe of the study's network, from the weights of the one that is named."""
        changes = self.changes(recipe, every, seed)
        if context.img_size is not None:
            changes["img_size"] = context.img_size
        made = load_recipe(recipe, **changes)
        return job_of(
            made,
            context.model_name(MODEL),
            context.data_name("sample"),
            limit=self.learn or None,
            resize=context.resize,
            extra=self.extra if made.extra_share else None,
        )

    def place(self, context: StudyContext, name: str, job: Job) -> Path:
        """The folder of a training; all that decides it is in its name, so that studies can share it."""
        key = key_of([job.recipe.digest(), job.model_name, job.data_name, job.limit, job.resize, job.extra])
        return self.folder(context) / f"{name}-{key[:12]}"

    def changes(self, recipe: str, every: int, seed: int) -> dict[str, Any]:
        """What is changed in a recipe; a recipe that keeps its length keeps its warm-up and its start too."""
        changes: dict[str, Any] = {"seed": seed, "track": [], "inner.eps": self.eps, "validate_every": LAST}
        changes |= {} if self.extra else {"extra_share": 0}
        if self.epochs:  # a short training starts from trained weights
            changes |= {"epochs": self.epochs, "warmup": min(1, self.epochs // 4), "pretrained": True}
        if self.learn:  # few images cannot spare as many as a recipe holds out
            changes["validation"] = min(HELD_OUT, max(1, self.learn // 10))
        if self.inner_steps:
            changes |= {"inner.steps": self.inner_steps, "inner.step": None}
        if self.rate:
            changes["lr"] = self.rate
        if self.batch:
            changes["batch"] = self.batch
        if every and is_scaled(recipe):
            changes["loss_settings.every"] = every
        return changes

    def check_gaps(self, gaps: Sequence[int]) -> None:
        """Refuse gaps between moves with which no scale would move, before anything is trained."""
        for gap in gaps:
            if gap and (gap < 2 or gap >= (self.epochs or gap + 1)):
                most = f" and {self.epochs:g} in all" if self.epochs else ""
                raise InputError(
                    f"scales move in the epochs after every gap of two or more; with a gap of {gap}{most} "
                    "they never would. 0 is the recipe's own gap"
                )

    @property
    def threat(self) -> Threat:
        return Threat("linf", self.eps)

    @property
    def pgd(self) -> Attempt:
        return Attempt("pgd", self.threat, {"steps": self.steps or PAPER_STEPS})

    @property
    def autoattack(self) -> Attempt:
        given = {"steps": self.aa_steps, "targets": self.targets, "queries": self.queries}
        return Attempt("autoattack", self.threat, {name: value for name, value in given.items() if value})

    def columns(self) -> list[str]:
        return ["clean %", f"{self.pgd.title} %", "and AAS %", f"{self.autoattack.title} %"]

    def note(self, every: str) -> str:
        epochs = f"{self.epochs:g} epochs" if self.epochs else "the recipe's epochs"
        inner = f"{self.inner_steps} inner steps" if self.inner_steps else "the recipe's inner steps"
        return (
            f"The last weights of each training, scales included. {self.learn or 'All'} images, {epochs}, "
            f"{inner}, {self.threat}, scales moved every {every} epochs, a batch each time; "
            f"{self.autoattack.title} on what is left. Seeds: {', '.join(map(str, self.seeds))}; cells are "
            "means over them."
        )


EFFORT = AasTrainingEffort()


def is_scaled(recipe: str) -> bool:
    """Whether a recipe trains by AAS-AT, by its name."""
    return recipe.endswith("-aas") if recipe.startswith(OWN) else recipe.startswith("aas-")


def scaled_recipe(method: str) -> str:
    """The recipe of a method with AAS-AT."""
    return f"{method}-aas" if method.startswith(OWN) else f"aas-{method}"


def paper_row(recipe: str) -> str:
    """The row of Tables 4 and 5 that a recipe repeats, as `published.yaml` calls it."""
    if not recipe.startswith(OWN):
        return recipe
    name = recipe.removeprefix(OWN).removesuffix("-aas")
    name = {"trades-awp": "awp", "xcit": "xcit-finetune-cifar10"}.get(name, name)
    return f"aas-{name}" if is_scaled(recipe) else name
