"""Tables 4 and 5 and figure 5 (a, b) of the attention-scaling paper: AAS-AT beside training without it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from robvit.attacks import run
from robvit.attention.comparison import ScalingMethod, compare_scaling
from robvit.attention.hooks import kept_scales
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.record import Curve, Record, Table
from robvit.loading import load
from robvit.progress import progress
from robvit.studies.aas.common import PAPER, percent
from robvit.studies.common import Request, study, study_record
from robvit.threat import Threat
from robvit.training.fit import WEIGHTS
from robvit.training.recipe import load_recipe
from robvit.training.train import job_of, train

MODEL, IMAGES = "robvit-mini", 64
# CIFAR-10 columns of Table 5 in per cent: clean, PGD-100, PGD-100 with AAS, AutoAttack.
TABLE5 = {
    "pgd-at": (86.14, 59.12, 54.24, 53.14),
    "aas-pgd-at": (85.32, 58.12, 57.78, 56.61),
    "trades": (86.31, 60.12, 55.49, 54.03),
    "aas-trades": (87.46, 59.01, 58.03, 57.34),
    "awp": (86.21, 60.48, 56.84, 56.03),
    "aas-awp": (87.10, 59.78, 58.41, 57.73),
    "mart": (86.19, 59.13, 54.76, 54.12),
    "aas-mart": (85.31, 57.87, 56.43, 55.78),
    "xcit-finetune-cifar10": (90.06, 61.48, 57.06, 56.14),
    "aas-xcit-finetune-cifar10": (90.78, 59.94, 57.84, 57.42),
}
# ImageNet-100, Table 4: clean and AutoAttack.
TABLE4 = {
    "pgd-at": (68.32, 25.78),
    "aas-pgd-at": (68.02, 27.32),
    "trades": (65.48, 26.46),
    "aas-trades": (65.26, 28.04),
}


@dataclass(frozen=True)
class Effort:
    """How much a training and its judgement cost; zero leaves a recipe's own number."""

    learn: int
    epochs: int
    inner_steps: int
    every: int
    steps: int
    queries: int
    eps: float = 8 / 255


@dataclass(frozen=True)
class Trained:
    """A trained model, judged as it ships: accuracy in per cent, and the seconds its training took."""

    clean: float
    pgd: float
    aas: float
    autoattack: float
    seconds: float
    scales: list[float] | None

    def figures(self) -> list[float]:
        return [self.clean, self.pgd, self.aas, self.autoattack]


@study("aas-table5", paper=PAPER, title="Table 5: AAS-AT on top of adversarial trainings, CIFAR-10")
def trainings(
    request: Request,
    *,
    methods: Sequence[str] = ("pgd-at", "trades"),
    learn: int = 1000,
    epochs: int = 6,
    inner_steps: int = 2,
    every: int = 2,
    steps: int = 20,
    queries: int = 100,
) -> Record:
    """Each method's recipe with and without AAS-AT; numbers of 0 leave the recipe's own, as for the paper."""
    effort = Effort(learn, epochs, inner_steps, every, steps, queries)
    done, images, model = _both(request, methods, effort)
    columns = [
        "training",
        "clean %",
        f"PGD-{steps} %",
        "and AAS %",
        "AutoAttack %",
        "seconds",
        "paper: clean %",
        "PGD-100 %",
        "with AAS %",
        "AutoAttack %",
    ]
    empty = (None,) * 4
    rows: list[list[Any]] = [
        [name, *one.figures(), one.seconds, *TABLE5.get(name, empty)] for name, one in done.items()
    ]
    return _told(request, model, images, Table("Table 5: AAS-AT", columns, rows, _note(effort)), done)


@study("aas-table4", paper=PAPER, title="Table 4: AAS-AT on ImageNet-100")
def larger(
    request: Request,
    *,
    methods: Sequence[str] = ("pgd-at", "trades"),
    learn: int = 1000,
    epochs: int = 6,
    inner_steps: int = 2,
    every: int = 2,
    steps: int = 20,
    queries: int = 100,
) -> Record:
    """As aas-table5, beside the paper's ImageNet-100 column; give --data a folder of its classes."""
    effort = Effort(learn, epochs, inner_steps, every, steps, queries)
    done, images, model = _both(request, methods, effort)
    columns = ["training", "clean %", "AutoAttack %", "paper: clean %", "AutoAttack %"]
    rows: list[list[Any]] = [
        [name, one.clean, one.autoattack, *TABLE4.get(name, (None, None))] for name, one in done.items()
    ]
    return _told(request, model, images, Table("Table 4: AAS-AT", columns, rows, _note(effort)), done)


@study("aas-fig5ab", paper=PAPER, title="Fig. 5 (a, b): epochs between two moves of the scales")
def gaps(
    request: Request,
    *,
    between: Sequence[int] = (2, 3, 5),
    method: str = "pgd-at",
    learn: int = 1000,
    epochs: int = 6,
    inner_steps: int = 2,
    steps: int = 20,
    queries: int = 100,
) -> Record:
    """AAS-AT on top of one method for several gaps; the paper: stable from 5 to 40 of 110 epochs."""
    done: dict[str, Trained] = {}
    for every in between:
        effort = Effort(learn, epochs, inner_steps, every, steps, queries)
        done[f"{every}"], images, model = _one(request, f"aas-{method}", effort, f"gap-{every}")
    lines = {
        "clean": [[float(n), one.clean] for n, one in done.items()],
        f"PGD-{steps}": [[float(n), one.pgd] for n, one in done.items()],
    }
    rows: list[list[Any]] = [[name, *one.figures()] for name, one in done.items()]
    columns = ["epochs between moves", "clean %", f"PGD-{steps} %", "and AAS %", "AutoAttack %"]
    record = _told(request, model, images, Table("Fig. 5 (a, b)", columns, rows, _note(effort)), done)
    record.curves = [Curve("Fig. 5 (a, b): gap", "epochs between moves", "accuracy, %", lines)]
    return record


def _both(
    request: Request, methods: Sequence[str], effort: Effort
) -> tuple[dict[str, Trained], ImageDataset, Model]:
    done: dict[str, Trained] = {}
    for method in methods:
        for name in (method, f"aas-{method}"):
            done[name], images, model = _one(request, name, effort, name)
    return done, images, model


def _one(request: Request, name: str, effort: Effort, folder: str) -> tuple[Trained, ImageDataset, Model]:
    """Train by a recipe, from the wanted model's weights, and judge what comes out on test images."""
    changes: dict[str, Any] = {
        "epochs": effort.epochs,
        "inner.steps": effort.inner_steps,
        "seed": request.seed,
        "loss_settings.every": effort.every if name.startswith("aas-") else 0,
        "pretrained": True,
        "warmup": min(1, effort.epochs // 4),
        "validation": 0.1,
        "track": [],
    }
    changes = {key: value for key, value in changes.items() if value or key in ("seed", "track", "warmup")}
    recipe = load_recipe(name, **changes)
    job = job_of(recipe, request.model or MODEL, request.data or "sample", limit=effort.learn or None)
    start = time.monotonic()
    with progress(f"training {name}", total=1) as advance:
        train(job, request.out / folder, report=advance)
    seconds = time.monotonic() - start
    model = load(str(request.out / folder / WEIGHTS))
    images = request.dataset("sample", "test", model.input_size[0], request.images or IMAGES)
    return judged(model, images, effort, seconds, request.seed), images, model


def judged(model: Model, images: ImageDataset, effort: Effort, seconds: float, seed: int) -> Trained:
    """The model as it ships under PGD, PGD and AAS together, and AutoAttack with these."""
    threat = Threat("linf", effort.eps)
    found = compare_scaling(
        model, images, threat, settings={"steps": effort.steps}, way=ScalingMethod(), seed=seed
    )
    left = torch.tensor(found.both)
    x, y = images.arrays()
    if bool(left.any()):
        given: dict[str, Any] = {"queries": effort.queries} if effort.queries else {}
        outcome = run("autoattack", model, x[left], y[left], threat, seed=seed, **given)
        left[left.clone()] = ~outcome.success
    scales = kept_scales(model)
    return Trained(
        percent(found.clean.correct),
        percent(found.plain.correct),
        percent(found.both),
        percent(left.tolist()),
        seconds,
        None if scales is None else scales.tolist(),
    )


def _note(effort: Effort) -> str:
    return (
        f"Judged as shipped, scales included. {effort.learn or 'All'} images, {effort.epochs} epochs, "
        f"{effort.inner_steps} inner steps, scales moved every {effort.every}; AutoAttack on what is left, "
        f"{effort.queries or 5000} queries. Both trainings take as many epochs; the scales' are among them."
    )


def _told(
    request: Request, model: Model, images: ImageDataset, table: Table, done: dict[str, Trained]
) -> Record:
    record = study_record(request, model, images)
    record.tables = [table]
    for name, one in done.items():
        if one.scales is not None:
            record.notes.append(f"{name} ships with scales {', '.join(f'{s:.2g}' for s in one.scales)}.")
    return record
