"""Tables 4 and 5 and figure 5 (a, b) of the attention-scaling paper: AAS-AT beside training without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from robvit.attention import kept_scales
from robvit.record import Curve, Record, Table, Trial
from robvit.studies.aas.common import PAPER, PUBLISHED, published_for, searches_table
from robvit.studies.aas.judged_training import JudgedTraining, Seeds, train_and_judge
from robvit.studies.aas.training_effort import EFFORT, MODEL, AasTrainingEffort, paper_row, scaled_recipe
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, mean, study
from robvit.studies.published import PublishedTable
from robvit.verdict import Claim, Verdict, claim_of, claim_of_parts

OVER_CONTROL = ": AAS over the control"  # how claims on attacks, rather than on trainings, end


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
    columns = ["training", *effort.columns(), "paper: clean %", "PGD-100 %", "with AAS %", "AutoAttack %"]
    rows: list[list[Any]] = [
        [name, *_means(seeds), *published.row(_row(seeds))] for name, seeds in judged.items()
    ]
    table = Table("Table 5: AAS-AT", columns, rows, effort.note(_text(gaps)))
    return _record(context, effort, table, judged, claims)


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
    return _record(context, effort, table, judged, claims)


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
    effort.check_gaps(between)
    recipe = scaled_recipe(method)
    judged = {f"{n}": train_and_judge(context, effort, recipe, n, gap_title(recipe, n)) for n in between}
    lines = {
        "clean": [[float(n), _means(seeds)[0]] for n, seeds in judged.items()],
        effort.pgd.title: [[float(n), _means(seeds)[1]] for n, seeds in judged.items()],
    }
    rows: list[list[Any]] = [[name, *_means(seeds)] for name, seeds in judged.items()]
    columns = ["epochs between moves", *effort.columns()]
    table = Table("Fig. 5 (a, b)", columns, rows, effort.note(_text(between)))
    first, *others = judged
    claims = [
        ahead(f"every {n} over every {first}, {effort.pgd.title} and AAS", judged[n], judged[first], _left)
        for n in others
    ]
    record = _record(context, effort, table, judged, claims)
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
    effort.check_gaps(gaps)
    judged: dict[str, Seeds] = {}
    claims = []
    for method in methods:
        judged[method] = train_and_judge(context, effort, method, 0, method)
        scaled = scaled_recipe(method)
        for gap in gaps:
            name = gap_title(scaled, gap) if len(gaps) > 1 else scaled
            judged[name] = train_and_judge(context, effort, scaled, gap, name)
            pair, text = (judged[name], judged[method]), f"{name} over {method}"
            gain = published.gain(_row(judged[name]), _row(judged[method]), "AutoAttack")
            claims.append(ahead(f"{text}, {effort.autoattack.title}", *pair, _under_autoattack, gain))
            claims.append(ahead(f"{text}, {effort.pgd.title} and AAS", *pair, _left))
    return judged, [*claims, *(_broken(name, seeds, published) for name, seeds in judged.items())]


def gap_title(recipe: str, gap: int) -> str:
    """A training's name where there are several gaps."""
    return f"{recipe}, every {gap}"


def ahead(
    text: str,
    ours: Seeds,
    theirs: Seeds,
    outcomes: Callable[[JudgedTraining], list[bool]],
    paper: float | None = None,
) -> Claim:
    """That one training is ahead of another, seed by seed.

    A seed is void if both are the same network: then nothing of AAS-AT is compared. Scales that are 1
    in the end do not make it so: leaving a seed out by how it ended would favour a side.
    """
    parts = []
    for seed, one in ours.items():
        claim = claim_of(text, outcomes(one), outcomes(theirs[seed]), paper)
        alike = one.same_network(theirs[seed])
        parts.append(replace(claim, verdict=Verdict.VOID) if alike else claim)
    return claim_of_parts(parts)


def _left(one: JudgedTraining) -> list[bool]:
    """What PGD and PGD with AAS leave."""
    return one.comparison.both


def _under_autoattack(one: JudgedTraining) -> list[bool]:
    return one.autoattack.correct


def _broken(name: str, seeds: Seeds, published: PublishedTable) -> Claim:
    """That AAS breaks more of a training's images than PGD does at equal cost; the paper has the gain."""
    columns = ("PGD-100 with AAS", "PGD-100")  # Table 4 has neither
    gain = published.step(_row(seeds), *columns) if {*columns} <= {*published.columns} else None
    text = f"{name}{OVER_CONTROL}"
    return claim_of_parts([one.comparison.claim(text, gain) for one in seeds.values()])


def _record(
    context: StudyContext,
    effort: AasTrainingEffort,
    table: Table,
    judged: Mapping[str, Seeds],
    claims: list[Claim],
) -> Record:
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
    trained = [claim for claim in claims if not claim.text.endswith(OVER_CONTROL)]
    told = [claims_table(claims, trained=trained)] if claims else []
    record.tables = [table, *told, *_by_seed(judged, effort)]
    compared = {}
    for name, seeds in judged.items():
        for seed, one in seeds.items():
            compared[f"{name}, seed {seed}"] = one.comparison
            if kept_scales(one.model) is not None:
                text = ", ".join(f"{scale:.2g}" for scale in one.scales)
                record.notes.append(f"{name}, seed {seed}, ships with scales {text}.")
            moves = [replace(table, title=f"{table.title}: {name}, seed {seed}") for table in one.moves]
            record.tables += moves
    record.tables += searches_table(compared)
    return record


def _by_seed(judged: Mapping[str, Seeds], effort: AasTrainingEffort) -> list[Table]:
    """Every seed's own accuracies, where there are several."""
    rows: list[list[Any]] = [
        [name, str(seed), *one.accuracies()] for name, seeds in judged.items() for seed, one in seeds.items()
    ]
    if len(rows) == len(judged):
        return []
    return [Table("Seed by seed", ["training", "seed", *effort.columns()], rows)]
