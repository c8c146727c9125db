"""AAS-AT: a move of the scales takes a batch, all others train; scales are the model's and ship with it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import robvit
from robvit.attention import keep_scales, kept_scales
from robvit.backbones.model import Model
from robvit.data import open_data
from robvit.errors import InputError
from robvit.training.fit import WEIGHTS, Fit
from robvit.training.losses import make_loss
from robvit.training.recipe import load_recipe, make_recipe, names
from robvit.training.splits import Splits

# The paper's own trainings are called after it, with AAS-AT and without.
PLAIN = {name: name.removesuffix("-aas") for name in names() if name.endswith("-aas")}
RECIPES = [n for n in names() if n in PLAIN or (n.startswith("aas-") and not n.startswith("aas-paper"))]


def fit_of(folder: Path, **keys: Any) -> Fit:
    model = robvit.load("robvit-mini")
    learned = open_data("sample", split="train", limit=24)
    recipe = {
        "loss": "aas_at",
        "loss_settings": {"base": "pgd_at", "every": 2, "steps": 2, "space": "log"},
        "inner": {"eps": 0.03, "steps": 1},
        "batch": 8,
        "epochs": 3,
        "lr": 1e-3,
        "judge_steps": 1,
        "save_seconds": 0,
        **keys,
    }
    splits = Splits(learned, open_data("sample", split="test", limit=8))
    return Fit(model, splits, make_recipe(recipe), folder=folder, about={"arch": "robvit-mini"}, trackers=[])


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.state_dict().items() if "score_scale" not in k}


@pytest.mark.slow
def test_a_move_of_the_scales_takes_one_batch_and_all_others_train(tmp_path):
    fit = fit_of(tmp_path)
    seen = []
    advance = fit._advance

    def watched(step: int, loader: Any) -> None:
        advance(step, loader)
        seen.append((kept_scales(fit.model), weights_of(fit.model)))

    fit._advance = watched
    fit.run()
    moved = [not torch.equal(a[0], b[0]) for a, b in pairwise(seen)]
    learned = [any(not torch.equal(a[1][k], b[1][k]) for k in a[1]) for a, b in pairwise(seen)]
    # Three steps an epoch; in the third epoch the first batch moves the scales, and the others train.
    assert moved == [False] * 5 + [True, False, False]
    assert learned == [True] * 5 + [False, True, True]
    assert ((seen[-1][0] >= 1e-7) & (seen[-1][0] <= 1)).all()
    (table,) = fit.loss.tables()
    start, end = table.rows
    assert start[:2] == [2, "random start"]
    assert end == [2, "after the ascent", *seen[-1][0].tolist()]
    assert start[2:] != end[2:]


@pytest.mark.slow
def test_averaged_weights_carry_the_scales_as_they_are(tmp_path):
    fit = fit_of(tmp_path, ema=0.9)
    advance, seen = fit._advance, []

    def watched(step: int, loader: Any) -> None:
        advance(step, loader)
        seen.append((kept_scales(fit.model), kept_scales(fit.stepper.ema.module)))

    fit._advance = watched
    fit.run()
    assert all(torch.equal(own, averaged) for own, averaged in seen)
    assert (seen[-1][0] < 1).any()


@pytest.mark.slow
def test_without_an_epoch_of_its_own_it_is_the_base_loss(tmp_path):
    ours = fit_of(tmp_path / "a", loss_settings={"base": "trades", "every": 9}, epochs=1)
    theirs = fit_of(tmp_path / "b", loss="trades", loss_settings={}, epochs=1)
    ours.run(), theirs.run()
    a, b = weights_of(ours.model), weights_of(theirs.model)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.slow
def test_killed_between_and_resumed_it_ends_with_the_same_bits(tmp_path):
    settings = {"base": "pgd_at", "every": 2, "steps": 2, "batches": 2, "space": "log"}
    whole = fit_of(tmp_path / "whole", loss_settings=settings)
    whole.run()

    class Killed(Exception):
        pass

    part = fit_of(tmp_path / "part", loss_settings=settings)
    advance = part._advance

    def dying(step: int, loader: Any) -> None:
        if step == 7:  # the scales have moved once in this epoch, and are to move once more
            raise Killed
        advance(step, loader)

    part._advance = dying
    with pytest.raises(Killed):
        part.run()
    resumed = fit_of(tmp_path / "part", loss_settings=settings)
    resumed.run()
    a, b = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert int(resumed.loss.moved) == 2
    assert len(resumed.loss.path) == 2  # the move before the kill is still told
    assert torch.equal(resumed.loss.path, whole.loss.path)


@pytest.mark.slow
def test_the_trained_model_loads_with_its_scales(tmp_path):
    fit = fit_of(tmp_path, epochs=1)
    keep_scales(fit.model, [0.4, 0.3, 0.2, 0.1])
    fit.run()
    again = robvit.load(str(tmp_path / WEIGHTS))
    assert kept_scales(again).tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1])
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(x), fit.model.eval()(x))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_names_a_loss_that_is_there(name):
    recipe = load_recipe(name)
    assert recipe.loss == "aas_at"
    plain = load_recipe(PLAIN.get(name) or name.removeprefix("aas-"))
    settings = recipe.loss_settings
    loss = make_loss(recipe.loss, robvit.load("robvit-mini"), open_data("sample", limit=2), settings)
    assert settings["base"] == plain.loss
    own = {"base", "every", "objective"}
    assert {k: v for k, v in settings.items() if k not in own} == plain.loss_settings
    papers = name.startswith("aas-paper")
    assert loss.ascent["objective"] == ("lpips" if papers else "unit")  # Eq. 3 is the paper's
    assert loss.every < recipe.epochs
    assert (recipe.inner, recipe.awp, recipe.lr) == (plain.inner, plain.awp, plain.lr)


@pytest.mark.slow
def test_nonsense_is_refused():
    model, images = robvit.load("robvit-mini"), open_data("sample", limit=2)
    with pytest.raises(InputError, match="every >= 2"):
        make_loss("aas_at", model, images, {"every": 1})
    with pytest.raises(InputError, match="such as trades or mart, got fare"):
        make_loss("aas_at", model, images, {"base": "fare"})
