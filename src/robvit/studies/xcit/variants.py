"""Variants of a recipe as the thesis ran them, and what is trained in their place at a small scale.

At the small scale a small network of the same kind learns from a few bundled images by the recipe
small-study with the same changes; at the paper's scale the recipe itself runs, on data that the caller has.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robvit.audit import SIZE
from robvit.autoattack import NAME as AUTOATTACK
from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.data.imagenet import ROBUSTBENCH
from robvit.errors import InputError
from robvit.loading import load
from robvit.locks import one_at_a_time
from robvit.processes import processes
from robvit.progress import progress
from robvit.record import Record
from robvit.registry import unknown
from robvit.studies.common import WIDE, StudyContext, TrainingEffort
from robvit.studies.judging import CLEAN, Attempt
from robvit.threat import Threat
from robvit.training.checkpoint import load_state, restore
from robvit.training.fit import STATE, WEIGHTS
from robvit.training.job import Job, job_of
from robvit.training.recipe import Recipe, load_recipe
from robvit.training.train import run_job

IMAGES = 64  # judged at the small scale
SIDES = {"tiny": 16, "small": 32}  # of the images of the small scale's networks
PAPER_EPOCHS = 100  # without the ten of cool-down
PAPER_EPS = 4 / 255
VALIDATION = 50  # images held out, a formality: the last weights count
AUDITED = "audited"
JUDGES = ("apgd_ce", "autoattack", AUDITED)
# What the reader puts into a command.
IMAGENET, IMAGENET100, CHECKPOINT, SYNTHETIC = "IMAGENET", "IMAGENET100", "CHECKPOINT", "SYNTHETIC"


@dataclass(frozen=True)
class Variant:
    """One row: a network, a recipe and its changes, times in the thesis's epochs.

    `stand_in` is the network of the small scale, `small` what changes there besides and `small_effort` its
    images and epochs. `on` is the data of the thesis in words and `small_data` what stands for it; `extra`
    is more data for both. With `last` the last weights are judged, whatever the validations chose.
    """

    label: str
    model: str = "xcit_nano_12_p16_224"
    base: str = "xcit-light"
    changes: Mapping[str, Any] = field(default_factory=dict)
    stand_in: str = "tiny-xcit-s"
    small: Mapping[str, Any] = field(default_factory=dict)
    small_effort: tuple[int, float] = (950, 5)
    on: str = IMAGENET100
    small_data: str = "sample"
    extra: str = ""
    small_extra: str = ""
    last: bool = False

    @property
    def share(self) -> float:
        """Of each batch, the real images."""
        return 1 - float(self.changes.get("extra_share", 0))

    def standard(self) -> Variant:
        """The same network and augmentation, trained without attacks."""
        attacks = ("eps_", "inner.")
        changes = {key: value for key, value in self.changes.items() if not key.startswith(attacks)}
        small = {"loss": "standard", "inner.eps": 0, "eps_warmup": 0, **self.small}
        return replace(self, label=f"{self.label}, standard", base="standard", changes=changes, small=small)

    def command(self) -> str:
        """The command of the thesis's own run, quoted for a shell."""
        words = ["robvit", "train", self.base, "--model", self.model]
        words += ["--arch", "xcit-s12"] if self.model == CHECKPOINT else []
        words += ["--data", self.on]
        words += ["--extra", self.extra or SYNTHETIC] if "extra_share" in self.changes else []
        words += [word for key, value in self.changes.items() for word in ("--set", f"{key}={value}")]
        return shlex.join(words)


@dataclass(frozen=True)
class RecipeEffort(TrainingEffort):
    """What is spent on every variant; numbers of 0 are the scale's own: minutes on one core if it is small.

    Every variant, or those of the `rows` named, is trained with each of the `seeds`, and with `twins` without
    attacks too where the thesis has that. At the small scale networks are "tiny", for 16x16 images, or
    "small", for 32x32, with patches of `patch`, trained within `eps` by batches of `batch` at a peak `rate`;
    beyond the thesis's 4/255, where one plain step collapses, by one wide step unless a row has its own.
    Rows with extra images have fewer epochs, so that all take as many steps. The strongest attack in the
    judgement is the table's own, or what `judge` names: "apgd_ce", "autoattack" or "audited", which is
    AutoAttack with FAB and Square on a sample of `audit` survivors. `steps`, `targets` and `queries` are its.
    """

    learn: int = 0
    epochs: float = 0
    training: str = ""
    steps: int = 0
    targets: int = 3
    queries: int = 100
    judge: str = ""
    audit: int = SIZE
    scale: str = "small"
    rows: Sequence[str] = ()
    seeds: Sequence[int] = ()
    twins: bool = True
    network: str = "tiny"
    patch: int = 4
    eps: float = 0
    batch: int = 64
    rate: float = 2e-3

    def __post_init__(self) -> None:
        known = {"scale": ("small", "paper"), "network": tuple(SIDES), "judge": ("", *JUDGES)}
        for name, values in known.items():
            if getattr(self, name) not in values:
                given = " or ".join(value for value in values if value)
                raise InputError(f"{name} must be {given}, got {getattr(self, name)!r}")
        if self.judge == AUDITED and not self.is_small:
            raise InputError(
                "the audited version sees all images at once, too many at the paper's scale; judge the kept "
                "weights by `robvit evaluate --protocol linf-4-audited@1`"
            )

    @property
    def is_small(self) -> bool:
        return self.scale == "small"

    def chosen(self, variants: Sequence[Variant]) -> list[Variant]:
        """The rows that are asked for, all if none is named."""
        known = [variant.label for variant in variants]
        for name in self.rows:
            if name not in known:
                raise unknown("row", name, known)
        return [variant for variant in variants if not self.rows or variant.label in self.rows]

    def job(self, context: StudyContext, variant: Variant) -> Job:
        """The training of a variant at this scale."""
        if self.is_small:
            limit = (self.learn or variant.small_effort[0]) + VALIDATION
            recipe = load_recipe("small-study", **self._small_changes(variant), seed=context.seed)
            stand_in = variant.stand_in.replace("tiny-", f"{self.network}-")
            model, data = context.model_name(stand_in), context.data_name(variant.small_data)
            extra = variant.small_extra or None
            return job_of(recipe, model, data, limit=limit, resize=context.resize, extra=extra)
        _check_data(context, variant)
        robust = variant.model == CHECKPOINT  # the caller's
        return job_of(
            self._paper_recipe(variant, context.seed),
            (context.model_name("") or None) if robust else variant.model,
            context.data_name(""),
            limit=self.learn or None,
            resize=context.resize,
            extra=variant.extra or None,
            arch="xcit-s12" if robust else None,
        )

    def judged(self, context: StudyContext, variant: Variant) -> ImageDataset:
        """The images that judge a variant, at their own size.

        At the paper's scale that is the whole test split, of ImageNet RobustBench's 5,000.
        """
        if self.is_small:
            data, limit = context.data_name(variant.small_data), context.count(IMAGES)
            return open_data(data, resize=context.resize, limit=limit)
        _check_data(context, variant)
        subset = ROBUSTBENCH if variant.on == IMAGENET else None
        return open_data(context.data_name(""), resize=context.resize, limit=context.images, subset=subset)

    def attempts(self, inner: Mapping[str, Any], strongest: str) -> tuple[Attempt, ...]:
        """No attack, one step, and the strongest, within the budget that was trained for."""
        threat, strongest = Threat(inner["norm"], inner["eps"]), self.judge or strongest
        settings: dict[str, Any] = {"steps": self.steps or (20 if self.is_small else 100)}
        if strongest == "apgd_ce":
            settings |= {} if self.is_small else {"restarts": 5}
        elif self.is_small:
            settings |= {"targets": self.targets, "queries": self.queries}
        if strongest == AUDITED:
            strongest, settings = AUTOATTACK, settings | {"version": AUDITED, "audit": self.audit}
        return CLEAN, Attempt("fgsm", threat), Attempt(strongest, threat, settings)

    def _paper_recipe(self, variant: Variant, seed: int) -> Recipe:
        epochs = {"epochs": self.epochs} if self.epochs else {}
        return load_recipe(variant.base, **variant.changes, **epochs, seed=seed)

    def _small_changes(self, variant: Variant) -> dict[str, Any]:
        """The changes of small-study: the thesis's, its times in proportion, and a few epochs."""
        epochs = (self.epochs or variant.small_effort[1]) * variant.share  # as many steps for every row
        eps = {"inner.eps": PAPER_EPS, **variant.changes, **variant.small}["inner.eps"]
        eps = (self.eps or eps) if eps else 0  # without attacks at any budget
        changes: dict[str, Any] = {
            **(WIDE if eps > PAPER_EPS else {}),
            **variant.changes,
            "epochs": epochs,
            "warmup": epochs / 10,
            "batch": self.batch,
            "lr": self.rate,
            "img_size": SIDES[self.network],
            "patch_size": self.patch,
            "repeats": 1,  # three times the epochs, which no small run can spare
            "validation": VALIDATION,
            "validate_every": 10_000,
            "track": [],
            **variant.small,
            "inner.eps": eps,
        }
        changes["eps_warmup"] = changes.get("eps_warmup", 10) * epochs / PAPER_EPOCHS
        return changes


def train_variant(context: StudyContext, effort: RecipeEffort, variant: Variant) -> tuple[Model, Record]:
    """A variant's network and the record of its training; what was trained before is taken up again.

    Another study that trains it at this moment, in the same folder, is waited for.
    """
    job = effort.job(context, variant)
    facts = [job.recipe.digest(), job.model, job.data, job.extra, job.limit, job.resize, job.arch]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    folder = effort.folder(context) / f"{Path(job.model_name).stem}-{key[:12]}"
    waiting = one_at_a_time(folder) if processes().is_main_process else nullcontext()
    with waiting, progress(f"training {variant.label}", total=1) as advance:
        record = run_job(job, folder, progress=advance)
    model = load(str(folder / WEIGHTS))
    if variant.last:
        parts, _ = load_state(folder / STATE)
        restore(model, parts.get("ema", parts["model"]), folder / STATE)
    return model, record


def _check_data(context: StudyContext, variant: Variant) -> None:
    if context.data is None:
        raise InputError(
            f"the paper's scale takes {variant.on}, which is not part of robvit: give its folder with "
            "--data and, for fine-tuning, the robust checkpoint with --model; a small run lists every "
            "row's command"
        )
