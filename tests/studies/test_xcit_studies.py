"""The studies of the XCiT thesis run, share their trainings and say what a small run can tell."""

from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import robvit.studies.xcit.common as bench
from robvit.backbones import zoo
from robvit.data import open_data
from robvit.errors import InputError, UnknownName
from robvit.evaluation.record import Budget, Record, Trial
from robvit.loading import load
from robvit.studies import STUDIES, Request, reproduce
from robvit.studies.xcit import paper
from robvit.studies.xcit.common import Claim, Effort, Row, Variant, claims_table
from robvit.studies.xcit.semantic import correlation, edges
from robvit.training.recipe import changes_of, load_recipe

TABLES = [f"xcit-table{n}" for n in range(1, 9)]
TINY: dict[str, Any] = {"learn": 32, "epochs": 1, "steps": 1}


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks as they start, with the account that a training would give; attacks fail."""

    def trained(request: Request, effort: Effort, variant: Variant) -> tuple[Any, Record]:
        job = effort.job(request, variant)
        told = {"name": job.model, "recipe": job.recipe.model_dump(mode="json")}
        asked = {"patch_size": job.recipe.patch_size, "img_size": job.recipe.img_size}
        model = load(job.model, pretrained=False, num_classes=10, **asked)
        return model, Record("train", told, {"learned from": 32}, [])

    def attacked(_: Request, __: Any, ___: str, images: Any, scenario: str, attacks: Any) -> list[Trial]:
        count = len(images)
        return [
            Trial(
                name,
                threat and threat.budget,
                {},
                [True] * count,
                [0] * count,
                [0.0] * count,
                scenario=scenario,
            )
            for name, threat, _ in attacks
        ]

    monkeypatch.setattr(bench, "trained", trained)
    monkeypatch.setattr(bench, "attacked", attacked)


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
        assert model == bench.CHECKPOINT or zoo.resolve(model)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["xcit-table1", "xcit-table6", "xcit-table7", "xcit-table8"])
def test_the_larger_tables_train(name: str, tmp_path: Path) -> None:
    record = reproduce(name, images=4, out=tmp_path, **TINY)
    assert all(len(trial.correct) == 4 for trial in record.trials)


def _row(label: str, correct: list[bool]) -> Row:
    nothing: Any = None
    count = len(correct)
    trial = Trial("apgd_ce", Budget("linf", 4 / 255), {}, correct, [0] * count, [0.0] * count)
    return Row(Variant(label), nothing, nothing, [trial])


def test_a_claim_is_told_only_where_the_pairs_tell_it() -> None:
    rows = [_row("a", [True] * 40), _row("b", [False] * 40), _row("c", [True] * 21 + [False] * 19)]
    pairs = [
        Claim("a over b", "a", "b", 1),
        Claim("b over a", "b", "a", 1),
        Claim("c over c", "c", "c", None),
    ]
    told = claims_table(rows, [*pairs, Claim("nobody", "a", "z", 1)]).rows
    assert [row[3] for row in told] == ["seen", "the opposite is seen", "cannot be told"]
    assert told[0][2].startswith("+100.0 (")
    assert told[2][1] is None


def test_a_small_run_changes_what_the_thesis_changed_and_nothing_else() -> None:
    effort = Effort("small", epochs=10)
    light = Variant("light", changes={"eps_warmup": 20, "weight_decay": 0.5, "augment.erase": 0.25})
    made = effort.job(Request(), light)
    assert (made.model, made.recipe.eps_warmup, made.recipe.weight_decay) == ("tiny-xcit-s", 2, 0.5)
    assert made.recipe.augment.erase == 0.25
    calm = effort.job(Request(), light.standard()).recipe
    assert (calm.loss, calm.inner.eps, calm.eps_warmup, calm.augment.erase) == ("standard", 0, 0, 0.25)
    with pytest.raises(InputError, match="scale must be small or paper"):
        Effort("large")


def test_the_papers_scale_is_the_recipe_itself_and_needs_its_data() -> None:
    effort, row = Effort("paper"), Variant("light", changes={"eps_warmup": 20})
    with pytest.raises(InputError, match="IMAGENET100, which is not part of robvit"):
        effort.job(Request(), row)
    made = effort.job(Request(data="somewhere"), row)
    assert made.recipe.digest() == load_recipe("xcit-light", eps_warmup=20).digest()
    assert (made.model, made.limit) == ("xcit_nano_12_p16_224", None)
    assert dict(effort.attempts({"norm": "linf", "eps": 4 / 255}, "apgd_ce")[-1][2]) == {
        "steps": 100,
        "restarts": 5,
    }


def test_the_papers_figures_agree_with_each_other_where_it_repeats_them() -> None:
    light = paper.TABLE6["XCiT-S12"]
    assert paper.TABLE5["+ tuned weight decay"] == (light.clean, light.autoattack)
    steps = [robust for _, robust in paper.TABLE5.values()]
    gains = [round(b - a, 2) for a, b in pairwise(steps)]
    assert gains == [-4.0, 0.66, 9.42, 3.0]  # as the thesis prints them


def test_table_seven_takes_one_data_set_of_the_users(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--data holds one of the sets"):
        reproduce("xcit-table7", data="sample", out=tmp_path)
    with pytest.raises(UnknownName, match="flowers"):
        reproduce("xcit-table7", sets=("flower",), out=tmp_path)


def test_every_table_and_figure_has_a_study() -> None:
    assert {*TABLES, "xcit-table9", "xcit-fig11", "xcit-fig12"} <= {entry.name for entry in STUDIES}


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
    assert "both a judge and the standard network" in record.notes[-1]
    anything = reproduce("xcit-table9", images=4, steps=1, top=10, out=tmp_path)
    assert all(row[2].startswith("100.0") for row in anything.tables[0].rows)


def test_perturbations_and_drawings_are_shown_and_measured(tmp_path: Path) -> None:
    shown = reproduce("xcit-fig11", images=4, steps=2, out=tmp_path / "a")
    assert [row[0] for row in shown.tables[0].rows] == ["robust", "standard"]
    drawn = reproduce("xcit-fig12", images=4, steps=3, out=tmp_path / "b")
    noise, robust, standard = drawn.tables[0].rows
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
    x, _ = train.take(range(12)).arrays()
    other, _ = test.take(range(12)).arrays()
    assert x.shape == (12, 3, 32, 32)
    assert (x - other).abs().mean(dim=(1, 2, 3)).min() > 0.02
