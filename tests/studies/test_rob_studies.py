"""The studies of robustness tokens run, and what they print follows from what they measured."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import robvit
import robvit.studies.rob.common as rob_common
import robvit.studies.rob.tables as rob_tables
from helpers.studies import check_tables
from robvit.attention import watch
from robvit.backbones import zoo
from robvit.backbones.heads import SegmentationHead
from robvit.budget import Budget
from robvit.data import open_data
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.recipe import REFERENCE
from robvit.defenses.tokens import RobustTokens
from robvit.errors import DataError, InputError
from robvit.evaluation.attackers import scenario_of
from robvit.explanation.figures.activations import largest_activations
from robvit.record import Record, Trial
from robvit.studies import StudyContext
from robvit.studies.rob.attackers import DrawnSet, _pool_claims
from robvit.studies.rob.choices import STATED
from robvit.studies.rob.effort import TokenEffort
from robvit.studies.rob.figures import DIRECTIONS
from robvit.studies.rob.segmentation import Masks, Scenes, segmentation
from robvit.threat import Threat
from robvit.verdict import Verdict

DOCS = Path(__file__).parents[2] / "docs"
# The published code's recipe, with its own number of attack steps written out.
REFERENCE_RECIPE = replace(REFERENCE, attack=replace(REFERENCE.attack, settings={"steps": 30}))
QUICK: dict[str, Any] = {"model": "robvit-mini", "steps": 2, "learn": 16}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attacked images are the same for all of these, as they are for whoever runs one study after another."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _one_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(cache))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("rob-table1", {"head": 40, "scenes": 4, "images": 4}),
        ("rob-table2", {"head": 40, "scenes": 4, "images": 4, "attack_steps": 2}),
        ("rob-table3", {"images": 4}),
        ("rob-table4", {"head": 40, "images": 4, "attack_steps": 2, "targets": 2, "queries": 5}),
        ("rob-fig3", {"scenes": 4, "images": 4, "attack_steps": 2}),
        ("rob-fig4", {"counts": (1, 3)}),
        ("rob-fig5", {}),
        ("rob-fig6", {"images": 4}),
        ("rob-leak", {"images": 4, "answers": (1, 4), "leak_steps": 3}),
        ("rob-orthogonal", {"images": 4, "head": 40, "attack_steps": 2}),
        ("rob-pool", {"images": 4, "head": 40, "sets": 2, "attack_steps": 2}),
        (
            "rob-attacker",
            {"images": 4, "head": 60, "attack_steps": 2, "steps_tried": (1, 2), "images_tried": (4,)}
            | {"own_images": 8, "own_steps": 1},
        ),
    ],
)
def test_each_study_of_tokens_runs_on_the_bundled_model(
    name: str, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = robvit.reproduce(name, out=tmp_path / "out", **QUICK, **settings)
    check_tables(record, tmp_path)
    if name == "rob-pool":
        again = robvit.reproduce(name, tokens=str(tmp_path / "out/pool.safetensors"), **QUICK, **settings)
        assert again.tables[0].rows == record.tables[0].rows
    if name not in ("rob-fig6", "rob-leak"):  # every comparison ends in a verdict
        assert record.claims
        assert record.tables[1].title == "Claims, pair by pair"
    if "scenes" in settings:
        assert any(claim.text.startswith("images whose mIoU tokens raise") for claim in record.claims)
        assert "4 images can tell no difference at all" in capsys.readouterr().err  # before anything runs


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["paper", "reference"])
def test_every_scale_sets_what_is_not_set(scale: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"head": 40, "scenes": 4, "images": 4, "attack_steps": 2, "inner_steps": 2}
    record = robvit.reproduce("rob-table2", out=tmp_path, scale=scale, **QUICK, **settings)
    attacks = {t.attack for t in record.trials} - {"clean"}
    assert attacks == {"pgd" if scale == "paper" else "pgd_reference"}
    bounds = {t.threat.psnr for t in record.trials if t.threat is not None}
    assert bounds == {40.0 if scale == "paper" else None}
    assert f"Scale {scale}; 10 tokens learned from 16 images in 2 steps of 8" in record.tables[0].note
    assert (tmp_path / "hardened-head.safetensors").is_file()


def test_scales_are_the_papers_and_the_published_codes() -> None:
    effort = TokenEffort().changed({"scale": "paper", "learn": 400})
    assert (effort.learn, effort.steps, effort.batch, effort.inner_steps, effort.psnr) == (
        400,
        200,
        8,
        30,
        40,
    )
    assert effort.recipe().attack == AttackSetting(
        "feature", Threat("linf", 8 / 255), {"steps": 30, "psnr": 40}
    )
    published = TokenEffort().changed({"scale": "reference"})
    assert published.recipe() == REFERENCE_RECIPE
    assert published.pixel_threat.eps * 255 == pytest.approx(1.8, abs=0.02)
    assert TokenEffort(mse=1.0).feature_attack(3).settings["mse"] == 1.0
    with pytest.raises(InputError, match="scale must be small, paper or reference, got 'large'"):
        TokenEffort().changed({"scale": "large"})


def test_the_backbones_of_tables_1_and_2_are_known_by_name() -> None:
    for table in ("table1", "table2"):
        rows = rob_common.PUBLISHED[table].rows
        assert len(rows) == 8  # each with a regular and a hardened cell: sixteen rows of the paper
        assert all(zoo.resolve(name).alias == name for name in rows)


@pytest.mark.slow
def test_an_attackers_images_are_none_of_the_defenders(tmp_path: Path) -> None:
    few: dict[str, Any] = {"head": 20, "images": 2, "attack_steps": 1, "steps_tried": (1,), "own_steps": 1}
    with pytest.raises(InputError, match=r"the attacker wants 8 images .* got 4 of 20"):
        robvit.reproduce("rob-attacker", out=tmp_path, **QUICK, **few, images_tried=(4,), own_images=8)


@pytest.mark.slow
def test_learning_and_judging_take_two_sets_but_share_no_image(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(2):
            Image.new("RGB", (8, 8), (i * 60, 0, 0)).save(tmp_path / name / f"{i}.png")
    model = robvit.load("robvit-mini")
    context, effort = StudyContext(data=str(tmp_path)), TokenEffort(learn_data="forms")
    learn, judged = rob_common.images_for(context, effort, model, learn=4, judged=4)
    assert (len(learn), len(judged)) == (4, 4)
    with pytest.raises(InputError, match="learning and judging share 4 images"):
        rob_common.images_for(context, replace(effort, learn_data=str(tmp_path)), model, learn=4, judged=4)


@pytest.mark.slow
def test_a_table_says_what_its_trials_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[AttackSetting] = []

    def attack_features(model: Any, images: Any, attack: AttackSetting, label: str) -> Any:
        used.append(attack)
        return rob_common.attack_features(model, images, attack, label)

    monkeypatch.setattr(rob_tables, "attack_features", attack_features)
    settings: dict[str, Any] = {"head": 40, "scenes": 4, "images": 8, "attack_steps": 2, "eps": 8 / 255}
    model = robvit.load("robvit-mini")
    nothing = RobustTokens(torch.zeros(1, 1, model.width), model.fingerprint())
    nothing.save(tmp_path / "other.safetensors")
    settings["deep"] = str(tmp_path / "other.safetensors")
    record = robvit.reproduce("rob-table2", out=tmp_path, **QUICK, **settings)
    rows = {row[0]: row[1:] for row in record.tables[0].rows}
    attacked = [t for t in record.trials if t.scenario == "no tokens" and t.attack == "pgd"]
    assert rows["accuracy under PGD-2, %"][0] == 100 * sum(attacked[0].correct) / 8
    assert [attack.steps for attack in used] == [2]  # the features are attacked in as many steps
    controls = {t.scenario for t in record.trials if t.control}
    assert controls == {"no tokens", "random tokens", "no tokens, head on hardened features", "deep tokens"}
    (other,) = record.tables[-1].rows
    judged = [100 * sum(t.correct) / 8 for t in record.trials if t.scenario == "deep tokens"]
    assert [other[0], *other[3:]] == ["deep tokens", *judged]
    assert record.claims[-1].text == "deep tokens over no tokens, PGD-2"
    (claim,) = (c for c in record.claims if c.text.startswith("cosine x 100: tokens over random tokens"))
    hardened, control = (rows["cosine with the original features"][place] for place in (2, 1))
    assert claim.difference == pytest.approx(100 * (hardened - control), abs=1e-3)
    scenarios = {t.scenario for t in record.trials}
    assert {"random tokens", "tokens", "tokens, attacker knows them"} <= scenarios


@pytest.mark.slow
def test_the_choices_of_the_published_code_are_taken_apart(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.safetensors")
    model = robvit.load("robvit-mini", pos_embed="hub")
    tokens = RobustTokens(0.01 * torch.randn(1, 4, model.width), model.fingerprint())
    tokens.save(file)
    with pytest.raises(InputError, match="which tokens"):
        robvit.reproduce("rob-choices", model="robvit-mini", images=2)
    record = robvit.reproduce(
        "rob-choices",
        model="robvit-mini",
        images=3,
        few=2,
        img_size=32,
        tokens=file,
    )
    rows = record.tables[0].rows
    assert [row[1] for row in rows] == [50_000, 3, 2, 2, 2, 2, 2, 2, 2]
    assert len({row[0] for row in rows}) == 8  # the published choices stand there twice


@pytest.mark.slow
def test_a_scale_decides_what_all_images_meet(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini", pos_embed="hub")
    tokens = RobustTokens(0.01 * torch.randn(1, 4, model.width), model.fingerprint())
    tokens.save(tmp_path / "tokens.safetensors")
    given: dict[str, Any] = {"model": "robvit-mini", "tokens": str(tmp_path / "tokens.safetensors")}
    record = robvit.reproduce("rob-choices", images=3, few=1, img_size=32, scale="paper", **given)
    assert [row[:2] for row in record.tables[0].rows[1:3]] == [[STATED, 3], ["published choices", 1]]
    with pytest.raises(InputError, match="scale must be small, paper or reference"):
        robvit.reproduce("rob-choices", images=3, scale="large", **given)


def attackers_record(folder: Path, key: str = "a", **right: int) -> str:
    """A record with so many of 20 images right against each attacker."""
    named = []
    for who, count in right.items():
        correct = [place < count for place in range(20)]
        predicted = [0 if one else 1 for one in correct]
        scenario = scenario_of(who.replace("_", "-"), tokens=True)  # as an evaluation names it
        threat = Budget("linf", 3 / 255)
        named.append(Trial("pgd", threat, {}, correct, predicted, [0.0] * 20, scenario=scenario))
    data = {"count": 20, "spec": "sample", "names": [str(i) for i in range(20)], "labels": [0] * 20}
    folder.mkdir()
    Record("evaluate", {"name": "net", "tokens": key}, data, named).save(folder / "record.json")
    return str(folder / "record.json")


def test_a_secret_layer_is_judged_pair_by_pair_from_two_records(tmp_path: Path) -> None:
    known = attackers_record(tmp_path / "known", no_tokens=15, own_tokens=2)
    guessed = attackers_record(tmp_path / "guessed", guess_layer=12)
    record = robvit.reproduce("rob-secret-layer", known=known, guessed=guessed)
    assert [claim.verdict for claim in record.claims] == [Verdict.SEEN, Verdict.BOUNDED]
    assert [claim.difference for claim in record.claims] == [pytest.approx(50), pytest.approx(15)]
    assert len(record.tables[0].rows) == len(record.trials) == 3
    expected = r"expected the scenario 'trained tokens, attacker trains tokens', got trained tokens, attacker"
    with pytest.raises(InputError, match=expected):
        robvit.reproduce("rob-secret-layer", known=guessed, guessed=guessed)
    with pytest.raises(InputError, match="--set guessed="):
        robvit.reproduce("rob-secret-layer", known=known)
    other = attackers_record(tmp_path / "other", "b", guess_layer=12)
    with pytest.raises(InputError, match="one model with the same tokens"):
        robvit.reproduce("rob-secret-layer", known=known, guessed=other)


def test_the_largest_activation_leaves_extra_tokens_out() -> None:
    model = robvit.load("robvit-mini")
    x = torch.rand(2, 3, 32, 32)
    bare = largest_activations(model, x)
    assert bare.shape == (2, 4)
    with watch(model, residual=True) as seen, torch.no_grad():
        model(x)
    assert torch.equal(bare[:, 3], seen.residual[3].abs().amax(dim=(1, 2)))
    huge = model.replace(tokens=1e4 * torch.ones(1, 2, model.width))
    assert float(largest_activations(huge, x).max()) < 1e4


def test_the_page_says_which_way_the_paper_saw_activations_move() -> None:
    without_tokens = {name: ways[0] for name, ways in DIRECTIONS.items()}
    assert without_tokens == {"dinov2": "lower", "openclip": "lower", "deit3": "higher"}
    page = " ".join((DOCS / "robustness-tokens.md").read_text(encoding="utf-8").split())
    told = page.partition("**Fig. 6.**")[2].partition("<!--")[0]
    assert "of DINOv2 and OpenCLIP to much lower values, and raise them only in DeiT-III's" in told
    assert "every direction of the paper" not in page


def test_masks_are_compared_image_by_image() -> None:
    masks = Masks(each={("tokens", "clean"): [0.5] * 8, ("no tokens", "clean"): [0.4] * 7 + [0.5]})
    claim = masks.claim("clean")
    assert (claim.images, claim.only_first, claim.only_second) == (8, 7, 0)
    assert claim.verdict is Verdict.SEEN


def test_segmentation_without_masks_is_refused(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    RobustTokens(torch.randn(1, 2, model.width), model.fingerprint()).save(tmp_path / "tokens.safetensors")
    with pytest.raises(DataError, match="sample has labels; name a set such as shapes"):
        robvit.reproduce(
            "rob-fig3",
            model="robvit-mini",
            tokens=str(tmp_path / "tokens.safetensors"),
            segmentation_data="sample",
            scenes=2,
        )


def test_a_record_tells_how_the_tokens_of_a_file_were_learned(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    recipe = TokenEffort(steps=7, batch=3, inner_steps=5, eps=2 / 255).recipe(count=4)
    own = RobustTokens(
        torch.randn(2, 4, model.width),
        model.fingerprint(),
        settings=asdict(replace(recipe, layers=(0, 2))),
        layers=(0, 2),
        origin="seed",
        learned_from=("a.png", "b.png"),
    )
    own.save(tmp_path / "tokens.safetensors")
    paper = TokenEffort().changed({"scale": "paper"})
    assert paper.told(RobustTokens.load(tmp_path / "tokens.safetensors")) == (
        "Scale paper; 4 tokens before blocks 0, 2 learned from 2 images in 7 steps of 3 at rate 0.001 "
        "against feature of 5 steps within linf 2/255 in pixels."
    )
    foreign = replace(own, settings={"imported": "dinov2_small.pt"})
    assert "tokens of dinov2_small.pt, which does not say how they were learned" in paper.told(foreign)
    assert "1600 images in 200 steps of 8" in str(paper)  # what it learns itself
    assert "8/255 in pixels, images kept at 40 dB" in str(paper)


@pytest.mark.slow
def test_other_tokens_stand_in_tables_1_and_4_too(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    for name in ("own", "other"):
        tokens = RobustTokens(torch.randn(1, 2, model.width), model.fingerprint())
        tokens.save(tmp_path / f"{name}.safetensors")
    files: dict[str, Any] = {
        "tokens": str(tmp_path / "own.safetensors"),
        "published": str(tmp_path / "other.safetensors"),
    }
    common: dict[str, Any] = {"head": 40, "images": 4} | QUICK | files
    first = robvit.reproduce("rob-table1", scenes=4, **common)
    assert first.tables[-1].columns == ["", "clean accuracy, %"]
    short = {"attack_steps": 2, "targets": 2, "queries": 5}
    fourth = robvit.reproduce("rob-table4", **short, **common)
    assert fourth.tables[-1].columns == ["", "clean accuracy, %", "attacked, %"]
    for record in (first, fourth):
        assert [row[0] for row in record.tables[-1].rows] == ["published tokens"]
        assert record.claims[-1].text.startswith("published tokens over no tokens")
        assert "Scale small; tokens of a file" in record.tables[0].note


@pytest.mark.slow
def test_heads_and_attacked_masks_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = robvit.load("robvit-mini")
    tokens = RobustTokens(torch.randn(1, 2, model.width), model.fingerprint())
    context, scenes = StudyContext(out=tmp_path), Scenes("shapes", 4, 4)
    attempt = TokenEffort().mask_attack(2)
    before = segmentation(context, model, tokens, scenes, attempt)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("made before")

    with monkeypatch.context() as patch:
        patch.setattr(SegmentationHead, "fit", refuse)
        patch.setattr("robvit.evaluation.attack_shards.run", refuse)
        again = segmentation(context, model, tokens, scenes, attempt)
    assert (again.clean, again.attacked, again.each) == (before.clean, before.attacked, before.each)
    assert torch.equal(again.first["tokens, attacked"], before.first["tokens, attacked"])
    fitted = (tmp_path / "segmentation-head.safetensors").read_bytes()
    segmentation(context, model, tokens, Scenes("shapes", 6, 4), None)  # from other images: another head
    assert (tmp_path / "segmentation-head.safetensors").read_bytes() != fitted


def test_what_scenes_can_tell_is_said_for_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    there = len(open_data("shapes", split="test"))
    assert Scenes("shapes", 4, there + 40).counted().judged == there
    assert f"{there} images can tell" in capsys.readouterr().err


def test_a_pool_is_compared_with_a_set_that_always_answers() -> None:
    none, one = DrawnSet([90.0] * 9, [90.0] * 9), DrawnSet([50.0, 60.0] * 5, [0.0] * 10)
    every = DrawnSet([10.0, 0.0] * 5, [20.0] * 10)
    claims = _pool_claims({"none": none, "one": one, "every": every})
    assert [claim.verdict for claim in claims] == [Verdict.BOUNDED, Verdict.SEEN, Verdict.SEEN]
    assert claims[2].difference == pytest.approx(5)  # beside a single set that its attacker has
