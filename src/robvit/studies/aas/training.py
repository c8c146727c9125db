"""Tables 4 and 5 and figure 5 (a, b) of the attention-scaling paper: AAS-AT beside training without it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from robvit.attacks import run
from robvit.attention import kept_scales
from robvit.attention.comparison import Comparison, ScalingMethod, compare_scaling
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.trials import spread, trial_of
from robvit.loading import load
from robvit.progress import progress
from robvit.record import Curve, Record, Table, Trial
from robvit.studies.aas.common import PAPER, PUBLISHED
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, TrainingEffort, study
from robvit.studies.judging import Attempt, per_cent, worst_of
from robvit.studies.published import PublishedTable
from robvit.threat import Threat
from robvit.training.fit import WEIGHTS
from robvit.training.job import job_of
from robvit.training.recipe import load_recipe
from robvit.training.train import run_job
from robvit.verdict import Claim, claim_of

MODEL, IMAGES = "robvit-mini", 64
THREAT = Threat("linf", 8 / 255)
PAPER_STEPS = 100  # of the paper's PGD


@dataclass(frozen=True)
class AasTrainingEffort(TrainingEffort):
    """What a training and its judgement cost.

    0 leaves a recipe's own number, and for the judgement's `steps` and `queries` the paper's.
    """

    learn: int = 1000
    epochs: float = 6
    training: str = ""
    inner_steps: int = 2
    steps: int = 20
    queries: int = 100

    def changes(self, recipe: str, every: int, seed: int) -> dict[str, Any]:
        """What is changed in a recipe; a recipe that keeps its length keeps its warm-up and its start too."""
        changes: dict[str, Any] = {"seed": seed, "track": []}
        if self.epochs:  # a short training starts from trained weights
            changes |= {"epochs": self.epochs, "warmup": min(1, self.epochs // 4), "pretrained": True}
        if self.learn:  # few images cannot spare as many as a recipe holds out
            changes["validation"] = 0.1
        if self.inner_steps:
            changes["inner.steps"] = self.inner_steps
        if every and recipe.startswith("aas-"):
            changes["loss_settings.every"] = every
        return changes

    @property
    def pgd(self) -> Attempt:
        return Attempt("pgd", THREAT, {"steps": self.steps or PAPER_STEPS})

    @property
    def autoattack(self) -> Attempt:
        return Attempt("autoattack", THREAT, {"queries": self.queries} if self.queries else {})

    def columns(self) -> list[str]:
        return ["clean %", f"{self.pgd.title} %", "and AAS %", f"{self.autoattack.title} %"]

    def note(self, every: str) -> str:
        epochs = f"{self.epochs:g} epochs" if self.epochs else "the recipe's epochs"
        inner = f"{self.inner_steps} inner steps" if self.inner_steps else "the recipe's inner steps"
        return (
            f"Judged as shipped, scales included. {self.learn or 'All'} images, {epochs}, {inner}, scales "
            f"moved every {every} epochs; AutoAttack on what is left. Both trainings take as many epochs; "
            "the scales' are among them."
        )


EFFORT = AasTrainingEffort()


@dataclass(frozen=True)
class JudgedTraining:
    """A trained model, judged as it ships, and the seconds its training took."""

    model: Model
    images: ImageDataset
    comparison: Comparison
    autoattack: Trial
    seconds: float

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


@study(
    "aas-table5",
    paper=PAPER,
    title="Table 5: AAS-AT on top of adversarial trainings, CIFAR-10",
    effort=EFFORT,
)
def trainings(
    context: StudyContext,
    effort: AasTrainingEffort,
    *,
    methods: Sequence[str] = ("pgd-at", "trades"),
    every: int = 2,
) -> Record:
    """Each method's recipe with and without AAS-AT; numbers of 0 leave the recipe's own, as for the paper."""
    published = PUBLISHED["table5"]
    judged, claims = _pairs(context, effort, methods, every, published)
    columns = [
        "training",
        *effort.columns(),
        "seconds",
        "paper: clean %",
        "PGD-100 %",
        "with AAS %",
        "AutoAttack %",
    ]
    rows: list[list[Any]] = [
        [name, *one.accuracies(), one.seconds, *published.row(name)] for name, one in judged.items()
    ]
    table = Table("Table 5: AAS-AT", columns, rows, effort.note(f"{every or 'few'}"))
    return _record(context, table, judged, claims)


@study("aas-table4", paper=PAPER, title="Table 4: AAS-AT on ImageNet-100", effort=EFFORT)
def larger(
    context: StudyContext,
    effort: AasTrainingEffort,
    *,
    methods: Sequence[str] = ("pgd-at", "trades"),
    every: int = 2,
) -> Record:
    """As aas-table5, beside the paper's ImageNet-100 column; give --data a folder of its classes."""
    published = PUBLISHED["table4"]
    judged, claims = _pairs(context, effort, methods, every, published)
    clean, *_, autoattack = effort.columns()
    columns = ["training", clean, autoattack, "paper: clean %", "AutoAttack %"]
    rows: list[list[Any]] = []
    for name, one in judged.items():
        ours = one.accuracies()
        rows.append([name, ours[0], ours[-1], *published.row(name)])
    table = Table("Table 4: AAS-AT", columns, rows, effort.note(f"{every or 'few'}"))
    return _record(context, table, judged, claims)


@study(
    "aas-fig5ab", paper=PAPER, title="Fig. 5 (a, b): epochs between two moves of the scales", effort=EFFORT
)
def gaps(
    context: StudyContext,
    effort: AasTrainingEffort,
    *,
    between: Sequence[int] = (2, 3, 5),
    method: str = "pgd-at",
) -> Record:
    """AAS-AT on top of one method for several gaps; the paper: stable from 5 to 40 of 110 epochs."""
    judged = {f"{n}": _trained(context, effort, f"aas-{method}", n, f"gap-{n}") for n in between}
    lines = {
        "clean": [[float(n), one.accuracies()[0]] for n, one in judged.items()],
        effort.pgd.title: [[float(n), one.accuracies()[1]] for n, one in judged.items()],
    }
    rows: list[list[Any]] = [[name, *one.accuracies()] for name, one in judged.items()]
    every = ", ".join(judged)
    table = Table("Fig. 5 (a, b)", ["epochs between moves", *effort.columns()], rows, effort.note(every))
    record = _record(context, table, judged, [])
    record.curves = [Curve("Fig. 5 (a, b): gap", "epochs between moves", "accuracy, %", lines)]
    return record


def _pairs(
    context: StudyContext,
    effort: AasTrainingEffort,
    methods: Sequence[str],
    every: int,
    published: PublishedTable,
) -> tuple[dict[str, JudgedTraining], list[Claim]]:
    """Every method without AAS-AT and with it, and the claim that it helps under AutoAttack."""
    judged: dict[str, JudgedTraining] = {}
    claims = []
    for method in methods:
        scaled = f"aas-{method}"
        for name in (method, scaled):
            judged[name] = _trained(context, effort, name, every, name)
        with_scales, without = (judged[name].autoattack.correct for name in (scaled, method))
        gain = published.gain(scaled, method, "AutoAttack")
        claims.append(claim_of(f"{scaled} over {method}, AutoAttack", with_scales, without, gain))
    return judged, claims


def _trained(
    context: StudyContext, effort: AasTrainingEffort, name: str, every: int, folder: str
) -> JudgedTraining:
    """Train by a recipe, from the given model's weights, and judge what comes out on test images."""
    recipe = load_recipe(name, **effort.changes(name, every, context.seed))
    network, data = context.model_name(MODEL), context.data_name("sample")
    job = job_of(recipe, network, data, limit=effort.learn or None)
    place = effort.folder(context) / folder
    start = time.monotonic()
    with progress(f"training {name}", total=1) as advance:
        run_job(job, place, progress=advance)
    seconds = time.monotonic() - start
    model = load(str(place / WEIGHTS))
    images = context.dataset("sample", "test", model.input_size[0], context.count(IMAGES))
    comparison, autoattack = _judge(model, images, effort, context.seed)
    return JudgedTraining(model, images, comparison, autoattack, seconds)


def _judge(
    model: Model, images: ImageDataset, effort: AasTrainingEffort, seed: int
) -> tuple[Comparison, Trial]:
    """PGD, and PGD with AAS, against their control; then AutoAttack on what these leave."""
    comparison = compare_scaling(
        model, images, THREAT, settings=dict(effort.pgd.settings), method=ScalingMethod(), seed=seed
    )
    before = worst_of(comparison.plain, comparison.scaled)
    alive = [i for i, correct in enumerate(before.correct) if correct]
    if not alive:
        return comparison, replace(before, attack="autoattack", settings=dict(effort.autoattack.settings))
    x, y = images.take(alive).tensors()
    settings = {**effort.autoattack.settings, "seed": seed}
    outcome = run("autoattack", model, x, y, THREAT, **settings)
    return comparison, spread(trial_of(outcome, "autoattack", THREAT, settings), alive, before)


def _record(
    context: StudyContext, table: Table, judged: Mapping[str, JudgedTraining], claims: list[Claim]
) -> Record:
    """The record of all trainings; the last one is quoted, the others are controls."""
    *_, last = judged
    trials = [t for name, one in judged.items() for t in one.trials(name, control=name != last)]
    record = context.record(judged[last].model, judged[last].images, trials=trials, claims=claims)
    record.model["name"] = f"{context.model_name(MODEL)}, {last}"
    record.tables = [table, *([claims_table(claims)] if claims else [])]
    for name, one in judged.items():
        scales = kept_scales(one.model)
        if scales is not None:
            record.notes.append(f"{name} ships with scales {', '.join(f'{s:.2g}' for s in scales.tolist())}.")
    return record
