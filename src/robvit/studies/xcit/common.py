"""What the studies of the XCiT thesis share: variants of a recipe, trained once, judged, compared in pairs.

A variant is written as the thesis ran it. At the small scale a small network of the same kind learns
from a few bundled images by the recipe small-study with the same changes; at the paper's scale the
recipe itself runs, on data that the caller has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.errors import InputError
from robvit.evaluation.metrics import interval, paired_interval
from robvit.evaluation.record import Finding, Record, Table, Trial
from robvit.loading import load
from robvit.progress import progress
from robvit.studies.common import Request, study_record
from robvit.studies.tora.common import Attempt, attacked, per_cent
from robvit.threat import Threat
from robvit.training.fit import WEIGHTS
from robvit.training.recipe import load_recipe
from robvit.training.train import Job, job_of, train

IMAGES = 64
PAPER_EPOCHS = 100  # without the ten of cool-down
HELD = 50  # images held out, a formality: the last weights count
# What the reader puts into a command.
IMAGENET100, CHECKPOINT, SYNTHETIC = "IMAGENET100", "CHECKPOINT", "SYNTHETIC"


@dataclass(frozen=True)
class Variant:
    """One row: a network, a recipe and its changes, times in the thesis's epochs.

    `stand_in` is the network of the small scale, `small` what changes there besides. `on` is the data of
    the thesis in words and `small_data` what stands for it; `extra` is more data for both.
    """

    label: str
    model: str = "xcit_nano_12_p16_224"
    base: str = "xcit-light"
    changes: Mapping[str, Any] = field(default_factory=dict)
    stand_in: str = "tiny-xcit-s"
    small: Mapping[str, Any] = field(default_factory=dict)
    on: str = IMAGENET100
    small_data: str = "sample"
    extra: str = ""
    small_extra: str = ""

    def standard(self) -> Variant:
        """The same network and augmentation, trained without attacks."""
        kept = {key: value for key, value in self.changes.items() if not key.startswith(("eps_", "inner."))}
        calm = {"loss": "standard", "inner.eps": 0, "eps_warmup": 0, **self.small}
        return replace(self, label=f"{self.label}, standard", base="standard", changes=kept, small=calm)

    def command(self) -> str:
        """How the thesis's own run is asked for."""
        arch = " --arch xcit-s12" if self.model == CHECKPOINT else ""
        more = f" --extra {self.extra or SYNTHETIC}" if "extra_share" in self.changes else ""
        changed = "".join(f" --set {key}={value}" for key, value in self.changes.items())
        return f"robvit train {self.base} --model {self.model}{arch} --data {self.on}{more}{changed}"


@dataclass(frozen=True)
class Effort:
    """How much is spent; numbers of 0 are the scale's own, which take minutes on one core if it is small."""

    scale: str
    learn: int = 0
    epochs: float = 0
    steps: int = 0
    training: str = ""
    usual: tuple[int, float] = (950, 5)  # images and epochs of the small scale

    def __post_init__(self) -> None:
        if self.scale not in ("small", "paper"):
            raise InputError(f"scale must be small or paper, got {self.scale!r}")

    @property
    def is_small(self) -> bool:
        return self.scale == "small"

    def folder(self, request: Request) -> Path:
        """Where trainings are kept, so that several studies can share them."""
        return Path(self.training) if self.training else request.out / "training"

    def job(self, request: Request, variant: Variant) -> Job:
        """The training of a variant at this scale."""
        if self.is_small:
            limit = (self.learn or self.usual[0]) + HELD
            extra = variant.small_extra or None
            recipe = load_recipe("small-study", **self._small(variant), seed=request.seed)
            data = request.data or variant.small_data
            return job_of(recipe, request.model or variant.stand_in, data, limit=limit, extra=extra)
        if request.data is None:
            raise InputError(
                f"the paper's scale takes {variant.on}, which is not part of robvit: give its folder with "
                "--data and, for fine-tuning, the robust checkpoint with --model; a small run lists every "
                "row's command"
            )
        changes = {**variant.changes, "seed": request.seed}
        recipe = load_recipe(variant.base, **changes, **({"epochs": self.epochs} if self.epochs else {}))
        robust = variant.model == CHECKPOINT
        return job_of(
            recipe,
            request.model if robust else variant.model,
            request.data,
            limit=self.learn or None,
            resize=request.fit,
            extra=variant.extra or None,
            arch="xcit-s12" if robust else None,
        )

    def _small(self, variant: Variant) -> dict[str, Any]:
        """The changes of small-study: the thesis's, its times in proportion, and a few epochs."""
        epochs = self.epochs or self.usual[1]
        changes: dict[str, Any] = {
            "inner.eps": 4 / 255,
            **variant.changes,
            "epochs": epochs,
            "warmup": epochs / 10,
            "batch": 64,
            "lr": 2e-3,
            "patch_size": 4,
            "validation": HELD,
            "validate_every": 10_000,
            "track": [],
            **variant.small,
        }
        changes["eps_warmup"] = changes.get("eps_warmup", 10) * epochs / PAPER_EPOCHS
        return changes

    def attempts(self, inner: Mapping[str, Any], strongest: str) -> tuple[Attempt, ...]:
        """No attack, one step, and the strongest, within the budget that was trained for."""
        threat = Threat(inner["norm"], inner["eps"])
        few: dict[str, Any] = {"steps": self.steps or (20 if self.is_small else 100)}
        if strongest == "apgd_ce":
            few |= {} if self.is_small else {"restarts": 5}
        elif self.is_small:
            few |= {"targets": 3, "queries": 100}
        return (("clean", None, {}), ("fgsm", threat, {}), (strongest, threat, few))


@dataclass(frozen=True)
class Row:
    """A variant, trained (`course` is the record of it) and judged.

    Its trials are no attack, one step, and the strongest; `standard` is no attack on its calm twin.
    """

    variant: Variant
    model: Model
    splits: Record
    trials: list[Trial]
    standard: Trial | None = None

    @property
    def robust(self) -> Trial:
        return self.trials[-1]


def trained(request: Request, effort: Effort, variant: Variant) -> tuple[Model, Record]:
    """A variant's network and the record of its training; what was trained before is taken up again."""
    job = effort.job(request, variant)
    facts = [job.recipe.digest(), job.model, job.data, job.extra, job.limit, job.resize]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    folder = effort.folder(request) / f"{Path(job.model).stem}-{key[:12]}"
    with progress(f"training {variant.label}", total=1) as advance:
        record = train(job, folder, report=advance)
    return load(str(folder / WEIGHTS)), record


def judged(
    request: Request,
    effort: Effort,
    variants: Sequence[Variant],
    *,
    strongest: str = "apgd_ce",
    with_standard: bool = False,
) -> Judged:
    """Every variant trained, and judged on the same images, which none of them has seen."""
    rows = []
    for variant in variants:
        model, splits = trained(request, effort, variant)
        images = judging(request, variant, model.input_size[0])
        attempts = effort.attempts(splits.model["recipe"]["inner"], strongest)
        trials = attacked(request, model, model.identity(), images, variant.label, attempts)
        standard = None
        if with_standard:
            calm = variant.standard()
            other, _ = trained(request, effort, calm)
            standard = attacked(request, other, other.identity(), images, calm.label, attempts[:1])[0]
        rows.append(Row(variant, model, splits, trials, standard))
    return Judged(request, effort, rows, images)


def judging(request: Request, variant: Variant, size: int) -> ImageDataset:
    """The images that judge a variant."""
    spec = request.data or variant.small_data
    return open_data(spec, size=size, resize=request.fit, limit=request.images or IMAGES)


def cell(trial: Trial | None) -> str | None:
    """A share in per cent with its 95 % interval."""
    if trial is None:
        return None
    low, high = (100 * bound for bound in interval(sum(trial.correct), len(trial.correct)))
    return f"{per_cent(trial):.1f} ({low:.1f} to {high:.1f})"


def finals(rows: Sequence[Row], paper: Mapping[str, tuple[float, float]], title: str) -> Table:
    """Clean, one-step and AutoAttack accuracy beside the paper's."""
    columns = ["", "clean %", "FGSM %", "AutoAttack %", "paper: clean %", "AutoAttack %"]
    cells = [[row.variant.label, *map(cell, row.trials), *paper[row.variant.label]] for row in rows]
    return Table(title, columns, cells)


class Claim(NamedTuple):
    """That one row withstands more than another, by so many points in the thesis."""

    text: str
    better: str
    worse: str
    points: float | None  # None where the thesis does not have the pair


@dataclass(frozen=True)
class Judged:
    """All rows of a table, judged on the same images."""

    request: Request
    effort: Effort
    rows: list[Row]
    images: ImageDataset

    def record(self, table: Table, claims: Sequence[Claim] = (), *, quoted: str = "") -> Record:
        """The record of the table; the page's headline is the row `quoted`, the others are controls."""
        chosen = next((row for row in self.rows if row.variant.label == quoted), self.rows[-1])
        trials = [replace(trial, control=row is not chosen) for row in self.rows for trial in row.trials]
        trials += [replace(row.standard, control=True) for row in self.rows if row.standard]
        spec = self.request.data or chosen.variant.small_data
        record = study_record(replace(self.request, data=spec), chosen.model, self.images, trials=trials)
        record.model["name"] = f"{chosen.splits.model['name']}, {chosen.variant.label}"
        pairs = claims_table(self.rows, claims)
        record.tables = [table, *([pairs] if pairs.rows else []), _commands(self.rows)]
        for row in self.rows:
            doubts = [finding.evidence for finding in row.splits.findings if finding.status == "red"]
            record.findings += [Finding(row.variant.label, "amber", doubt) for doubt in doubts]
        chance = 100 / len(self.images.classes)
        record.notes.append(f"Chance is {chance:.3g} %: a network that learned nothing withstands as much.")
        if self.effort.is_small:
            learned, size = chosen.splits.data["learned from"], chosen.model.input_size[0]
            epochs = chosen.splits.model["recipe"]["epochs"]
            more = " and --data cifar10" if spec == "sample" else ""
            record.notes.append(
                f"A small run, not the paper's: {learned} images of {spec} at {size} pixels, {epochs:g} "
                "epochs, one seed, small networks in place of the paper's. Its figures are not to be "
                "compared with the paper's, only directions, where an interval tells them. "
                f"More with --set learn=5000, --set epochs=20, --images 1000{more}."
            )
        return record


def claims_table(rows: Sequence[Row], claims: Sequence[Claim]) -> Table:
    """Each claim on the same images, pair by pair; too few images tell nothing, and it says so."""
    by_label = {row.variant.label: row.robust.correct for row in rows}
    told: list[list[Any]] = []
    for claim in claims:
        if not {claim.better, claim.worse} <= by_label.keys():
            continue
        pairs = list(zip(by_label[claim.better], by_label[claim.worse], strict=True))
        more, less = (sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs))
        points, low, high = (100 * value for value in paired_interval(more, less, len(pairs)))
        says = "seen" if low > 0 else "the opposite is seen" if high < 0 else "cannot be told"
        theirs = None if claim.points is None else f"{claim.points:+.2f}"
        told.append([claim.text, theirs, f"{points:+.1f} ({low:+.1f} to {high:+.1f})", says])
    columns = ["claim on robust accuracy", "paper, points", "ours, points (95 % interval)", "here"]
    return Table("Claims, pair by pair", columns, told)


def _commands(rows: Sequence[Row]) -> Table:
    note = "Capitals are your folders and files. --set scale=paper trains every row so and judges it."
    commands = [[row.variant.label, row.variant.command()] for row in rows]
    commands += [
        [row.variant.standard().label, row.variant.standard().command()] for row in rows if row.standard
    ]
    return Table("The same at the paper's scale", ["row", "command"], commands, note)
