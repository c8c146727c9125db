"""What the studies of the XCiT thesis share: variants trained once, judged, and compared in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.record import Curve, Finding, Record, Table, Trial
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext
from robvit.studies.judging import Attempt, judge, point, with_interval
from robvit.studies.published import Cell, PublishedTable, read_published
from robvit.studies.xcit.variants import RecipeEffort, Variant, train_variant
from robvit.verdict import Claim, claim_of

PUBLISHED = read_published("xcit")
PAPER = PUBLISHED.paper


@dataclass(frozen=True)
class JudgedVariant:
    """A variant, trained (`training` is the record of it) and judged.

    Its trials are no attack, one step, and the strongest; `standard` is no attack on its twin that was
    trained without attacks.
    """

    variant: Variant
    model: Model
    training: Record
    trials: list[Trial]
    standard: Trial | None = None

    @property
    def label(self) -> str:
        return self.variant.label

    @property
    def robust(self) -> Trial:
        return self.trials[-1]


class Contrast(NamedTuple):
    """That one row withstands more than another, by so many points where the thesis has both."""

    text: str
    better: str
    worse: str
    paper: Cell = None


@dataclass(frozen=True)
class JudgedVariants:
    """All rows of a table, judged by the same attacks on the same images."""

    context: StudyContext
    effort: RecipeEffort
    rows: list[JudgedVariant]
    images: ImageDataset
    attempts: tuple[Attempt, ...]

    @property
    def columns(self) -> list[str]:
        """What stands over the accuracies of a row."""
        return [f"{attempt.title} %" for attempt in self.attempts]

    def record(self, table: Table, contrasts: Sequence[Contrast] = (), *, quoted: str = "") -> Record:
        """The record of the table; the page's headline is the row `quoted`, the others are controls."""
        chosen = next((row for row in self.rows if row.label == quoted), self.rows[-1])
        trials = [replace(trial, control=row is not chosen) for row in self.rows for trial in row.trials]
        trials += [replace(row.standard, control=True) for row in self.rows if row.standard]
        claims = claims_of(self.rows, contrasts)
        record = self.context.record(chosen.model, self.images, trials=trials, claims=claims)
        record.model["name"] = f"{chosen.training.model['name']}, {chosen.label}"
        pairs = [claims_table(claims, "Claims on robust accuracy, pair by pair")] if claims else []
        record.tables = [table, *pairs, _commands(self.rows)]
        for row in self.rows:
            doubts = [finding.evidence for finding in row.training.findings if finding.status == "red"]
            record.findings += [Finding(row.label, "amber", doubt) for doubt in doubts]
        chance = 100 / len(self.images.classes)
        record.notes.append(f"Chance is {chance:.3g} %: a network that learned nothing withstands as much.")
        if self.effort.is_small:
            record.notes.append(_small_note(chosen, self.images.spec))
        return record


def judge_variants(
    context: StudyContext,
    effort: RecipeEffort,
    variants: Sequence[Variant],
    *,
    strongest: str = "apgd_ce",
    with_standard: bool = False,
) -> JudgedVariants:
    """Every variant trained, and judged on the same images, which none of them has seen."""
    rows = []
    images = effort.judged(context, variants[0])  # refused now rather than after days of training
    for variant in variants:
        model, training = train_variant(context, effort, variant)
        images = images.resized(model.input_size[0], context.resize)
        attempts = effort.attempts(training.model["recipe"]["inner"], strongest)
        trials = judge(context, model, images, attempts, scenario=variant.label)
        standard = None
        if with_standard:
            twin = variant.standard()
            other, _ = train_variant(context, effort, twin)
            (standard,) = judge(context, other, images, attempts[:1], scenario=twin.label)
        rows.append(JudgedVariant(variant, model, training, trials, standard))
    return JudgedVariants(context, effort, rows, images, attempts)


def cell(trial: Trial | None) -> str | None:
    """A share in per cent with its 95 % interval."""
    return None if trial is None else with_interval(trial.correct)


def accuracy_table(judged: JudgedVariants, published: PublishedTable, title: str) -> Table:
    """Accuracy of every row, clean and attacked, beside the paper's."""
    columns = ["", *judged.columns, "paper: clean %", "AutoAttack %"]
    cells = [[row.label, *map(cell, row.trials), *published.row(row.label)] for row in judged.rows]
    return Table(title, columns, cells)


def ablation_table(judged: JudgedVariants, published: PublishedTable, title: str, note: str = "") -> Table:
    """Ours beside the paper's, with standard training where it was done."""
    has_standard = any(row.standard for row in judged.rows)
    columns = ["", *(["standard: clean %"] if has_standard else []), *judged.columns]
    columns += [*(["paper: standard, clean %"] if has_standard else []), "paper: clean %", "APGD-CE %"]
    cells: list[list[Any]] = []
    for row in judged.rows:
        standard, *others = published.row(row.label)
        ours = [*([cell(row.standard)] if has_standard else []), *map(cell, row.trials)]
        cells.append([row.label, *ours, *([standard] if has_standard else []), *others])
    return Table(title, columns, cells, note)


def contrast(text: str, better: str, worse: str, published: PublishedTable) -> Contrast:
    """A claim on the last column of the paper's table."""
    return Contrast(text, better, worse, published.gain(better, worse, published.columns[-1]))


def claims_of(rows: Sequence[JudgedVariant], contrasts: Sequence[Contrast]) -> list[Claim]:
    """Each claim whose both rows were run, on the same images, pair by pair."""
    correct = {row.label: row.robust.correct for row in rows}
    return [
        claim_of(one.text, correct[one.better], correct[one.worse], one.paper)
        for one in contrasts
        if {one.better, one.worse} <= correct.keys()
    ]


def accuracy_curve(title: str, axis: str, places: Sequence[float], judged: JudgedVariants) -> Curve:
    """Clean and robust accuracy over what is varied, with intervals."""
    clean, *_, strongest = judged.attempts
    lines: dict[str, list[list[float]]] = {clean.title: [], strongest.title: []}
    for at, row in zip(places, judged.rows, strict=True):
        lines[clean.title].append(point(at, row.trials[0].correct))
        lines[strongest.title].append(point(at, row.robust.correct))
    return Curve(title, axis, "accuracy, %", lines)


def _small_note(chosen: JudgedVariant, spec: str) -> str:
    learned, size = chosen.training.data["learned from"], chosen.model.input_size[0]
    epochs = chosen.training.model["recipe"]["epochs"]
    more = " and --data cifar10" if spec == "sample" else ""
    return (
        f"A small run, not the paper's: {learned} images of {spec} at {size} pixels, {epochs:g} "
        "epochs, one seed, small networks in place of the paper's. Its figures are not to be "
        "compared with the paper's, only directions, where an interval tells them. "
        f"More with --set learn=5000, --set epochs=20, --images 1000{more}."
    )


def _commands(rows: Sequence[JudgedVariant]) -> Table:
    note = "Capitals are your folders and files. --set scale=paper trains every row so and judges it."
    commands = [[row.label, row.variant.command()] for row in rows]
    commands += [
        [row.variant.standard().label, row.variant.standard().command()] for row in rows if row.standard
    ]
    return Table("The same at the paper's scale", ["row", "command"], commands, note)
