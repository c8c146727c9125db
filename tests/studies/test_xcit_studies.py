"""The studies of the XCiT thesis run, share their trainings and say what a small run can tell."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import robvit.data.imagenet as imagenet
import robvit.studies.xcit.common as bench
import robvit.studies.xcit.recipe as recipe
import robvit.studies.xcit.scaling as scaling
import robvit.studies.xcit.semantic as semantic
import robvit.studies.xcit.variants as training
from robvit.attacks.sanity import AuditedSample
from robvit.backbones import zoo
from robvit.data import open_data
from robvit.errors import InputError, UnknownName
from robvit.loading import load
from robvit.record import Record, Trial
from robvit.studies import STUDIES, StudyContext, pool, reproduce
from robvit.studies.judging import CLEAN, Attempt, attack_title, judge
from robvit.studies.xcit.common import PUBLISHED, Contrast, JudgedVariant, Run, claims_of
from robvit.studies.xcit.finetune import TRADES
from robvit.studies.xcit.recipe import cost
from robvit.studies.xcit.semantic import Networks, _published, correlation, edges
from robvit.studies.xcit.variants import CHECKPOINT, IMAGENET, RecipeEffort, Variant
from robvit.threat import Threat
from robvit.training import fit
from robvit.training.checkpoint import load_state
from robvit.training.recipe import changes_of, load_recipe
from robvit.training.stream import Stream
from robvit.training.validation import Scores
from robvit.verdict import Verdict

TABLES = [f"xcit-table{n}" for n in range(1, 9)]
TINY: dict[str, Any] = {"learn": 32, "epochs": 1, "steps": 1}


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks as they start, with the account that a training would give; attacks fail."""

    def train_variant(context: StudyContext, effort: RecipeEffort, variant: Variant) -> tuple[Any, Record]:
        job = effort.job(context, variant)
        facts = {"name": job.model, "recipe": job.recipe.model_dump(mode="json")}
        sizes: dict[str, Any] = {"patch_size": job.recipe.patch_size, "img_size": job.recipe.img_size}
        model = load(job.model_name, pretrained=False, num_classes=10, **sizes)
        return model, Record("train", facts, {"learned from": 32}, [])

    def judge(
        _: StudyContext, __: Any, images: Any, attempts: tuple[Attempt, ...], scenario: str
    ) -> list[Trial]:
        count = len(images)
        return [
            Trial(one.attack, None, {}, [True] * count, [-1] * count, [0.0] * count, scenario=scenario)
            for one in attempts
        ]

    monkeypatch.setattr(bench, "train_variant", train_variant)
    monkeypatch.setattr(bench, "judge", judge)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images are held out of a training, and judged by one step: the last weights count anyway."""
    monkeypatch.setattr(training, "VALIDATION", 4)
    monkeypatch.setattr(training, "load_recipe", partial(load_recipe, judge_steps=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.usefixtures("untrained")
def test_each_table_stands_beside_the_papers_with_commands_that_resolve(name: str, tmp_path: Path) -> None:
    record = reproduce(name, images=2, out=tmp_path, **TINY)
    record.save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json").tables == record.tables
    assert any("not the paper's" in note for note in record.notes)
    assert sum(not trial.control for trial in record.trials) == 3  # one row is quoted, clean and attacked
    assert any(column.startswith("paper") for column in record.tables[0].columns)
    for table in record.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    commands = [row[1] for table in record.tables if table.columns[-1] == "command" for row in table.rows]
    assert commands
    for command in commands:
        _, _, recipe, *given = shlex.split(command)
        options = list(zip(given[::2], given[1::2], strict=True))
        loaded = load_recipe(recipe, **changes_of([value for key, value in options if key == "--set"]))
        assert (recipe == "standard") == (loaded.inner.eps == 0)
        model = dict(options)["--model"]
        assert model == CHECKPOINT or zoo.resolve(model)


@pytest.mark.usefixtures("untrained")
def test_one_step_stands_beside_two_and_the_guard_looks_after_every_epoch(tmp_path: Path) -> None:
    record = reproduce("xcit-steps", images=2, out=tmp_path, **TINY)
    assert [row[0] for row in record.tables[0].rows] == ["one step", "two steps"]
    assert [claim.text for claim in record.claims] == ["two steps over one"]
    row = Variant("row", changes={"inner.steps": 2}, small={"inner.step": None, "validate_every": 1})
    made = RecipeEffort().job(StudyContext(), row).recipe
    assert (made.inner.relative_step, made.validate_every) == (0.75, 1)


@pytest.mark.usefixtures("hurried")
def test_the_last_weights_are_judged_where_chosen_ones_would_hide_a_collapse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robust = iter((0.9, 0.1))  # the first validation's weights are chosen
    monkeypatch.setattr(fit, "judge", lambda *_: Scores(0.9, 0.9, next(robust)))
    effort = RecipeEffort(learn=8, epochs=2, training=str(tmp_path), batch=4)
    context, row = StudyContext(), Variant("row", small={"validate_every": 1})
    best, record = training.train_variant(context, effort, row)
    last, _ = training.train_variant(context, effort, replace(row, last=True))
    assert record.metrics["best epoch"] == 1
    (state,) = tmp_path.rglob("state.safetensors")
    trained = load_state(state)[0]["model"]
    assert all(torch.equal(value, trained[name]) for name, value in last.state_dict().items())
    assert best.identity() != last.identity()


@pytest.mark.usefixtures("untrained")
def test_within_eight_all_rows_of_a_table_learn_by_the_wide_step_of_the_recipe_mini(tmp_path: Path) -> None:
    wide = load_recipe("mini").inner
    effort = RecipeEffort(eps=8 / 255)
    assert effort.job(StudyContext(), Variant("row")).recipe.inner == wide
    assert RecipeEffort(eps=4 / 255).job(StudyContext(), Variant("row")).recipe.inner.start == "uniform"
    own = {"inner.start": "uniform", "inner.project": True, "inner.step": None}
    two = Variant("two steps", changes={"inner.steps": 2}, small=own)
    made = effort.job(StudyContext(), two).recipe.inner
    assert (made.steps, made.start, made.relative_step, made.project) == (2, "uniform", 0.75, True)
    eight = Variant("of its own", small={"inner.eps": 8 / 255})
    assert RecipeEffort().job(StudyContext(), eight).recipe.inner == wide
    none = effort.job(StudyContext(), Variant("none", small={"inner.eps": 0}))
    assert none.recipe.inner.eps == 0
    three = effort.job(StudyContext(), Variant("TRADES", changes=TRADES)).recipe.inner
    assert (three.steps, three.relative_step, three.project) == (3, 0.5, True)
    rows = {"rows": ("DeiT-S",), "twins": False}
    record = reproduce("xcit-table1", images=2, out=tmp_path, eps=8 / 255, **TINY, **rows)
    assert any("one wide step" in note for note in record.notes)
    record = reproduce("xcit-steps", images=2, out=tmp_path, eps=8 / 255, **TINY)
    assert not any("one wide step" in note for note in record.notes)


def test_small_networks_learn_from_images_fitted_as_those_that_judge_them() -> None:
    assert RecipeEffort().job(StudyContext(resize="crop"), Variant("row")).resize == "crop"


def test_a_network_that_made_one_side_is_no_judge_of_it() -> None:
    judges = ["robvit-mini", "robvit-mini-robust+head.safetensors", "dinov2-small"]
    assert Networks().own(StudyContext(), judges) == judges[:2]
    tuned = Networks(standard="vit-base", lora="lora.safetensors")
    assert tuned.own(StudyContext(model="dinov2-small"), judges) == []


def test_a_row_with_extra_images_takes_as_many_steps_as_one_without() -> None:
    images, effort = open_data("sample", limit=64), RecipeEffort(epochs=4, batch=32)
    alone = effort.job(StudyContext(), Variant("alone")).recipe
    more = effort.job(StudyContext(), Variant("more", changes={"extra_share": 0.5})).recipe
    assert Stream(images, more, images).steps == Stream(images, alone).steps == 8
    assert (more.warmup, more.eps_warmup) == (alone.warmup / 2, alone.eps_warmup / 2)


@pytest.mark.usefixtures("untrained")
def test_larger_networks_are_judged_by_attacks_of_every_strength_and_by_each_others_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge_transfer(
        _: StudyContext, __: Any, judged: dict[str, Any], images: Any, attempt: Attempt, label: str
    ) -> list[Trial]:
        kinds = [(name, attack) for name in judged for attack in ("clean", attempt.attack)]
        return [
            Trial(attack, None, {}, [True, False], [-1] * 2, [0.0] * 2, scenario=name)
            for name, attack in kinds
        ]

    monkeypatch.setattr(scaling, "judge", bench.judge)
    monkeypatch.setattr(scaling, "judge_transfer", judge_transfer)
    record = reproduce("xcit-scaling", images=2, out=tmp_path, long=20, twins=False, **TINY)
    first, second, *_ = record.tables
    assert [row[0] for row in first.rows] == ["XCiT-S12", "XCiT-M12", "XCiT-L12"]
    assert first.columns[4:7] == ["PGD-10 %", "APGD-CE-1 %", "PGD-20 %"]
    assert first.rows[1][-1] == 51.91
    assert second.title.startswith("Transfer")
    assert all(len(row) == 4 for row in second.rows)
    assert [claim.paper for claim in record.claims] == [None, -1.44]


def test_tables_one_two_four_and_five_take_six_networks_a_seed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: dict[str, set[str]] = {}

    class Stopped(Exception):
        pass

    def named(job: training.Job, folder: Path, **_: Any) -> Record:
        keys[table].add(folder.name)
        raise Stopped

    def every(context: StudyContext, effort: RecipeEffort, variants: Any, **_: Any) -> None:
        for variant in variants:
            with pytest.raises(Stopped):
                training.train_variant(context, effort, variant)
        raise Stopped

    monkeypatch.setattr(training, "run_job", named)
    monkeypatch.setattr(recipe, "judge_variants", every)
    settings: dict[str, dict[str, Any]] = {
        "xcit-table1": {},
        "xcit-table2": {"periods": (0, 10)},
        "xcit-table4": {"values": (0.05, 0.5), "warmup": 10},
        "xcit-table5": {},
        "xcit-table3": {"warmup": 10},
    }
    for table, own in settings.items():
        keys[table] = set()
        with pytest.raises(Stopped):
            reproduce(table, out=tmp_path / table, training=str(tmp_path / "kept"), seeds=(1,), **own)
    one, two, four, five, three = keys.values()
    assert [len(some) for some in (one, two, four, five, three)] == [3, 2, 2, 5, 8]
    assert len(one | two | four | five) == 6
    assert (two | four) < five
    assert len(three & five) == 2  # basic augmentation and all of DeiT's


@pytest.mark.usefixtures("untrained")
def test_a_table_can_be_judged_by_the_audited_version_and_says_what_it_leaves_open(tmp_path: Path) -> None:
    asked = {"judge": "audited", "audit": 2, "rows": ("DeiT-S", "XCiT-S12"), "twins": False}
    record = reproduce("xcit-table1", images=20, out=tmp_path, **TINY, **asked)
    assert record.tables[0].columns[3] == "AutoAttack (audited, 1 steps, 3 targets, 100 queries) %"
    assert [claim.text for claim in record.claims] == ["cross-covariance attention helps: XCiT over DeiT"]
    assert record.claims[0].paper is None  # the thesis's 21.48 points are under APGD-CE
    # All 20 stay correct and one of the ten in a stratum is tried. (9/10)^18, the chance of missing all
    # others, is above 5 %, so none of them is ruled out.
    assert any("at most 90.0 % of any network's survivors" in note for note in record.notes)
    own = reproduce("xcit-table1", images=2, out=tmp_path, **TINY, rows=asked["rows"], twins=False)
    assert own.claims[0].paper == 21.48
    with pytest.raises(InputError, match="judge must be apgd_ce or autoattack or audited, got 'pgd'"):
        RecipeEffort(judge="pgd")
    with pytest.raises(InputError, match="linf-4-audited@1"):
        RecipeEffort(judge="audited", scale="paper")


@pytest.mark.slow
def test_an_audit_of_a_study_sees_all_images_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = load("tiny-deit", pretrained=False, num_classes=10, patch_size=8)
    images = open_data("sample", size=16, limit=70)  # more than a batch
    settings = {"version": "audited", "steps": 1, "targets": 1, "queries": 1, "audit": 5}
    attempt = Attempt("autoattack", Threat("linf", 1e-4), settings)
    with pytest.warns(AuditedSample, match="of the 6 survivors"):  # all in one sample, not some of each batch
        (trial,) = judge(StudyContext(out=tmp_path), model, images, [attempt], scenario="row")
    (clean,) = judge(StudyContext(out=tmp_path), model, images, [CLEAN], scenario="row")
    assert len(trial.correct) == 70
    assert sum(trial.correct) <= sum(clean.correct)
    assert len(list(tmp_path.glob("shards/*/*.safetensors"))) == 1 + 2  # one of all images, two of batches


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_trainings_are_shared_between_studies_and_judged_on_images_nobody_learned(tmp_path: Path) -> None:
    kept = str(tmp_path / "training")
    first = reproduce("xcit-table2", images=4, out=tmp_path / "a", training=kept, periods=(0, 20), **TINY)
    folders = {path: path.stat().st_mtime_ns for path in Path(kept).glob("*/model.safetensors")}
    assert len(folders) == 2
    again = reproduce("xcit-table2", images=4, out=tmp_path / "b", training=kept, periods=(20,), **TINY)
    assert {path: path.stat().st_mtime_ns for path in Path(kept).glob("*/model.safetensors")} == folders
    assert first.tables[0].rows[1] == again.tables[0].rows[0]
    assert len(again.tables) == 2  # without its partner the claim is not told
    assert all(name.startswith("test/") for name in first.data["names"])
    assert first.model["name"] == "tiny-xcit-s, 20 epochs"
    clean, one_step, strongest = (trial for trial in first.trials if not trial.control)
    assert sum(clean.correct) >= sum(one_step.correct)
    assert [str(t.threat) for t in (one_step, strongest)] == ["linf 4/255"] * 2
    assert first.tables[0].columns[1:4] == ["clean %", "FGSM %", "APGD-CE-1 %"]
    assert first.claims[0].text == "20 epochs of warm-up over none"
    assert first.claims[0].paper == 4.40


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("name", "settings"), [("xcit-table1", {}), ("xcit-table7", {"sets": ["flowers"]}), ("xcit-table8", {})]
)
def test_tables_of_each_kind_of_recipe_train(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    less = TINY | {"learn": 8, "targets": 1, "queries": 5}
    record = reproduce(name, images=2, out=tmp_path, **less, **settings)
    assert all(len(trial.correct) == 2 for trial in record.trials)


def _row(label: str, correct: list[bool]) -> JudgedVariant:
    nothing: Any = None
    count = len(correct)
    trial = Trial("apgd_ce", None, {}, correct, [-1] * count, [0.0] * count)
    return JudgedVariant(Variant(label), [Run(nothing, nothing, [trial])])


def test_claims_are_tested_on_the_strongest_attack_where_both_rows_were_run() -> None:
    rows = [_row("a", [True] * 40), _row("b", [False] * 40), _row("c", [True] * 21 + [False] * 19)]
    contrasts = [
        Contrast("a over b", "a", "b", 1),
        Contrast("b over a", "b", "a", 1),
        Contrast("b over a: it loses", "b", "a", -1),
        Contrast("c over c", "c", "c", None),
        Contrast("nobody", "a", "z", 1),
    ]
    claims = claims_of(rows, contrasts)
    assert [claim.verdict for claim in claims] == [
        Verdict.SEEN,
        Verdict.OPPOSITE,
        Verdict.SEEN,
        Verdict.BOUNDED,
    ]
    assert (claims[0].difference, claims[3].paper) == (100, None)


@pytest.mark.slow
@pytest.mark.usefixtures("untrained")
def test_several_seeds_are_trained_and_the_interval_is_over_them(tmp_path: Path) -> None:
    record = reproduce("xcit-table2", images=3, out=tmp_path, periods=(0, 20), seeds=(0, 1, 2), **TINY)
    assert record.scenarios() == [f"{n} epochs, seed {s}" for n in (0, 20) for s in (0, 1, 2)]
    assert [claim.seeds for claim in record.claims] == [3]
    assert sum(not trial.control for trial in record.trials) == 3
    assert record.tables[0].rows[0][1] == "100.0 (60.8 to 100.0)"  # of three images
    assert any("3 seeds" in note for note in record.notes)
    parts = [
        reproduce("xcit-table2", images=3, out=tmp_path / f"{s}", periods=(0, 20), seeds=(s,), **TINY)
        for s in (0, 1, 2)
    ]
    assert pool(parts).claims == record.claims
    few = reproduce("xcit-table5", images=3, out=tmp_path / "rows", rows=("DeiT-S",), **TINY)
    assert [row[0] for row in few.tables[0].rows] == ["DeiT-S"]
    assert few.claims == []
    with pytest.raises(UnknownName, match="did you mean DeiT-S"):
        reproduce("xcit-table5", images=3, out=tmp_path / "typo", rows=("DeiT",), **TINY)


def test_a_small_run_changes_what_the_thesis_changed_and_nothing_else() -> None:
    effort = RecipeEffort(epochs=10)
    light = Variant("light", changes={"eps_warmup": 20, "weight_decay": 0.5, "augment.erase": 0.25})
    made = effort.job(StudyContext(), light)
    assert (made.model, made.recipe.eps_warmup, made.recipe.weight_decay) == ("tiny-xcit-s", 2, 0.5)
    assert made.recipe.augment.erase == 0.25
    calm = effort.job(StudyContext(), light.standard()).recipe
    assert (calm.loss, calm.inner.eps, calm.eps_warmup, calm.augment.erase) == ("standard", 0, 0, 0.25)
    assert (made.recipe.img_size, made.recipe.repeats) == (16, 1)
    with pytest.raises(InputError, match="scale must be small or paper"):
        RecipeEffort(scale="large")
    with pytest.raises(InputError, match="network must be tiny or small"):
        RecipeEffort(network="large")


@pytest.mark.slow
def test_small_networks_of_the_three_kinds_cost_the_same_and_take_the_budget_asked_for() -> None:
    costs = []
    for stand_in in ("tiny-deit", "tiny-cait", "tiny-xcit-s"):
        effort = RecipeEffort(network="small", eps=8 / 255, batch=128, rate=1e-3)
        made = effort.job(StudyContext(), Variant("row", stand_in=stand_in)).recipe
        assert (made.inner.eps, made.batch, made.lr, made.img_size) == (8 / 255, 128, 1e-3, 32)
        name = stand_in.replace("tiny", "small")
        model = load(name, pretrained=False, img_size=32, patch_size=made.patch_size)
        _, millions, mega = cost(model)
        assert 1 < millions < 3
        costs.append(mega)
    assert max(costs) < 1.05 * min(costs)
    calm = RecipeEffort(eps=8 / 255).job(StudyContext(), Variant("row").standard()).recipe
    assert calm.inner.eps == 0


def test_the_papers_scale_is_the_recipe_itself_and_needs_its_data() -> None:
    effort, row = RecipeEffort(scale="paper"), Variant("light", changes={"eps_warmup": 20})
    with pytest.raises(InputError, match="IMAGENET100, which is not part of robvit"):
        effort.job(StudyContext(), row)
    made = effort.job(StudyContext(data="somewhere"), row)
    assert made.recipe.digest() == load_recipe("xcit-light", eps_warmup=20).digest()
    assert (made.model, made.limit) == ("xcit_nano_12_p16_224", None)
    strongest = effort.attempts({"norm": "linf", "eps": 4 / 255}, "apgd_ce")[-1]
    assert strongest.settings == {"steps": 100, "restarts": 5}
    assert effort.attempts({"norm": "linf", "eps": 4 / 255}, "autoattack")[-1].title == "AutoAttack"


def test_the_papers_scale_judges_every_image_and_of_imagenet_robustbenchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wordnet_id in ("n01440764", "n01443537"):
        (tmp_path / "val" / wordnet_id).mkdir(parents=True)
        for i in range(40):
            Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "val" / wordnet_id / f"{i}.png")
    names = [f"n01440764/{i}.png" for i in range(3)]
    monkeypatch.setattr(imagenet, "robustbench_list", lambda: names)
    context, paper = StudyContext(data=f"imagenet:{tmp_path}"), RecipeEffort(scale="paper")
    assert len(paper.judged(context, Variant("light"))) == 80
    assert paper.judged(context, Variant("light", on=IMAGENET)).names == names
    assert len(paper.judged(StudyContext(data=str(tmp_path), images=7), Variant("light"))) == 7
    assert len(RecipeEffort().judged(StudyContext(), Variant("light"))) == 64
    with pytest.raises(InputError, match="IMAGENET100, which is not part of robvit"):
        paper.judged(StudyContext(), Variant("light"))


def test_an_attack_is_named_by_what_was_run() -> None:
    audited = {"version": "audited", "steps": 100, "targets": 9, "queries": 5000, "audit": 30}
    assert attack_title("autoattack", audited) == "AutoAttack (audited)"
    assert attack_title("pgd", {"steps": 2, "seed": 0}) == "PGD-2"
    assert attack_title("fgsm", {}) == "FGSM"
    assert attack_title("apgd_ce", {"steps": 100, "restarts": 5}) == "APGD-CE-100 (5 restarts)"
    assert attack_title("autoattack", {"steps": 100, "targets": 9, "queries": 5000}) == "AutoAttack"
    short = {"steps": 20, "targets": 3, "queries": 100}
    assert attack_title("autoattack", short) == "AutoAttack (20 steps, 3 targets, 100 queries)"


def test_the_papers_figures_agree_with_each_other_where_it_repeats_them() -> None:
    steps, light = PUBLISHED["table5"], PUBLISHED["table6"].rows["XCiT-S12"]
    assert steps.rows["+ tuned weight decay"] == light[-2:]
    gains = [steps.gain(after, before, "AutoAttack") for before, after in pairwise(steps.rows)]
    assert gains == [-4.0, 0.66, 9.42, 3.0]  # as the thesis prints them


def test_table_seven_takes_one_data_set_of_the_users(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data holds one of the sets"):
        reproduce("xcit-table7", data="sample", out=tmp_path)
    with pytest.raises(UnknownName, match="flowers"):
        reproduce("xcit-table7", sets=("flower",), out=tmp_path)


def test_every_table_and_figure_has_a_study() -> None:
    assert {*TABLES, "xcit-table9", "xcit-fig11", "xcit-fig12"} <= {entry.name for entry in STUDIES}


@pytest.mark.slow
def test_perturbations_are_classified_as_images(tmp_path: Path) -> None:
    record = reproduce("xcit-table9", images=4, steps=2, out=tmp_path)
    rows = record.tables[0].rows
    assert [row[1] for row in rows] == [
        "the images themselves",
        "robust, colours",
        "robust, grey",
        "standard, colours",
        "standard, grey",
    ]
    assert rows[0][2] == rows[0][3]  # of clean images the class is all there is to say
    assert all(row[4] is None for row in rows)  # robvit-mini is none of the paper's judges
    assert "both a judge and one of the two networks" in record.notes[-1]
    assert record.claims == []  # its own perturbations push it where they were made to
    other: dict[str, Any] = {"model": "robvit-mini", "judges": ["robvit-mini-robust"]}
    record = reproduce("xcit-table9", images=4, steps=2, out=tmp_path / "other", **other)
    rows, (claim,) = record.tables[0].rows, record.claims  # what the table's cells tell, image by image
    assert claim.text.startswith("robvit-mini-robust recognises perturbations of the robust network over the")
    assert claim.images == 4
    assert rows[1][2].startswith(f"{25 * claim.first[0].count('1'):.1f} ")
    assert rows[3][2].startswith(f"{25 * claim.second[0].count('1'):.1f} ")
    anything = reproduce("xcit-table9", images=4, steps=1, top=10, out=tmp_path)
    assert all(row[2].startswith("100.0") for row in anything.tables[0].rows)


def test_the_papers_figure_stands_beside_its_own_judge_alone() -> None:
    assert _published("convnext_xlarge.fb_in22k_ft_in1k", "robust", 5) == 43.86
    assert _published("beit_large_patch16_224", "standard", 5) == 0.78
    assert _published("convnext_xlarge.fb_in22k_ft_in1k", "robust", 1) is None
    assert _published("robvit-mini", "robust", 5) is None


@pytest.fixture
def photographs(tmp_path: Path) -> str:
    """Three images of ImageNet's classes in a folder without splits."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for place, wordnet_id in enumerate(("n01440764", "n01443537", "n01484850")):
        Image.new("RGB", (40, 40), (80 * place, 90, 10)).save(folder / f"{wordnet_id}_fish.png")
    return f"imagenet:{folder}"


@pytest.mark.parametrize("name", ["xcit-table9", "xcit-fig11", "xcit-fig12"])
def test_photographs_without_splits_are_judged_by_networks_at_their_own_size(
    name: str, photographs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def small(_: str, *, img_size: int | None = None, **__: Any) -> Any:
        seen.add(img_size)
        torch.manual_seed(0)
        return load("tiny-deit", pretrained=False, num_classes=1000, img_size=img_size or 24, patch_size=8)

    monkeypatch.setattr(semantic, "load", small)
    monkeypatch.setattr(StudyContext, "load", lambda *_, **__: small("robust", img_size=16))
    given = {} if name == "xcit-fig11" else {"judges": ["other+HEAD"]}
    record = reproduce(name, data=photographs, images=3, img_size=16, steps=1, out=tmp_path / "out", **given)
    assert seen == ({16, None} if given else {16})
    assert record.data["count"] == 3
    if name == "xcit-table9":
        assert record.tables[0].rows[0][:2] == ["other", "the images themselves"]
    if name == "xcit-fig12":
        assert record.tables[0].columns[5] == "seen by other %"
        judges = [claim.text.split(" recognises")[0] for claim in record.claims]
        assert judges == ["the other network", "other"]
    if given:  # the standard network itself, head and all, is no judge of its own
        own = {"judges": ["other+HEAD", "own+HEAD"], "standard": "own+HEAD", "img_size": 16, "steps": 1}
        record = reproduce(name, data=photographs, images=3, out=tmp_path / "own", **own)
        assert [claim.text.split(" recognises")[0] for claim in record.claims][-1] == "other"
        assert "own is both a judge and one of the two networks" in record.notes[-1]


@pytest.mark.slow
def test_perturbations_and_drawings_are_shown_and_measured(tmp_path: Path) -> None:
    shown = reproduce("xcit-fig11", images=4, steps=2, out=tmp_path / "a")
    assert [row[0] for row in shown.tables[0].rows] == ["robust", "standard"]
    (follows,) = shown.claims
    means = [float(row[1].split(" ")[0]) for row in shown.tables[0].rows]
    assert follows.difference == pytest.approx(100 * (means[0] - means[1]), abs=0.2)
    drawn = reproduce("xcit-fig12", images=4, steps=3, out=tmp_path / "b")
    noise, robust, standard = drawn.tables[0].rows
    (swapped,) = drawn.claims  # each is judged by the network that did not draw it
    assert robust[3].startswith(f"{25 * swapped.first[0].count('1'):.1f} ")
    assert standard[1].startswith(f"{25 * swapped.second[0].count('1'):.1f} ")
    assert robust[2] > noise[2]  # each network sees more of the target in what it drew
    assert standard[4] > noise[4]
    with Image.open(tmp_path / "a" / "fig11.png") as sheet, Image.open(tmp_path / "b" / "fig12.png") as other:
        assert min(*sheet.size, *other.size) > 100
    nothing = reproduce("xcit-fig12", images=4, steps=1, eps=0.0, out=tmp_path / "c").tables[0].rows
    assert nothing[0][1:] == nothing[1][1:] == nothing[2][1:]


def test_edges_and_their_correlation_have_closed_forms() -> None:
    ramp = torch.arange(6.0).expand(1, 6, 6) / 10
    torch.testing.assert_close(edges(ramp), torch.full((4, 4), 0.2))
    field = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
    assert correlation(field, 3 * field + 1) == pytest.approx(1)
    assert correlation(field, -field) == pytest.approx(-1)
    assert correlation(field, torch.ones(4, 4)) == 0


@pytest.mark.parametrize(("name", "count"), [("forms", 8), ("petals", 6)])
def test_drawn_images_are_labelled_balanced_and_differ_between_the_parts(name: str, count: int) -> None:
    train, test = (open_data(name, split=split, size=32) for split in ("train", "test"))
    assert len(train.classes) == count
    assert {train.labels.count(k) for k in range(count)} <= {600 // count, 600 // count + 1}
    x, _ = train.take(range(12)).tensors()
    other, _ = test.take(range(12)).tensors()
    assert x.shape == (12, 3, 32, 32)
    assert (x - other).abs().mean(dim=(1, 2, 3)).min() > 0.02
