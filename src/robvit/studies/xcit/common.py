"""What the studies of the XCiT thesis share: variants trained once, judged, and compared in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from robvit.audit import CONFIDENCE, bound_of
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.record import Curve, Finding, Record, Table, Trial
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext
from robvit.studies.judging import TITLES, Attempt, judge, over_seeds_cell, point, rounding_notes
from robvit.studies.published import Cell, PublishedTable, read_published
from robvit.studies.xcit.variants import AUDITED, RecipeEffort, Variant, train_variant
from robvit.verdict import Claim, claim_over_seeds

PUBLISHED = read_published("xcit")
PAPER = PUBLISHED.paper
WIDE_NOTE = (
    "Every row is trained by one wide step (N-FGSM), which is to keep it from collapse at this budget; the "
    "thesis takes one plain step at 4/255 and two at 8/255."
)


@dataclass(frozen=True)
class Run:
    """A variant trained with one seed (`training` is the record of it) and judged.

    Its trials are no attack, one step, and the strongest; `standard` is no attack on its twin that was
    trained without attacks.
    """

    model: Model
    training: Record
    trials: list[Trial]
    standard: Trial | None = None


@dataclass(frozen=True)
class JudgedVariant:
    """A variant, trained with every seed and judged; the first seed's network is the one that is shown."""

    variant: Variant
    runs: list[Run]

    @property
    def label(self) -> str:
        return self.variant.label

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def robust(self) -> list[list[bool]]:
        """Under the strongest attack, a row a seed."""
        return [run.trials[-1].correct for run in self.runs]

    def cells(self) -> list[str]:
        """Every trial's accuracy over all seeds, with its interval."""
        columns = zip(*(run.trials for run in self.runs), strict=True)
        return [over_seeds_cell([trial.correct for trial in column]) for column in columns]

    def standard_cell(self) -> str | None:
        """The same for the twins that were trained without attacks, if there are any."""
        found = [run.standard.correct for run in self.runs if run.standard is not None]
        return over_seeds_cell(found) if found else None


class Contrast(NamedTuple):
    """That one row withstands more than another, by so many points where the thesis has both.

    The thesis's points are of the attack named `by`, as its table names it.
    """

    text: str
    better: str
    worse: str
    paper: Cell = None
    by: str = ""

    def judged_by(self, attack: str) -> Contrast:
        """The same without the thesis's points where another attack judges here."""
        return self if self.by in ("", TITLES.get(attack)) else self._replace(paper=None)


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
        runs = [run for row in self.rows for run in row.runs]
        trials = [replace(t, control=run is not chosen.first) for run in runs for t in run.trials]
        trials += [replace(run.standard, control=True) for run in runs if run.standard]
        strongest = self.attempts[-1].attack
        claims = claims_of(self.rows, [one.judged_by(strongest) for one in contrasts])
        record = self.context.record(chosen.first.model, self.images, trials=trials, claims=claims)
        record.model["name"] = f"{chosen.first.training.model['name']}, {chosen.label}"
        title = "Claims on robust accuracy, pair by pair"
        pairs = [claims_table(claims, title, trained=claims)] if claims else []
        record.tables = [table, *pairs, _commands(self.rows)]
        for row in self.rows:
            found = [finding for run in row.runs for finding in run.training.findings]
            doubts = dict.fromkeys(finding.evidence for finding in found if finding.status == "red")
            record.findings += [Finding(row.label, "amber", doubt) for doubt in doubts]
        record.notes += rounding_notes(self.attempts[-1].threat)
        chance = 100 / len(self.images.classes)
        record.notes.append(f"Chance is {chance:.3g} %: a network that learned nothing withstands as much.")
        if self.effort.judge == AUDITED:
            record.notes.append(_audit_note(self.rows, self.effort.audit))
        if self.effort.is_small:
            record.notes.append(_small_note(chosen, self.images.spec))
        if chosen.first.training.model["recipe"]["inner"]["start"] == "wide":
            record.notes.append(WIDE_NOTE)
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
    variants = effort.chosen(variants)
    images = effort.judged(context, variants[0])  # refused now rather than after days of training
    seeds = tuple(effort.seeds) or (context.seed,)
    rows = []
    for variant in variants:
        runs = []
        for seed in seeds:
            at, mark = replace(context, seed=seed), f", seed {seed}" if len(seeds) > 1 else ""
            model, training = train_variant(at, effort, variant)
            images = images.resized(model.input_size[0], context.resize)
            attempts = effort.attempts(training.model["recipe"]["inner"], strongest)
            trials = judge(context, model, images, attempts, scenario=f"{variant.label}{mark}")
            standard = None
            if with_standard and effort.twins:
                twin = variant.standard()
                other, _ = train_variant(at, effort, twin)
                (standard,) = judge(context, other, images, attempts[:1], scenario=f"{twin.label}{mark}")
            runs.append(Run(model, training, trials, standard))
        rows.append(JudgedVariant(variant, runs))
    return JudgedVariants(context, effort, rows, images, attempts)


def accuracy_table(judged: JudgedVariants, published: PublishedTable, title: str) -> Table:
    """Accuracy of every row, clean and attacked, beside the paper's."""
    columns = ["", *judged.columns, "paper: clean %", "AutoAttack %"]
    cells = [[row.label, *row.cells(), *published.row(row.label)] for row in judged.rows]
    return Table(title, columns, cells)


def ablation_table(judged: JudgedVariants, published: PublishedTable, title: str, note: str = "") -> Table:
    """Ours beside the paper's, with standard training where it was done."""
    has_standard = any(row.first.standard for row in judged.rows)
    columns = ["", *(["standard: clean %"] if has_standard else []), *judged.columns]
    columns += [*(["paper: standard, clean %"] if has_standard else []), "paper: clean %", "APGD-CE %"]
    cells: list[list[Any]] = []
    for row in judged.rows:
        standard, *others = published.row(row.label)
        ours = [*([row.standard_cell()] if has_standard else []), *row.cells()]
        cells.append([row.label, *ours, *([standard] if has_standard else []), *others])
    return Table(title, columns, cells, note)


def contrast(text: str, better: str, worse: str, published: PublishedTable) -> Contrast:
    """A claim on the last column of the paper's table."""
    attack = published.columns[-1]
    return Contrast(text, better, worse, published.gain(better, worse, attack), attack)


def claims_of(rows: Sequence[JudgedVariant], contrasts: Sequence[Contrast]) -> list[Claim]:
    """Each claim whose both rows were run, on the same images, pair by pair."""
    correct = {row.label: row.robust for row in rows}
    return [
        claim_over_seeds(one.text, correct[one.better], correct[one.worse], one.paper)
        for one in contrasts
        if {one.better, one.worse} <= correct.keys()
    ]


def accuracy_curve(title: str, axis: str, places: Mapping[str, float], judged: JudgedVariants) -> Curve:
    """Clean and robust accuracy of the first seed over what is varied, by row, with intervals."""
    clean, *_, strongest = judged.attempts
    lines: dict[str, list[list[float]]] = {clean.title: [], strongest.title: []}
    for row in judged.rows:
        lines[clean.title].append(point(places[row.label], row.first.trials[0].correct))
        lines[strongest.title].append(point(places[row.label], row.robust[0]))
    return Curve(title, axis, "accuracy, %", lines)


def _audit_note(rows: Sequence[JudgedVariant], size: int) -> str:
    """What the audits leave open, of the network of which they leave most."""
    most = max(bound_of(sum(correct), size) for row in rows for correct in row.robust)
    return (
        f"AutoAttack is audited: FAB and Square try {size} survivors of its gradient attacks, and all if one "
        f"falls. With {100 * CONFIDENCE:g} % confidence at most {100 * most:.1f} % of any network's "
        "survivors would still fall to them, at the lengths that were run."
    )


def _small_note(chosen: JudgedVariant, spec: str) -> str:
    training, size = chosen.first.training, chosen.first.model.input_size[0]
    learned, epochs = training.data["learned from"], training.model["recipe"]["epochs"]
    seeds = f"{len(chosen.runs)} seeds" if len(chosen.runs) > 1 else "one seed"
    more = " and --data cifar10" if spec == "sample" else ""
    return (
        f"A small run, not the paper's: {learned} images of {spec} at {size} pixels, {epochs:g} "
        f"epochs, {seeds}, small networks in place of the paper's. Its figures are not to be "
        "compared with the paper's, only directions, where an interval tells them. "
        "More with --set network=small, --set learn=50000, --set epochs=15, --set 'seeds=[0,1,2]', "
        f"--images 1000{more}."
    )


def _commands(rows: Sequence[JudgedVariant]) -> Table:
    note = "Capitals are your folders and files. --set scale=paper trains every row so and judges it."
    commands = [[row.label, row.variant.command()] for row in rows]
    commands += [
        [row.variant.standard().label, row.variant.standard().command()] for row in rows if row.first.standard
    ]
    return Table("The same at the paper's scale", ["row", "command"], commands, note)
