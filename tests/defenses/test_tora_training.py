"""Training adapters: what learns in a phase, that phase 1 serves all, and that killed runs are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helpers.networks import small_net
from robvit.backbones.model import Model
from robvit.data import open_data
from robvit.defenses.tora.io import adapted, fresh, load_adapters
from robvit.defenses.tora.modules import Adapters
from robvit.errors import InputError
from robvit.tensor_files import read_tensors
from robvit.training.adapters import TradeOff, TrainableAdapters
from robvit.training.fit import Fit
from robvit.training.inner_attack import InnerAttack
from robvit.training.recipe import Inner, Recipe, changes_of, load_recipe
from robvit.training.splits import Splits
from robvit.training.tora import joined, phases_of, take_over, train_adapters


@pytest.fixture(scope="module")
def splits() -> Splits:
    images = open_data("sample", split="train", limit=24)
    return Splits(images.take(range(16)), images.take(range(16, 24)))


@pytest.fixture
def model() -> Model:
    return Model(small_net("vit", num_classes=10), name="vit").eval()


def recipe(**changes: Any) -> Recipe:
    quick = {"batch": 8, "epochs": 1, "inner.steps": 1, "judge_steps": 1, "validation": 8, "warmup": 0}
    return load_recipe("tora", **{**quick, **changes})


def tuned(
    trades: tuple[float, ...] = (0.5,), *, changes: dict[str, Any] | None = None, **more: Any
) -> Recipe:
    """The recipe for some trade-offs, with other settings of the adapters."""
    wishes = {"trades": trades, **more}
    return recipe(**{f"adapters.{k}": v for k, v in wishes.items()}, **(changes or {}))


def changed(before: Adapters, after: Adapters) -> set[str]:
    """The parts whose tensors differ."""
    old, new = before.state_dict(), after.state_dict()
    names = {name for name in old if not torch.equal(old[name], new[name])}
    return {
        ".".join(name.split(".")[:2]) if name.startswith("sides") else name.split(".")[0] for name in names
    }


@pytest.mark.slow
def test_each_phase_trains_its_own_parts_and_phase_1_serves_every_trade_off(
    model: Model, splits: Splits, tmp_path: Path
) -> None:
    weights = model.identity()
    said: list[str] = []
    told: list[float] = []
    first, runs = train_adapters(
        model,
        splits,
        tuned((0.1,)),
        tmp_path,
        log=said.append,
        progress=lambda amount, note="": told.append(amount),
    )
    assert sum(told) == pytest.approx(1)
    assert list(runs) == ["phase1-accuracy", "phase1-robustness", "phase2-0.1"]
    start = _start(model, splits)
    accuracy, robustness = (
        _kept(model, splits, tmp_path / f"phase1-{n}") for n in ("accuracy", "robustness")
    )
    assert changed(start, accuracy) == {"sides.accuracy", "fusions"}
    assert changed(start, robustness) == {"sides.robustness", "fusions"}
    for name, one in (("accuracy", accuracy), ("robustness", robustness)):
        for key, tensor in one.sides[name].state_dict().items():
            assert torch.equal(tensor, first.sides[name].state_dict()[key])

    marks = {p: p.stat().st_mtime_ns for p in tmp_path.glob("phase1-*/model.safetensors")}
    both, _ = train_adapters(model, splits, tuned((0.1, 0.9), knob="states"), tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("phase1-*/model.safetensors")} == marks
    train_adapters(model, splits, tuned((0.1,), start="fresh"), tmp_path)  # another start of phase 2
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("phase1-*/model.safetensors")} == marks
    both.trade_off = 0.1
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(adapted(model, both)(x), adapted(model, first)(x))
    assert model.identity() == weights
    assert load_adapters(tmp_path / "adapters.safetensors").shape.trades == (0.1,)  # of the last call


def _start(model: Model, splits: Splits) -> Adapters:
    torch.manual_seed(0)
    return fresh(model, len(splits.train.classes), trades=(0.5,))


def _kept(model: Model, splits: Splits, folder: Path) -> Adapters:
    learner = TrainableAdapters(model, _start(model, splits), "joint", ("fusions",))
    state, _ = read_tensors(folder / "model.safetensors", "a state")
    learner.load_state_dict(state)
    return learner.adapters


def test_phase_2_starts_from_the_weighted_mean_of_both_fusions(model: Model) -> None:
    apart = [fresh(model), fresh(model)]
    with torch.no_grad():
        for one in apart:
            for parameter in one.parameters():
                parameter.normal_()
    begun = fresh(model, trades=(0.0, 0.25))
    take_over(begun, apart, fusion=True)
    for name, tensor in begun.fusions.state_dict().items():
        accuracy, robustness = (one.fusions.state_dict()[name][0] for one in apart)
        assert torch.equal(tensor[0], accuracy)
        torch.testing.assert_close(tensor[1], 0.75 * accuracy + 0.25 * robustness)
    for side, one in zip(("accuracy", "robustness"), apart, strict=True):
        assert torch.equal(begun.sides[side].token, one.sides[side].token)
    alone = fresh(model, trades=(0.5,))
    take_over(alone, apart, fusion=False)
    assert torch.equal(alone.fusions[0].weight, fresh(model).fusions[0].weight)
    shared = fresh(model, trades=(0.0, 0.25))
    take_over(shared, apart, fusion=True, shared=True)
    assert torch.equal(shared.fusions[0].weight[0], apart[1].fusions[0].weight[0])
    assert torch.equal(shared.fusions[0].weight[0], shared.fusions[0].weight[1])


def test_the_loss_is_the_trade_offs_mean_of_attacked_and_clean(model: Model, splits: Splits) -> None:
    x, y = splits.train.take(range(6)).tensors()
    learner = TrainableAdapters(model, fresh(model), "joint", ("fusions",))
    inner = Inner(eps=4 / 255, steps=2)

    def attack() -> InnerAttack:
        return InnerAttack(inner, inner.eps, inner.eps, seed=1)

    clean = F.cross_entropy(learner(x), y)
    adv = F.cross_entropy(learner(attack()(learner, x, y)), y)
    assert adv > clean
    loss = TradeOff(learner, splits.train, trade=0.3)(learner, x, y, attack())
    torch.testing.assert_close(loss, 0.3 * adv + 0.7 * clean)


@pytest.mark.slow
def test_a_path_trains_both_ends_on_trade_offs_between_them(
    model: Model, splits: Splits, tmp_path: Path
) -> None:
    made, runs = train_adapters(model, splits, tuned((0.1, 0.5, 0.9)), tmp_path)
    assert made.shape.trades == (0.1, 0.9)
    path = runs["phase2-path-0.1-0.5-0.9"]
    assert path.step == 3 * runs["phase1-accuracy"].step  # as long as three trainings
    assert made.trade_off == pytest.approx(0.5)
    weight = made.fusions[0].weight
    assert not torch.equal(weight[0], weight[1])


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["heads", "single", "adapterfusion"])
def test_the_baselines_train_too(model: Model, splits: Splits, tmp_path: Path, tuning: str) -> None:
    made, _ = train_adapters(model, splits, tuned(tuning=tuning), tmp_path)
    torch.manual_seed(0)
    start = fresh(model, 10, tuning=tuning)
    assert {name.split(".")[0] for name in changed(start, made)} == (
        {"sides", "fusions"} if tuning == "adapterfusion" else {"sides"}
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [{"wiring": "slides"}, {"phase1": "shared"}, {"fusion": "tokens"}, {"fusion": "both"}]
)
def test_every_choice_of_the_slides_trains(
    model: Model, splits: Splits, tmp_path: Path, choice: dict[str, str]
) -> None:
    made, runs = train_adapters(model, splits, tuned(**choice), tmp_path)
    start = _start(model, splits)
    assert changed(start, made) == {"sides.accuracy", "sides.robustness", "fusions"}
    assert all(torch.isfinite(tensor).all() for tensor in made.state_dict().values())
    losses = [loss for run in runs.values() for loss in run.history["loss"]]
    assert all(0 < loss < 20 for loss in losses)
    kept = load_adapters(tmp_path / "adapters.safetensors")
    x = splits.train.tensors()[0][:2]
    with torch.no_grad():
        assert torch.equal(adapted(model, kept)(x), adapted(model, made)(x))


def test_every_tuning_sees_as_many_images() -> None:
    def seen(tuning: str) -> int:
        phases = phases_of(tuned(tuning=tuning, fusion_epochs=0.5))
        return sum(phase.seen(round(100 * phase.recipe.epochs)) for phase in phases)

    assert {seen(tuning) for tuning in ("tora", "adapterfusion", "single", "heads")} == {8 * 300}


@pytest.mark.slow
def test_a_training_knows_how_long_it_took_when_it_is_taken_up_again(
    model: Model, splits: Splits, tmp_path: Path
) -> None:
    (first, again) = (train_adapters(model, splits, tuned(tuning="single"), tmp_path)[1] for _ in range(2))
    (run,) = first.values()
    assert run.seconds > 0
    assert [known.seconds for known in again.values()] == [run.seconds]


class Killed(Exception):
    """The process is gone."""


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits(
    model: Model, splits: Splits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tuned(changes={"epochs": 2, "save_seconds": 0})
    whole, _ = train_adapters(model, splits, plan, tmp_path / "whole")
    advance = Fit._advance
    calls = 0

    def dying(self: Fit, step: int, loader: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 11:  # in the middle of phase 2
            raise Killed
        advance(self, step, loader)

    monkeypatch.setattr(Fit, "_advance", dying)
    with pytest.raises(Killed):
        train_adapters(model, splits, plan, tmp_path / "killed")
    again, _ = train_adapters(model, splits, plan, tmp_path / "killed")
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_adapters_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="rising numbers"):
        tuned((0.9, 0.1))
    with pytest.raises(InputError, match="two trades or more"):
        tuned(knob="path")
    with pytest.raises(InputError, match="one trade-off at a time"):
        tuned((0.1, 0.9), tuning="single")
    with pytest.raises(InputError, match="a loss of their own"):
        recipe(loss="trades")
    with pytest.raises(InputError, match="trains a network"):
        phases_of(load_recipe("pgd-at"))


def test_states_are_joined_in_their_order(model: Model) -> None:
    states = []
    for trade in (0.1, 0.9):
        torch.manual_seed(0)
        one = fresh(model, trades=(trade,))
        with torch.no_grad():
            one.fusions[0].weight.fill_(trade)
        states.append(one)
    both = joined(states)
    assert both.fusions[0].weight[:, 0, 0, 0].tolist() == pytest.approx([0.1, 0.9])
    assert both.trade_off == pytest.approx(0.5)


def test_several_trades_make_a_path_unless_states_are_wanted() -> None:
    def last(*settings: str) -> list[str]:
        return [phase.name for phase in phases_of(load_recipe("tora", **changes_of([*settings])))][2:]

    assert last("adapters.trades=[0.1,0.9]") == ["phase2-path-0.1-0.9"]
    assert last("adapters.trades=0.5", "adapters.start=fresh") == ["phase2-fresh-0.5"]
    assert last("adapters.trades=[0.1,0.9]", "adapters.knob=states") == ["phase2-0.1", "phase2-0.9"]
    assert last("adapters.trades=0.5") == ["phase2-0.5"]
