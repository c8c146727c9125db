"""The studies of attention scaling run, and put honest figures beside the paper's."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import robvit
import robvit.studies.aas.controls as controls
from robvit.attacks.scales import Scales
from robvit.attention import keep_scales
from robvit.data import open_data
from robvit.errors import InputError
from robvit.measuring.comparison import Comparison
from robvit.record import Trial
from robvit.studies import STUDIES, reproduce
from robvit.studies.aas.common import PUBLISHED, ScalingEffort, published_for, tally
from robvit.studies.aas.figures import short_name
from robvit.studies.aas.judged_training import JudgedTraining
from robvit.studies.aas.sharpened import Sharpened
from robvit.studies.aas.tables import LITERAL, movement
from robvit.studies.aas.training import ahead
from robvit.studies.aas.training_effort import AasTrainingEffort, is_scaled, paper_row, scaled_recipe
from robvit.studies.common import StudyContext
from robvit.threat import Threat
from robvit.training.recipe import load_recipe, names
from robvit.verdict import Claim, Verdict, claim_of

QUICK: dict[str, dict[str, Any]] = {
    "aas-table1": {"steps": 1, "tried": (1.0, 0.1)},
    "aas-table2": {"steps": 1, "names": ("lpips", "unit")},
    "aas-search": {"steps": 1, "objectives": ("lpips",), "spaces": ("linear",), "fits": ("train",)},
    "aas-fig2": {"model": "robvit-mini-robust"},
    "aas-fig3": {"steps": 1, "counts": (0, 2), "models": ("robvit-mini",)},
    "aas-fig4": {"counts": (1, 2)},
    "aas-fig5": {"levels": (0, 100), "steps": 2},
}
LEARN = {"learn": 2}
SLOW = ("aas-table2", "aas-search", "aas-fig3", "aas-fig4")


@pytest.fixture(autouse=True)
def few_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "FACTORS", (1.0, 0.1))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in QUICK])
def test_a_study_runs_and_tells_its_judgement(name: str, tmp_path: Path) -> None:
    effort = {} if name == "aas-fig2" else LEARN
    record = reproduce(name, images=4, out=tmp_path, **effort, **QUICK[name])
    record.save(tmp_path / "record.json")
    assert type(record).load(tmp_path / "record.json").tables == record.tables
    if name == "aas-fig2":
        assert len(record.curves) == 4
        assert "one-hot" in record.notes[1]
        return
    assert any("paper's effect is seen in 0 of" in note and "Holm" in note for note in record.notes)
    scenarios = [
        name for name in record.scenarios() if (name != "1" or record.tables[0].columns[0] != "factor")
    ]
    others = [name for name in scenarios if name == "robvit-mini"]  # another model, told apart
    scenarios = [name for name in scenarios if name not in others]
    texts = [*scenarios, *(f"{name}, over random scales" for name in scenarios)]
    models = [f"{name}: AAS" for name in others]
    assert [claim.text for claim in record.claims] == [*texts, *models]  # a factor of one tests nothing
    assert {claim.verdict for claim in record.claims} == {Verdict.BOUNDED}  # four images tell nothing
    claims = next(t for t in record.tables if t.title.startswith("Does scaling break more"))
    assert [row[0] for row in claims.rows] == texts
    assert "plain and random scales %" in record.tables[0].columns
    assert "plain and one factor %" in record.tables[0].columns
    for table in record.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    if name != "aas-table1":  # its factors are given, not found
        assert any(t.title == "How the scales moved" for t in record.tables)
    for trial in record.trials:
        assert len(trial.correct) == 4
    if name == "aas-search":
        (finding,) = record.findings
        moved = next(t for t in record.tables if t.title == "How the scales moved")
        assert finding.check == "the literal algorithm moves"
        assert moved.note.endswith(finding.evidence)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the gradient is zero")
def test_attention_is_sharpened_until_it_underflows_and_every_model_is_its_own_judge(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"sharpness": (1.0, 3000.0), "precisions": ("fp32", "fp16"), "steps": 1}
    record = reproduce("aas-sharpened", images=6, out=tmp_path, **LEARN, **settings)
    tables = [table for table in record.tables if table.title.startswith("Sharpened attention")]
    assert [table.title.split(", ")[1] for table in tables] == ["fp32", "fp16"]
    for table in tables:
        calm, sharp = (row[1] for row in table.rows)
        assert calm < 1 < sharp  # per cent of one-hot rows
    assert [curve.title for curve in record.curves] == [table.title for table in tables]
    assert record.scenarios() == ["fp32, x1", "fp32, x3000", "fp16, x1", "fp16, x3000"]
    assert any(note.startswith("fp32: underflow begins from x3000") for note in record.notes)
    assert [claim.text for claim in record.claims][2] == "fp32, x1: AAS, over random scales"
    variants = {trial.variant for trial in record.trials if trial.control}
    draws = {f"random scales, draw {n}, after plain" for n in (1, 2, 3)}
    after_plain = {"sharpening undone, after plain", "one factor, after plain"}
    assert draws | after_plain | {"same cost"} <= variants
    moved = [table.title for table in record.tables if table.title.startswith("How the scales moved")]
    assert moved == ["How the scales moved, fp32", "How the scales moved, fp16"]
    whole = {t.scenario: t.correct for t in record.trials if t.attack == "clean"}
    assert whole["fp32, x1"] == whole["fp16, x1"]
    assert whole["fp32, x1"] != whole["fp32, x3000"]


def test_plain_attacks_of_equal_cost_may_break_more_than_other_scales() -> None:
    def trial(right: int) -> Trial:
        return Trial("pgd", None, {}, [n < right for n in range(20)], [0] * 20, [0.0] * 20)

    def lost(control: int, other: int) -> Claim:
        found = Comparison(trial(20), trial(15), trial(15), trial(control), [], None)
        return Sharpened(3, 0, replace(found, others={"random scales": [trial(15), trial(other)]})).lost()

    assert lost(15, 15).verdict is Verdict.BOUNDED
    assert lost(15, 5).verdict is Verdict.SEEN
    assert lost(5, 15).verdict is Verdict.OPPOSITE


@pytest.mark.slow
def test_logits_of_a_cnn_are_scaled_beside_the_attention_of_a_vit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = partial(load_recipe, batch=16, validation=8, judge_steps=1)
    monkeypatch.setattr("robvit.studies.aas.logits.load_recipe", quick)
    small: dict[str, Any] = {"steps": 1, "cnn_learn": 24, "cnn_epochs": 1, **LEARN}
    record = reproduce("aas-fig1b", images=6, out=tmp_path, attacks=["FGSM", "CW"], **small)
    assert [row[0] for row in record.tables[0].rows] == ["FGSM", "CW-1"]
    assert all(len(row) == len(record.tables[0].columns) for row in record.tables[0].rows)
    texts = ["CNN, FGSM: scaled logits", "ViT, FGSM: AAS", "ViT, FGSM: AAS, over random scales"]
    assert [claim.text for claim in record.claims][:3] == texts
    assert record.tables[-1].title == "How the scales moved"


@pytest.mark.slow
def test_a_training_with_scales_is_judged_beside_one_without_over_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robvit.studies.aas.judged_training.FIT", 4)  # images that scales are fitted on
    monkeypatch.setattr("robvit.studies.aas.training_effort.PAPER_STEPS", 2)  # what steps=0 stands for
    monkeypatch.setattr("robvit.studies.aas.training_effort.load_recipe", partial(load_recipe, judge_steps=1))
    small: dict[str, Any] = {"learn": 40, "epochs": 3, "inner_steps": 1, "steps": 0, "queries": 2}
    small |= {"aa_steps": 2, "targets": 1, "seeds": (0, 1), "training": str(tmp_path / "shared")}
    record = reproduce("aas-table5", images=4, out=tmp_path / "table5", methods=["pgd-at"], **small)
    assert [row[0] for row in record.tables[0].rows] == ["pgd-at", "aas-pgd-at"]
    for row in record.tables[0].rows:
        clean, pgd, aas, autoattack = row[1:5]
        assert clean >= pgd >= aas >= autoattack
    assert "ships with scales" in record.notes[-1]
    first, second, *broken = record.claims
    assert [claim.text for claim in broken] == [
        f"{n}: AAS over the control" for n in ("pgd-at", "aas-pgd-at")
    ]
    assert [claim.paper for claim in broken] == [4.88, 0.34]
    short = "AutoAttack (2 steps, 1 targets, 2 queries)"
    assert first.text == f"aas-pgd-at over pgd-at, {short}"
    assert second.text == "aas-pgd-at over pgd-at, PGD-2 and AAS"
    assert (first.paper, first.seeds) == (3.47, 2)
    names = [f"{name}, seed {seed}" for name in ("pgd-at", "aas-pgd-at") for seed in (0, 1)]
    assert record.scenarios() == names
    assert record.model["name"] == "robvit-mini, aas-pgd-at"  # not where its weights lay
    columns = ["clean %", "PGD-2 %", "and AAS %", f"{short} %"]
    assert record.tables[0].columns[1:5] == columns
    by_seed = next(table for table in record.tables if table.title == "Seed by seed")
    assert by_seed.columns == ["training", "seed", *columns]
    assert [row[:2] for row in by_seed.rows][-1] == ["aas-pgd-at", "1"]
    assert [row[0] for row in record.tables[-1].rows] == names  # how the scales moved
    variants = {trial.variant for trial in record.trials if trial.control}
    assert variants == {"", "same cost"}  # no claim is on scales that nobody searched for
    kept = {path.name for path in (tmp_path / "table5").glob("*.safetensors")}
    assert kept == {f"{name.replace(', ', '-').replace(' ', '-')}.safetensors" for name in names}

    def never(*_: object, **__: object) -> None:
        raise AssertionError("what was trained and judged before is taken up again")

    monkeypatch.setattr("robvit.training.fit.Fit._advance", never)
    monkeypatch.setattr("robvit.measuring.batches.run", never)
    again = reproduce("aas-fig5ab", images=4, out=tmp_path / "fig5ab", between=[2], **small)
    assert again.tables[0].rows[0][1:] == record.tables[0].rows[1][1:5]
    assert again.curves[0].lines["clean"] == [[2.0, again.tables[0].rows[0][1]]]


@pytest.mark.parametrize(("study", "gaps"), [("aas-table5", "gaps"), ("aas-fig5ab", "between")])
@pytest.mark.parametrize("gap", [1, 6, 9])
def test_a_gap_that_moves_no_scale_is_refused_before_anything_is_trained(
    study: str, gaps: str, gap: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robvit.studies.aas.judged_training.run_job", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(InputError, match=f"a gap of {gap} and 6 in all they never would"):
        reproduce(study, out=tmp_path, epochs=6, **{gaps: [2, gap]})


def test_a_training_whose_scales_never_left_one_is_compared_with_itself() -> None:
    def judged(scales: list[float], right: int) -> JudgedTraining:
        model, images = robvit.load("robvit-mini"), open_data("sample", limit=2)
        keep_scales(model, scales)
        trial = Trial("pgd", None, {}, [n < right for n in range(9)], [0] * 9, [0.0] * 9)
        return JudgedTraining("", model, images, Comparison(trial, trial, trial, trial, [], None), trial, [])

    def claim(*scales: list[float]) -> Claim:
        ours, theirs = {}, {}
        for seed, values in enumerate(scales):
            ours[seed], theirs[seed] = judged(values, 9), judged([1.0] * 4, 0)
        return ahead("AAS-AT helps", ours, theirs, lambda one: one.autoattack.correct)

    moved, still = [1.0, 0.2, 1.0, 1.0], [1.0] * 4
    assert claim(moved).verdict is Verdict.SEEN
    assert claim(still).verdict is Verdict.VOID
    assert claim(still, moved) == claim(moved)  # the seed that tells nothing is left out
    ours, theirs = judged(still, 9), judged(still, 0)
    with torch.no_grad():
        next(ours.model.parameters()).add_(1)  # the scales are 1, yet it is another training
    assert ahead("", {0: ours}, {0: theirs}, lambda one: one.autoattack.correct).verdict is Verdict.SEEN


def test_recipes_belong_to_rows_of_the_paper() -> None:
    assert scaled_recipe("trades") == "aas-trades"
    assert scaled_recipe("aas-paper-trades-awp") == "aas-paper-trades-awp-aas"
    assert [paper_row(n) for n in ("mart", "aas-paper-trades-awp-aas", "aas-paper-xcit")] == [
        "mart",
        "aas-awp",
        "xcit-finetune-cifar10",
    ]
    assert not is_scaled("aas-paper-mart")
    rows = PUBLISHED["table5"].rows
    for name in names():
        if name.startswith("aas-paper"):
            clean, *_, autoattack = rows[paper_row(name)]
            assert load_recipe(name).expects.startswith(f"{clean:.2f} % clean, {autoattack:.2f} %"), name
    for name in ("vit-cifar", "aas-vit-cifar"):  # 40 epochs, where the paper's rows took 110
        assert load_recipe(name).expects.startswith("nothing is published"), name


def test_recipes_with_synthetic_images_take_those_that_are_named_or_do_without() -> None:
    context, name = StudyContext(), "aas-paper-pgd-at"
    without = AasTrainingEffort().job(context, name, 2, 0)
    assert (without.recipe.extra_share, without.extra) == (0, None)
    with_some = AasTrainingEffort(extra="folder:synthetic")
    made = with_some.job(context, name, 2, 0)
    assert (made.recipe.extra_share, made.extra) == (0.5, "folder:synthetic")
    assert with_some.job(context, "pgd-at", 2, 0).extra is None  # which has no share for them


def test_figures_of_other_data_do_not_stand_beside_ours() -> None:
    assert published_for("table1", StudyContext()).rows
    assert published_for("table1", StudyContext(data="cifar10")).rows
    assert published_for("table3", StudyContext(data="cifar100")).rows != PUBLISHED["table3"].rows
    assert published_for("table1", StudyContext(data="folder:photographs")).row("1")[0] is None


def test_a_recipe_that_keeps_its_length_keeps_its_start_warm_up_and_validation() -> None:
    own = load_recipe("pgd-at")
    changed = load_recipe(
        "pgd-at", **AasTrainingEffort(learn=0, epochs=0, inner_steps=0).changes("pgd-at", 2, 0)
    )
    assert (own.pretrained, own.warmup, own.validation) == (False, 1, 2000)
    assert changed.validate_every > own.epochs  # one validation, at the end: the last weights count
    assert load_recipe("pgd-at", validate_every=changed.validate_every).digest() == changed.digest()
    short = load_recipe("aas-pgd-at", **AasTrainingEffort(epochs=8).changes("aas-pgd-at", 2, 0))
    assert (short.pretrained, short.warmup, short.validation, short.epochs) == (True, 1, 100, 8)
    assert (short.loss_settings["every"], short.inner.steps) == (2, 2)
    papers = AasTrainingEffort(steps=0, queries=0)  # the others are 0 already
    assert papers.columns() == ["clean %", "PGD-100 %", "and AAS %", "AutoAttack %"]


def test_the_budget_the_size_and_the_batch_are_part_of_a_training_and_its_judgement() -> None:
    effort = AasTrainingEffort(learn=1000, eps=2 / 255, batch=32)
    context = StudyContext("dinov2-small", "cifar10", img_size=112)
    job = effort.job(context, "aas-pgd-at", 2, 0)
    assert (job.recipe.img_size, job.recipe.inner.eps, job.recipe.batch) == (112, 2 / 255, 32)
    assert (job.limit, job.model_name, job.data_name) == (1000, "dinov2-small", "cifar10")
    assert {attempt.threat for attempt in (effort.pgd, effort.autoattack)} == {Threat("linf", 2 / 255)}
    assert "2/255" in effort.note("2")


def test_all_that_decides_a_training_is_in_the_name_of_its_folder(tmp_path: Path) -> None:
    effort, context = AasTrainingEffort(training=str(tmp_path)), StudyContext("robvit-mini", "sample")

    def place(
        of: AasTrainingEffort = effort, at: StudyContext = context, every: int = 5, seed: int = 0
    ) -> Path:
        return of.place(at, "aas-pgd-at", of.job(at, "aas-pgd-at", every, seed))

    others = [
        place(replace(effort, learn=500)),
        place(replace(effort, epochs=8)),
        place(replace(effort, eps=4 / 255)),
        place(at=replace(context, model="robvit-mini-robust")),
        place(at=replace(context, data="cifar10")),
        place(at=replace(context, img_size=32)),
        place(at=replace(context, resize="crop")),
        place(every=10),
        place(seed=1),
    ]
    assert len({place(), *others}) == len(others) + 1
    judged = place(
        replace(effort, steps=50, seeds=(0, 1)), replace(context, images=9, out=tmp_path / "other")
    )
    assert judged == place()


@pytest.mark.parametrize(
    ("move", "text", "status"), [(0.004, "does not move", "amber"), (0.4, "moves", "green")]
)
def test_whether_the_literal_algorithm_moves_is_told_either_way(move: float, text: str, status: str) -> None:
    def found(moved: float) -> Comparison:
        trial = Trial("pgd", None, {}, [True], [0], [0.0])
        searches = [Scales((1.0,), (1.0,), (moved / 2, moved), 0, 0)]
        return Comparison(trial, trial, trial, trial, [], None, searches)

    finding = movement({LITERAL: found(move), "unit, sign steps, log, train": found(0.9)})
    assert finding.status == status
    assert f"train) {text}: " in finding.evidence
    assert f"{move:.2g} away from the random start" in finding.evidence
    assert finding.evidence.endswith("of the other ways unit, sign steps, log, train moved most, 0.9.")


@pytest.mark.slow
def test_studies_share_what_became_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared_batches = {"steps": 1, "batches": str(tmp_path / "batches"), **LEARN}
    first = reproduce("aas-table2", images=4, out=tmp_path / "a", names=["unit"], **shared_batches)
    monkeypatch.setattr("robvit.measuring.batches.run", lambda *_, **__: pytest.fail("an attack ran again"))
    second = reproduce("aas-table3", images=4, out=tmp_path / "b", attacks=["PGD-20"], **shared_batches)
    assert first.trials[-1].correct == second.trials[-1].correct


@pytest.mark.slow
def test_a_budgets_figure_has_a_part_for_each_model(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"levels": (8,), "steps": 1, "models": ["robvit-mini"], **LEARN}
    record = reproduce("aas-fig5", images=2, out=tmp_path, **settings)
    assert record.scenarios() == ["eps 8/255", "robvit-mini, eps 8/255"]
    assert [curve.title.endswith("robvit-mini") for curve in record.curves] == [False, True]
    assert [claim.text for claim in record.claims][2:] == [
        "robvit-mini, eps 8/255",
        "robvit-mini, eps 8/255, over random scales",
    ]


def test_a_model_is_named_by_what_tells_its_file_from_others() -> None:
    assert short_name("vit_base.lvd142m") == "vit_base.lvd142m"
    assert short_name("runs/pgd-at.safetensors") == "pgd-at"
    assert short_name("runs/pgd-at/model.safetensors") == "pgd-at"


@pytest.mark.slow
def test_a_shortened_attack_is_named_by_its_length_beside_the_papers(tmp_path: Path) -> None:
    record = reproduce("aas-table3", images=2, out=tmp_path, steps=1, **LEARN)
    place = record.tables[0].columns.index("paper's attack")
    rows = [(row[0], row[place], row[place + 1]) for row in record.tables[0].rows]
    assert rows[:3] == [("FGSM", "FGSM", 66.48), ("PGD-1", "PGD-20", 63.14), ("PGD-1", "PGD-100", 61.10)]
    assert [row[0] for row in rows[3:]] == ["CW-1", "DLR-1", "GAMA-1"]
    assert [claim.text for claim in record.claims][:5] == ["FGSM", "PGD-1", "CW-1", "DLR-1", "GAMA-1"]
    assert [claim.paper for claim in record.claims[:2]] == [5.44, 4.93]


@pytest.mark.slow
def test_no_budget_breaks_nothing_and_scale_one_changes_nothing(tmp_path: Path) -> None:
    record = reproduce("aas-fig5", images=4, out=tmp_path, levels=(0,), steps=1, **LEARN)
    clean, *attacked = record.trials
    assert all(trial.correct == clean.correct for trial in attacked)


def test_the_page_shows_every_result_of_the_queue() -> None:
    root = Path(__file__).parents[2]
    queue = yaml.safe_load((root / "results" / "queue.yaml").read_text("utf-8"))
    page = (root / "docs" / "aas.md").read_text("utf-8")
    blocks = re.findall(r"<!-- results\n(.*?)-->", page, re.DOTALL)
    shown = {name for block in blocks for name in yaml.safe_load(block).values()}
    kept = {line["name"] for line in queue if line["name"].startswith("aas-") and line.get("record", True)}
    assert shown == kept


def test_a_tally_counts_what_is_seen_when_all_claims_are_tested_together() -> None:
    just, sure, nothing = (claim_of("", [True] * 40, [False] * n + [True] * (40 - n)) for n in (6, 20, 0))
    assert "seen in 1 of 2 comparisons, over random scales in 0 of 2, " in tally([sure, just], [nothing] * 2)
    assert "seen in 1 of 1 comparisons, over random scales in 0 of 0, " in tally([just], [])


def test_random_scales_are_drawn_several_times_and_no_less_than_once() -> None:
    model, learn = robvit.load("robvit-mini"), open_data("sample", split="train", limit=2)
    unsearched = controls.Unsearched(model, learn, Threat("linf", 0.01), 1, 0, Path(), draws=3)
    unsearched.__dict__["best_factor"] = 0.1  # chosen before
    found = unsearched.controls(2)
    assert found["one factor"] == [[0.1, 0.1, 1.0, 1.0]]
    assert len({tuple(draw) for draw in found["random scales"]}) == 3
    assert all(draw[2:] == [1.0, 1.0] for draw in found["random scales"])
    with pytest.raises(InputError, match="once or more, got draws=0"):
        ScalingEffort(draws=0)


def test_every_table_and_figure_has_a_study() -> None:
    names = {entry.name for entry in STUDIES}
    assert {f"aas-table{n}" for n in (1, 2, 3, 4, 5)} | {f"aas-fig{n}" for n in (2, 3, 4, 5)} <= names
