"""Section 4.1.9 of the XCiT thesis, scaling up, and section 4.2's reason for a second step at 8/255."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from robvit.record import Record, Table, Trial
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import Attempt, judge, judge_transfer, over_seeds_cell
from robvit.studies.xcit.common import PAPER, PUBLISHED, Contrast, JudgedVariants, judge_variants
from robvit.studies.xcit.recipe import BASIC, EFFORT, changes
from robvit.studies.xcit.variants import IMAGENET, RecipeEffort, Variant
from robvit.threat import Threat

STAND_INS = {"XCiT-S12": "tiny-xcit-s", "XCiT-M12": "tiny-xcit-m", "XCiT-L12": "tiny-xcit-l"}
LIGHT = changes(BASIC, 0.5, 10)


@study(
    "xcit-scaling",
    paper=PAPER,
    title="Section 4.1.9: larger networks under weaker and stronger attacks, and their standard twins",
    effort=EFFORT,
)
def scaling_up(context: StudyContext, effort: RecipeEffort, *, long: int = 200) -> Record:
    """Does the largest network's lead vanish as attacks grow stronger? Also under its neighbours' images."""
    published = PUBLISHED["section 4.1.9"]
    variants = [
        Variant(name, name.lower(), changes=LIGHT, stand_in=stand_in, on=IMAGENET)
        for name, stand_in in STAND_INS.items()
    ]
    judged = judge_variants(context, effort, variants, with_standard=True)
    threat = judged.attempts[-1].threat
    assert threat is not None
    ladder = [Attempt("pgd", threat, {"steps": steps}) for steps in (10, long)]
    found = {
        row.label: [_trials(judged, place, one) for one in ladder] for place, row in enumerate(judged.rows)
    }
    cells: list[list[Any]] = []
    for row in judged.rows:
        clean, fgsm, apgd = row.cells()
        ten, many = (over_seeds_cell([trial.correct for trial in trials]) for trials in found[row.label])
        cells.append(
            [row.label, row.standard_cell(), clean, fgsm, ten, apgd, many, *published.row(row.label)]
        )
    strongest = judged.attempts[-1].title
    columns = ["", "standard: clean %", "clean %", "FGSM %", "PGD-10 %", f"{strongest} %", f"PGD-{long} %"]
    columns += [f"paper: {name} %" for name in published.columns]
    small, medium, large = STAND_INS
    contrasts = [
        Contrast(f"XCiT-M12 over XCiT-S12, {strongest}", medium, small),
        Contrast(f"XCiT-L12 over XCiT-M12, {strongest}: it loses", large, medium, -1.44, "APGD-CE"),
    ]
    record = judged.record(Table("Section 4.1.9: scaling up", columns, cells), contrasts)
    more = [trial for trials in found.values() for some in trials for trial in some]
    record.trials += [replace(trial, control=True) for trial in more]
    record.tables.insert(1, _transfer(context, judged, ladder[0], record))
    return record


def _trials(judged: JudgedVariants, place: int, attempt: Attempt) -> list[Trial]:
    """One more attack on every seed's network of a row."""
    found = []
    for number, run in enumerate(judged.rows[place].runs):
        name = f"{judged.rows[place].label}, run {number + 1}"
        found += judge(judged.context, run.model, judged.images, [attempt], scenario=name)
    return found


def _transfer(context: StudyContext, judged: JudgedVariants, attempt: Attempt, record: Record) -> Table:
    """Every network under images that were made on each of the others."""
    models = {row.label: row.first.model for row in judged.rows}
    rows: list[list[Any]] = []
    for name, surrogate in models.items():
        label = f"{attempt.title} on {name}"
        trials = judge_transfer(context, surrogate, models, judged.images, attempt, label=label)
        attacked = [trial for trial in trials if trial.kind == "attack"]
        rows.append([name, *(over_seeds_cell([trial.correct]) for trial in attacked)])
        record.trials += [
            replace(trial, scenario=f"{trial.scenario}, images of {name}", control=True)
            for trial in attacked
            if trial.scenario != name
        ]
    columns = ["images made on", *(f"{name} %" for name in models)]
    return Table(f"Transfer: accuracy under {attempt.title} made elsewhere", columns, rows)


@study(
    "xcit-steps",
    paper=PAPER,
    title="Section 4.2: one step or two at 8/255, and what the guard against collapse sees",
    effort=EFFORT,
)
def one_or_two_steps(context: StudyContext, effort: RecipeEffort) -> Record:
    """The light recipe at 8/255 with one step and with two; doubts that a training told are findings here.

    The last weights are judged: those that validations choose would hide a collapse.
    """
    eps = {"inner.eps": effort.eps or 8 / 255}
    # The step is the recipe's own, 1.5 eps over all steps, and the guard looks after every epoch.
    guarded = {**eps, "inner.step": None, "inner.start": "uniform", "inner.project": True}
    guarded |= {"validate_every": 1, "validation": 200, "judge_steps": 10}
    variants = [
        Variant(
            name,
            "xcit-s12",
            "xcit-light-8",
            changes={**LIGHT, **eps, "inner.steps": steps},
            on=IMAGENET,
            small=guarded,
            last=True,
        )
        for name, steps in (("one step", 1), ("two steps", 2))
    ]
    judged = judge_variants(context, effort, variants)
    cells: list[list[Any]] = []
    for row in judged.rows:
        doubts = [f.evidence for run in row.runs for f in run.training.findings if f.status == "red"]
        cells.append([row.label, *row.cells(), len(doubts), doubts[0] if doubts else "none"])
    columns = ["", *judged.columns, "doubts told in training", "the first of them"]
    within = Threat("linf", effort.eps or 8 / 255)
    note = (
        f"Within {within}, the last weights of each training. One-step accuracy far above the strongest "
        "attack's is collapse."
    )
    contrasts = [Contrast("two steps over one", "two steps", "one step")]
    return judged.record(Table("One step or two", columns, cells, note), contrasts, quoted="two steps")
