"""Tables 4 and 5 and figure 5 (a, b) of the attention-scaling paper: AAS-AT beside training without it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from robvit.attention import kept_scales
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.trials import spread
from robvit.loading import load
from robvit.measuring.comparison import Comparison, compare_scaling
from robvit.progress import progress
from robvit.record import Curve, Record, Table, Trial
from robvit.studies.aas.common import PAPER, PUBLISHED, published_for
from robvit.studies.aas.training_effort import EFFORT, THREAT, AasTrainingEffort, paper_row, scaled_recipe
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, mean, study
from robvit.studies.judging import judge, per_cent, worst_of
from robvit.studies.published import PublishedTable
from robvit.training.fit import WEIGHTS
from robvit.training.job import job_of
from robvit.training.recipe import load_recipe
from robvit.training.train import run_job
from robvit.verdict import Claim, claim_over_seeds

MODEL, IMAGES, FIT = "robvit-mini", 64, 256


@dataclass(frozen=True)
class JudgedTraining:
    """A model trained by a recipe, judged as it ships, and the seconds its training took."""

    recipe: str
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


Seeds = dict[int, JudgedTraining]


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
    gaps: Sequence[int] = (2,),
) -> Record:
    """Each method's recipe with and without AAS-AT, for every gap between moves and every seed.

    Numbers of 0 leave the recipe's own, as for the paper.
    """
    published = published_for("table5", context)
    judged, claims = _pairs(context, effort, methods, gaps, published)
    columns = ["training", *effort.columns(), "seconds"]
    columns += ["paper: clean %", "PGD-100 %", "with AAS %", "AutoAttack %"]
    rows: list[list[Any]] = [
        [name, *_means(seeds), mean([one.seconds for one in seeds.values()]), *published.row(_row(seeds))]
        for name, seeds in judged.items()
    ]
    table = Table("Table 5: AAS-AT", columns, rows, effort.note(_text(gaps)))
    return _record(context, table, judged, claims)


@study("aas-table4", paper=PAPER, title="Table 4: AAS-AT on ImageNet-100", effort=EFFORT)
def larger(
    context: StudyContext,
    effort: AasTrainingEffort,
    *,
    methods: Sequence[str] = ("pgd-at", "trades"),
    gaps: Sequence[int] = (2,),
) -> Record:
    """As aas-table5, beside the paper's ImageNet-100 column; --data imagenet-100:FOLDER draws classes."""
    published = PUBLISHED["table4"]
    judged, claims = _pairs(context, effort, methods, gaps, published)
    clean, *_, autoattack = effort.columns()
    columns = ["training", clean, autoattack, "paper: clean %", "AutoAttack %"]
    rows: list[list[Any]] = []
    for name, seeds in judged.items():
        ours = _means(seeds)
        rows.append([name, ours[0], ours[-1], *published.row(_row(seeds))])
    table = Table("Table 4: AAS-AT", columns, rows, effort.note(_text(gaps)))
    return _record(context, table, judged, claims)


@study(
    "aas-fig5ab", paper=PAPER, title="Fig. 5 (a, b): epochs between two moves of the scales", effort=EFFORT
)
def gaps_between(
    context: StudyContext,
    effort: AasTrainingEffort,
    *,
    between: Sequence[int] = (2, 3, 5),
    method: str = "pgd-at",
) -> Record:
    """AAS-AT on top of one method for several gaps; the paper: stable from 5 to 40 of 110 epochs."""
    judged = {f"{n}": _trained(context, effort, scaled_recipe(method), n) for n in between}
    lines = {
        "clean": [[float(n), _means(seeds)[0]] for n, seeds in judged.items()],
        effort.pgd.title: [[float(n), _means(seeds)[1]] for n, seeds in judged.items()],
    }
    rows: list[list[Any]] = [[name, *_means(seeds)] for name, seeds in judged.items()]
    columns = ["epochs between moves", *effort.columns()]
    table = Table("Fig. 5 (a, b)", columns, rows, effort.note(_text(between)))
    record = _record(context, table, judged, [])
    record.curves = [Curve("Fig. 5 (a, b): gap", "epochs between moves", "accuracy, %", lines)]
    return record


def _text(gaps: Sequence[int]) -> str:
    return " or ".join(f"{gap or 'few'}" for gap in gaps)


def _row(seeds: Seeds) -> str:
    """The paper's row for a training, whatever its gap."""
    return paper_row(next(iter(seeds.values())).recipe)


def _means(seeds: Seeds) -> list[float]:
    """The accuracies, means over seeds."""
    return [mean(list(column)) for column in zip(*(one.accuracies() for one in seeds.values()), strict=True)]


def _pairs(
    context: StudyContext,
    effort: AasTrainingEffort,
    methods: Sequence[str],
    gaps: Sequence[int],
    published: PublishedTable,
) -> tuple[dict[str, Seeds], list[Claim]]:
    """Every method without AAS-AT and with it, and the claims that it helps."""
    judged: dict[str, Seeds] = {}
    claims = []
    for method in methods:
        judged[method] = _trained(context, effort, method, 0)
        scaled = scaled_recipe(method)
        for gap in gaps:
            name = f"{scaled}, every {gap}" if len(gaps) > 1 else scaled
            judged[name] = _trained(context, effort, scaled, gap)
            gain = published.gain(_row(judged[name]), _row(judged[method]), "AutoAttack")
            ours, theirs = ([one.autoattack.correct for one in judged[n].values()] for n in (name, method))
            claims.append(claim_over_seeds(f"{name} over {method}, AutoAttack", ours, theirs, gain))
            ours, theirs = ([one.comparison.both for one in judged[n].values()] for n in (name, method))
            claims.append(claim_over_seeds(f"{name} over {method}, PGD and AAS", ours, theirs))
    return judged, claims


def _trained(context: StudyContext, effort: AasTrainingEffort, name: str, every: int) -> Seeds:
    """Train by a recipe with every seed, from the given model's weights, and judge on test images."""
    found: Seeds = {}
    for seed in effort.seeds:
        recipe = load_recipe(name, **effort.changes(name, every, seed))
        network, data = context.model_name(MODEL), context.data_name("sample")
        job = job_of(recipe, network, data, limit=effort.learn or None)
        place = effort.folder(context) / f"{name}-{recipe.digest()[:12]}"
        start = time.monotonic()
        with progress(f"training {name}, seed {seed}", total=1) as advance:
            run_job(job, place, progress=advance)
        seconds = time.monotonic() - start
        model = load(str(place / WEIGHTS))
        size = model.input_size[0]
        images = context.dataset("sample", "test", size, context.count(IMAGES))
        fit = context.dataset("sample", "train", size, FIT)
        comparison, autoattack = _judge(context, model, images, fit, effort)
        found[seed] = JudgedTraining(name, model, images, comparison, autoattack, seconds)
    return found


def _judge(
    context: StudyContext, model: Model, images: ImageDataset, fit: ImageDataset, effort: AasTrainingEffort
) -> tuple[Comparison, Trial]:
    """PGD, and PGD with AAS, against their control; then AutoAttack on what these leave."""
    with progress(f"{effort.pgd.title} with AAS", total=len(images)) as advance:
        comparison = compare_scaling(
            model,
            images,
            THREAT,
            settings=dict(effort.pgd.settings),
            train=fit,
            seed=context.seed,
            memory=context.out / "batches",
            progress=advance,
        )
    before = worst_of(comparison.plain, comparison.scaled)
    alive = [i for i, correct in enumerate(before.correct) if correct]
    attempt = replace(effort.autoattack, settings={**effort.autoattack.settings, "seed": context.seed})
    if not alive:
        return comparison, replace(before, attack="autoattack", settings=dict(attempt.settings))
    (left,) = judge(context, model, images.take(alive), [attempt], scenario="")
    return comparison, spread(left, alive, before)


def _record(context: StudyContext, table: Table, judged: Mapping[str, Seeds], claims: list[Claim]) -> Record:
    """The record of all trainings; the last one with its first seed is quoted, the others are controls."""
    *_, last = judged
    trials: list[Trial] = []
    for name, seeds in judged.items():
        for seed, one in seeds.items():
            scenario = f"{name}, seed {seed}" if len(seeds) > 1 else name
            quoted = name == last and one is next(iter(seeds.values()))
            trials += one.trials(scenario, control=not quoted)
    first = next(iter(judged[last].values()))
    record = context.record(first.model, first.images, trials=trials, claims=claims)
    record.model["name"] = f"{context.model_name(MODEL)}, {last}"
    record.tables = [table, *([claims_table(claims)] if claims else []), *_by_seed(judged)]
    for name, seeds in judged.items():
        for seed, one in seeds.items():
            scales = kept_scales(one.model)
            if scales is not None:
                text = ", ".join(f"{s:.2g}" for s in scales.tolist())
                record.notes.append(f"{name}, seed {seed}, ships with scales {text}.")
    return record


def _by_seed(judged: Mapping[str, Seeds]) -> list[Table]:
    """Every seed's own accuracies, where there are several."""
    rows: list[list[Any]] = [
        [name, str(seed), *one.accuracies()] for name, seeds in judged.items() for seed, one in seeds.items()
    ]
    if len(rows) == len(judged):
        return []
    columns = ["training", "seed", "clean %", "PGD %", "and AAS %", "AutoAttack %"]
    return [Table("Seed by seed", columns, rows)]
