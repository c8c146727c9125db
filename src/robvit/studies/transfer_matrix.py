"""Who fools whom: images made on each of several models, judged by each; a study beyond the papers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from robvit.attacks import ATTACKS
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.drawing.images import save_png
from robvit.drawing.matrix import draw_matrix
from robvit.drawing.sheet import sheet
from robvit.errors import InputError
from robvit.evaluation.classifiers import check_fit, model_facts, open_classifier
from robvit.loading import load
from robvit.record import Record, Table, Trial
from robvit.settings import parse_settings
from robvit.statistics import interval
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import Attempt, judge_transfer
from robvit.threat import Threat

PAPER = "transfer attacks (1710.06081, 2109.04176, 2303.15754)"
NOTE = (
    "Success: of the images that the judged model gets right, the share that it gets wrong once they were "
    "attacked on the other model, to the attack's full objective. Intervals are of 95 %. Where both are the "
    "same model the attacker knows everything; elsewhere a failure to transfer is no claim of robustness."
)


class Cell(NamedTuple):
    """Images made on one model and judged by another: how many the judge had right, and lost."""

    made_on: str
    judged: str
    correct: int
    lost: int

    @property
    def share(self) -> float:
        return self.lost / max(self.correct, 1)

    def row(self) -> list[Any]:
        bounds = (100 * bound for bound in interval(self.lost, self.correct))
        return [self.made_on, self.judged, self.correct, 100 * self.share, *bounds]


@study("transfer-matrix", paper=PAPER, title="who fools whom: made on each model, judged by each")
def transfer_matrix(
    context: StudyContext,
    *,
    models: str = "robvit-mini,robvit-mini-robust",
    attack: str = "transfer",
    switches: str = "",
    steps: int = 10,
    norm: str = "linf",
    eps: float = 8 / 255,
) -> Record:
    """`models` are names, `switches` settings of the attack such as diversity=0.7,pna=true, after commas."""
    opened = _opened(context, models)
    images = context.dataset("sample", None, next(iter(opened.values())).input_size[0], context.count(100))
    for model in opened.values():
        check_fit(open_classifier(model), images)
    own = parse_settings([s for s in switches.split(",") if s], ATTACKS.info(attack).defaults, attack)
    attempt = Attempt(attack, Threat(norm, eps), {"steps": steps, "seed": context.seed, **own})
    trials, cells = list[Trial](), list[Cell]()
    for name, model in opened.items():
        made = judge_transfer(context, model, opened, images, attempt, label=f"made on {name}")
        clean = [t for t in made if t.kind == "clean"]
        attacked = [
            replace(t, surrogate="" if t.scenario == name else name) for t in made if t.kind == "attack"
        ]
        trials += attacked if trials else [one for pair in zip(clean, attacked, strict=True) for one in pair]
        cells += [_cell(name, before, after) for before, after in zip(clean, attacked, strict=True)]
    return _record(context, opened, images, trials, cells, attempt)


def _opened(context: StudyContext, models: str) -> dict[str, Model]:
    """The models by name, all for images of one size."""
    names = list(dict.fromkeys(name.strip() for name in models.split(",") if name.strip()))
    found = {name: load(name, img_size=context.img_size) for name in names}
    if context.model is not None:
        one = context.load("")
        found = {one.name: one, **found}
    sizes = {name: model.input_size[0] for name, model in found.items()}
    if len(found) < 2 or len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} ({size} pixels)" for name, size in sizes.items())
        raise InputError(
            f"a matrix needs two models or more for images of one size, got {listed or 'none'}; "
            "give --set models=A,B and --img-size"
        )
    return found


def _cell(made_on: str, clean: Trial, attacked: Trial) -> Cell:
    outcomes = [after for before, after in zip(clean.correct, attacked.correct, strict=True) if before]
    return Cell(made_on, attacked.scenario, len(outcomes), outcomes.count(False))


def _record(
    context: StudyContext,
    opened: dict[str, Model],
    images: ImageDataset,
    trials: list[Trial],
    cells: list[Cell],
    attempt: Attempt,
) -> Record:
    names = list(opened)
    by_row = [cells[i : i + len(names)] for i in range(0, len(cells), len(names))]
    what = f"{attempt.title}, {attempt.threat}"
    record = context.record(next(iter(opened.values())), images, trials=trials)
    record.model = {"name": ", ".join(names), "models": [model_facts(model) for model in opened.values()]}
    record.tables = [
        Table(
            f"Success in per cent, {what}: made on (rows), judged by (columns)",
            ["made on", *names],
            [[row[0].made_on, *(100 * cell.share for cell in row)] for row in by_row],
            NOTE,
        ),
        Table(
            "The same with the number of images and intervals",
            ["made on", "judged by", "images", "success", "low", "high"],
            [cell.row() for cell in cells],
        ),
    ]
    record.protocol = {"attack": attempt.attack, **attempt.settings}
    drawn = draw_matrix(
        names,
        names,
        [[cell.share for cell in row] for row in by_row],
        down="made on",
        across="judged by",
        notes=[[f"{cell.lost} of {cell.correct}" for cell in row] for row in by_row],
    )
    save_png(sheet(f"Who fools whom: {what}", NOTE, [drawn]), context.out / "matrix.png")
    return record
