"""Training: schedules, streams, losses against closed forms, the loop's laws, exact resume."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from robvit.data import ImageDataset, open_data
from robvit.data.dataset import Listing
from robvit.errors import CannotWrite, Diverged, InputError, UnknownName
from robvit.threat import Threat
from robvit.training import checkpoint
from robvit.training.awp import awp
from robvit.training.computing import CHOICE
from robvit.training.fit import STATE, WEIGHTS, Fit
from robvit.training.inner_attack import InnerAttack, ascend
from robvit.training.losses import LOSSES, Loss, make_loss
from robvit.training.recipe import Inner, Recipe, changes_of, load_recipe, make_recipe, names
from robvit.training.schedule import budget, learning_rate
from robvit.training.splits import Splits
from robvit.training.stream import Sharing, Stream
from robvit.training.validation import Scores


class Tiny(nn.Module):
    """A small network with noise of its own, so that a lost generator would show."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 8), nn.GELU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x))
        return out


def tiny() -> Tiny:
    torch.manual_seed(0)
    return Tiny()


def images(count: int = 40, seed: int = 0, classes: int = 2) -> ImageDataset:
    """Images 8x8 whose brightness tells their class."""
    labels = [i % classes for i in range(count)]
    noise = torch.randint(0, 120, (count, 3, 8, 8), generator=torch.Generator().manual_seed(seed))
    images = (noise + 100 * torch.tensor(labels).view(-1, 1, 1, 1)).to(torch.uint8)
    listing = Listing(
        [f"{seed}/{i}" for i in range(count)], images, labels, classes=[str(k) for k in range(classes)]
    )
    return ImageDataset(listing, list(range(count)))


BASE: dict[str, Any] = {
    "loss": "pgd_at",
    "inner": {"eps": 0.05, "steps": 2},
    "batch": 8,
    "epochs": 2,
    "lr": 1e-2,
    "augment": {"flip": True, "crop": "pad", "pad": 1},
    "judge_steps": 2,
    "save_seconds": 0,
}


def fit_of(
    folder: Path, model: nn.Module | None = None, *, train: ImageDataset | None = None, **keys: Any
) -> Fit:
    splits = Splits(train or images(), images(12, seed=1))
    return Fit(model or tiny(), splits, make_recipe({**BASE, **keys}), folder=folder, trackers=[])


def test_every_recipe_of_the_package_is_sound_and_says_what_to_expect() -> None:
    wanted = """xcit-light xcit-light-8 xcit-finetune-hires xcit-finetune-cifar10 vit-cifar pgd-at trades mart
        awp free fast fare tecoa standard mini"""
    assert set(wanted.split()) <= set(names())
    for name in names():
        recipe = load_recipe(name)
        assert recipe.about
        assert recipe.takes
        assert recipe.expects
        assert recipe.loss in LOSSES
    light = load_recipe("xcit-light")
    assert (light.inner.eps, light.inner.steps, light.weight_decay) == (4 / 255, 1, 0.5)
    assert load_recipe("awp").inner.start == "tiny"  # through trades, from pgd-at


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("lrr=1", "did you mean lr"),
        ("inner.step_siz=1", "step"),
        ("augment.mixupp=1", "did you mean mixup"),
        ("batch=0", "batch: Input should be greater"),
        ("schedule=cosin", "schedule"),
        ("warmup=99", "warmup"),
    ],
)
def test_a_key_nobody_knows_or_a_value_out_of_range_is_named(change: str, said: str) -> None:
    with pytest.raises((UnknownName, InputError), match=said):
        load_recipe("mini", **changes_of([change]))


def test_rates_warm_up_fall_and_cool_down() -> None:
    recipe = make_recipe(
        {"lr": 1.0, "warmup": 2, "warmup_lr": 0.1, "min_lr": 0.01, "epochs": 10, "cooldown": 2}
    )
    assert learning_rate(recipe, 0) == pytest.approx(0.1)
    assert learning_rate(recipe, 1) == pytest.approx(0.55)
    assert learning_rate(recipe, 5) == pytest.approx(0.01 + 0.99 / 2)
    assert learning_rate(recipe, 10) == learning_rate(recipe, 12) == pytest.approx(0.01)
    drops = make_recipe({"lr": 1.0, "schedule": "drops", "drops": [[3, 0.1], [5, 0.1]]})
    assert [learning_rate(drops, t) for t in (2.9, 3, 5)] == pytest.approx([1, 0.1, 0.01])
    scaled = make_recipe({"lr": 1.0, "lr_batch": 512, "batch": 128})
    assert scaled.peak_lr == 0.25
    assert scaled.model_copy(update={"lr_scaling": "sqrt"}).peak_lr == 0.5


def test_the_budget_grows_and_its_step_with_it_unless_as_published() -> None:
    keys = {"inner": {"eps": 0.4, "steps": 1}, "eps_warmup": 4, "epochs": 10}
    assert budget(make_recipe(keys), 1.5) == pytest.approx((0.15, 0.225))
    assert budget(make_recipe({**keys, "published_warmup": True}), 1.5) == pytest.approx((0.1, 0.6))
    assert budget(make_recipe({**keys, "published_warmup": True}), 0.9) == pytest.approx((0.0, 0.6))
    assert budget(make_recipe(keys), 4) == pytest.approx((0.4, 0.6))


@pytest.mark.parametrize(("processes", "parts"), [(1, 1), (2, 1), (2, 3)])
def test_no_image_is_lost_or_repeated_however_a_batch_is_shared(processes: int, parts: int) -> None:
    recipe = make_recipe({"batch": 12, "epochs": 3, "extra_share": 0.25})
    stream = Stream(images(31), recipe, images(10, seed=2))
    assert stream.steps == math.ceil(3 * 31 / 9)
    loaders = [stream.loader(range(stream.steps), Sharing(processes, r, parts), 8) for r in range(processes)]
    samplers: list[Any] = [list(loader.batch_sampler or []) for loader in loaders]
    for step in range(stream.steps):
        shared = [k for s in samplers for part in s[step * parts : (step + 1) * parts] for k in part]
        assert sorted(shared) == sorted(stream.keys(step))
    real = [key for step in range(stream.steps) for key in stream.keys(step) if key[0] == 0]
    for epoch in range(3):
        assert sorted(place for _, e, place in real if e == epoch) == list(range(31))


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InputError, match="smaller than the 4 processes"):
        Sharing(4).check(3)
    with pytest.raises(InputError, match="multiple of 6"):
        Sharing(2, parts=3).check(8)


def linear() -> tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A linear classifier of two classes, grey images and labels: attacks have closed forms."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2, bias=False)).double()
    weight = net[1].weight
    assert isinstance(weight, torch.Tensor)
    return net, weight, torch.full((4, 3, 2, 2), 0.5, dtype=torch.float64), torch.tensor([0, 1, 0, 1])


def attack_of(**inner: Any) -> InnerAttack:
    settings = Inner(**{"eps": 0.1, "steps": 3, **inner})
    return InnerAttack(settings, settings.eps, settings.relative_step * settings.eps, seed=0)


def test_losses_on_a_linear_model_are_what_their_papers_write() -> None:
    net, weight, x, y = linear()
    slopes = weight.detach()
    away = (slopes[1] - slopes[0]) * torch.where(y == 0, 1.0, -1.0)[:, None]  # raises the wrong class
    worst = (x.flatten(1) + 0.1 * away.sign()).view_as(x)
    clean, attacked = net(x), net(worst)
    p, q = clean.detach().softmax(1), attacked.detach().softmax(1)
    data = images()
    made = {name: make_loss(name, net, data, {}) for name in ("standard", "pgd_at", "mart")}
    values = {name: float(loss(net, x, y, attack_of(step=1)).detach()) for name, loss in made.items()}
    assert values["standard"] == pytest.approx(float(F.cross_entropy(clean.detach(), y)))
    assert values["pgd_at"] == pytest.approx(float(F.cross_entropy(attacked.detach(), y)))
    correct = torch.arange(4), y
    wrong = torch.arange(4), 1 - y
    apart = (p * (p / q).log()).sum(1)
    boosted = -q[correct].log() - (1.0001 - q[wrong]).log()
    assert values["mart"] == pytest.approx(float((boosted + 6 * apart * (1 - p[correct])).mean()))
    trades = make_loss("trades", net, data, {"beta": 2.0})
    attack = attack_of(start="tiny")
    value = trades(net, x, y, attack)
    adv = attack._made[0]
    apart = F.kl_div(net(adv).log_softmax(1), clean.softmax(1), reduction="batchmean")
    expected = F.cross_entropy(clean, y) + 2 * apart
    torch.testing.assert_close(value, expected)
    ours = torch.autograd.grad(value, weight)[0]  # both sides of the divergence are pulled at
    torch.testing.assert_close(ours, torch.autograd.grad(expected, weight)[0])
    assert float(attack.threat.size(adv - x).max()) <= 0.1 + 1e-9
    with pytest.raises(UnknownName, match="did you mean beta"):
        make_loss("trades", net, data, {"betta": 1.0})


def test_the_inner_attack_costs_its_steps_and_leaves_the_model_as_it_was() -> None:
    from robvit.attacks import Count

    net = tiny().train()
    x, y = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
    counted = Count(net)
    adv = ascend(counted, x, y, Threat("linf", 0.1), steps=3, step_size=0.05)
    assert (counted.forward, counted.backward) == (12, 12)
    assert net.training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    alone = [
        ascend(net, x[i : i + 1], y[i : i + 1], Threat("linf", 0.1), steps=3, step_size=0.05)
        for i in range(4)
    ]
    torch.testing.assert_close(torch.cat(alone), adv)  # an image's attack does not depend on its batch
    wide = ascend(net, x, y, Threat("linf", 0.1), steps=1, step_size=0.1, start="wide", project=False)
    assert 0.1 < float((wide - x).abs().max()) <= 0.3 + 1e-6
    assert float(wide.min()) >= 0
    assert float(wide.max()) <= 1


def test_any_attack_of_the_library_serves_inside() -> None:
    net = tiny()
    x, y = torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 1])
    for name in ("pgd", "apgd_ce", "square"):
        adv = attack_of(attack=name, steps=2, settings={})(net, x, y)
        assert 0 < float((adv - x).abs().max()) <= 0.1 + 1e-6


def test_awp_moves_every_weight_by_its_share_uphill_and_puts_it_back() -> None:
    net, weight, x, y = linear()
    before = weight.detach().clone()
    attack = attack_of()
    loss = make_loss("pgd_at", net, images(), {})
    low = loss(net, x, y, attack_of()).detach()
    with awp(net, lambda: loss(net, x, y, attack), attack, gamma=0.05, mean=lambda g: g):
        torch.testing.assert_close((weight - before).norm(), 0.05 * before.norm())
        again = loss(net, x, y, attack)
        assert float(again.detach()) > float(low)
        assert len(attack._made) == 1  # the same images, not new ones
        again.backward()
    assert torch.equal(weight, before)
    assert weight.grad is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        {
            "loss": "trades",
            "awp": 0.01,
            "ema": 0.9,
            "clip": 1.0,
            "accumulation": 2,
            "augment": {"flip": True, "mixup": 0.8, "cutmix": 1.0, "mix_share": 0.7},
        },
        {"loss": "free", "replays": 3, "optimizer": "sgd", "epochs": 1},
        {"loss": "standard", "inner": {"eps": 0}, "eps_warmup": 1},
    ],
    ids=["trades", "free", "standard"],
)
def test_a_run_stopped_anywhere_ends_with_the_same_bits(tmp_path: Path, keys: dict[str, Any]) -> None:
    whole = fit_of(tmp_path / "whole", **keys)
    whole.run()
    for stop in (1, 4):
        folder = tmp_path / f"stopped {stop}"
        broken = fit_of(folder, **keys)
        _stop_after(broken, stop)
        with pytest.raises(KeyboardInterrupt):
            broken.run()
        resumed = fit_of(folder, **keys)
        resumed.run()
        _same_bits(tmp_path / "whole" / STATE, folder / STATE)
        _same_bits(tmp_path / "whole" / WEIGHTS, folder / WEIGHTS)
        assert resumed.state == whole.state
    assert whole.state.history["robust"]


def _stop_after(fit: Fit, steps: int) -> None:
    learn, done = fit.stepper.advance, 0

    def stopping(*args: Any) -> float:
        nonlocal done
        if done == steps:
            raise KeyboardInterrupt
        done += 1
        return learn(*args)

    fit.stepper.advance = stopping  # type: ignore[method-assign]


def _same_bits(one: Path, other: Path) -> None:
    (a, facts), (b, other_facts) = (checkpoint.read_tensors(p, "tensors") for p in (one, other))
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert _timeless(facts) == _timeless(other_facts)


def _timeless(facts: dict[str, str]) -> dict[str, Any]:
    """A state's facts without the seconds it took."""
    known = json.loads(facts.get("facts", "{}"))
    known.get("progress", {}).pop("seconds", None)
    return facts | {"facts": known}


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"loss": "free", "replays": 3}])
def test_accumulation_changes_nothing_but_rounding(tmp_path: Path, keys: dict[str, Any]) -> None:
    net = {parts: nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).double() for parts in (1, 4)}
    net[4].load_state_dict(net[1].state_dict())
    for parts, model in net.items():
        fit = fit_of(tmp_path / str(parts), _Double(model), accumulation=parts, **keys)
        fit.run()
    torch.testing.assert_close(dict(net[1].state_dict()), dict(net[4].state_dict()))


class _Double(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net_ = net

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net_(x.double())
        return out


@pytest.mark.slow
def test_training_learns_and_the_best_weights_are_left_in_the_model(tmp_path: Path) -> None:
    model = tiny()
    fit = fit_of(tmp_path, model, epochs=12, lr=3e-2)
    state = fit.run()
    assert state.history["robust"][-1] > 0.9
    best = max(state.history["robust"])
    assert state.best == best
    assert state.history["robust"][state.history["step"].index(state.best_step)] == best
    held, _ = checkpoint.read_tensors(tmp_path / WEIGHTS, "weights")
    assert all(torch.equal(held[name], tensor) for name, tensor in model.state_dict().items())


def test_patience_ends_a_training_that_gets_no_better(tmp_path: Path) -> None:
    fit = fit_of(tmp_path, epochs=50, lr=1e-12, patience=2)
    assert len(fit.run().history["robust"]) == 3


class Counting(Loss):
    """A loss with a state, a choice of parameters, a hook, and epochs in which no weight is trained."""

    calls: torch.Tensor

    def __init__(self, model: nn.Module, data: ImageDataset, *, rest: int = 1) -> None:
        super().__init__()
        self.rest = rest
        self.register_buffer("calls", torch.zeros(2))

    def trains(self, name: str) -> bool:
        return name.startswith("head")

    def on_epoch(self, model: nn.Module, epoch: int) -> None:
        self.calls[0] += 1

    def updates_weights(self, epoch: int) -> bool:
        return epoch != self.rest

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        self.calls[1] += 1
        return F.cross_entropy(model(x), y)


def test_a_loss_may_own_a_state_choose_parameters_and_hear_of_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOSSES, "_entries", dict(LOSSES._entries))
    LOSSES.add("counting")(Counting)
    start = tiny().state_dict()
    fit = fit_of(tmp_path, loss="counting", epochs=3, stop_after=2, loss_settings={"rest": 1})
    fit.run()
    assert fit.loss.calls.tolist() == [2, 10]
    ended = checkpoint.load_state(tmp_path / STATE)[0]
    assert ended["loss"]["calls"].tolist() == [2, 10]
    assert torch.equal(ended["model"]["body.2.weight"], start["body.2.weight"])
    assert not torch.equal(ended["model"]["head.weight"], start["head.weight"])
    early = fit_of(tmp_path / "first", loss="counting", epochs=3, stop_after=1, loss_settings={"rest": 1})
    early.run()  # the second epoch trained nothing
    first = checkpoint.load_state(tmp_path / "first" / STATE)[0]["model"]
    assert all(torch.equal(first[name], tensor) for name, tensor in ended["model"].items())


def test_a_stop_that_adds_a_validation_is_another_training(tmp_path: Path) -> None:
    fit_of(tmp_path, epochs=3, validate_every=2, stop_after=1).run()
    with pytest.raises(InputError, match="stop_after"):
        fit_of(tmp_path, epochs=3, validate_every=2).run()


def test_what_stop_after_ended_goes_on_when_it_is_raised(tmp_path: Path) -> None:
    whole = fit_of(tmp_path / "whole", epochs=2)
    whole.run()
    assert not fit_of(tmp_path / "parts", epochs=2, stop_after=1).run().finished
    assert not fit_of(tmp_path / "parts", epochs=2, stop_after=1).run().finished  # there is nothing to do
    resumed = fit_of(tmp_path / "parts", epochs=2)
    assert resumed.run().finished
    a, b = (checkpoint.load_state(tmp_path / name / STATE)[0]["model"] for name in ("whole", "parts"))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_module_of_ones_own_may_have_parts_called_as_ours(tmp_path: Path) -> None:
    class Wrapped(nn.Module):
        input_size = 8  # ours is a pair

        def __init__(self) -> None:
            super().__init__()
            self.net = tiny()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * self.net(x)

    fit = fit_of(tmp_path, Wrapped(), epochs=1)
    assert fit.run().finished
    assert fit.model.scale.item() != 1


@pytest.mark.slow
def test_feature_losses_keep_attacked_embeddings_in_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 6))
    unlabelled = Listing([str(i) for i in range(40)], images().listing.images)
    fit = fit_of(
        tmp_path,
        encoder,
        loss="fare",
        epochs=15,
        train=ImageDataset(unlabelled, list(range(40))),
        inner={"eps": 0.1, "steps": 3},
    )
    history = fit.run().history
    assert history["robust"][-1] > history["robust"][0]
    assert history["loss"][-1] < history["loss"][0] / 2
    assert not fit.loss.state_dict()  # the frozen original is no state: it is the model as it starts
    tecoa = make_loss("tecoa", encoder, images(), {})
    assert tecoa.classes.shape == (2, 6)
    x, y = images().tensors()
    assert float(tecoa.judge(encoder(x), y).mean()) > 0.9


def test_the_guard_names_collapse_and_label_leaking() -> None:
    assert Scores(0.6, 0.4, 0.35).doubt(0.1) == ""
    assert "catastrophic overfitting" in Scores(0.8, 0.6, 0.02).doubt(0.1)
    assert "label leaking" in Scores(0.5, 0.7, 0.65).doubt(0.1)
    assert Scores(0.1, 0.13, 0.1).doubt(0.15) == ""


def test_a_collapse_is_said_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robvit.training.fit.judge", lambda *_: Scores(0.9, 0.8, 0.0))
    said: list[str] = []
    fit = fit_of(tmp_path, epochs=1)
    fit.log = said.append
    assert "catastrophic" in fit.run().doubts[0]
    assert any(line.startswith("warning: epoch 1.00: catastrophic") for line in said)


def test_a_loss_that_leaves_the_numbers_stops_and_the_last_good_state_loads(tmp_path: Path) -> None:
    def broken(after: int) -> Fit:
        fit = fit_of(tmp_path)
        forward, calls = fit.loss.forward, 0

        def sometimes(*args: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            value = forward(*args)
            return value * math.nan if calls > after else value

        fit.loss.forward = sometimes  # type: ignore[method-assign]
        return fit

    with pytest.raises(Diverged, match=r"step 3: the loss is nan.*lower lr"):
        broken(3).run()
    parts, facts = checkpoint.load_state(tmp_path / STATE)
    assert facts["progress"]["step"] == 3
    assert all(t.isfinite().all() for t in parts["model"].values())
    fit_of(tmp_path).run()  # goes on


def test_a_full_disk_is_said_and_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = fit_of(tmp_path)
    real, written = checkpoint.save_file, 0

    def full(tensors: Any, path: Any, facts: Any) -> None:
        nonlocal written
        written += 1
        if written > 3:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(tensors, path, facts)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CannotWrite, match=r"No space left.*the last one is untouched"):
        fit.run()
    assert checkpoint.load_state(tmp_path / STATE)[1]["progress"]["step"] == 3
    assert {p.name for p in tmp_path.iterdir()} == {STATE, CHOICE}


def test_states_of_other_runs_and_other_networks_are_refused(tmp_path: Path) -> None:
    fit_of(tmp_path, epochs=1).run()
    with pytest.raises(InputError, match="belongs to another run"):
        fit_of(tmp_path, epochs=1, lr=0.5).run()
    with pytest.raises(InputError, match="belongs to another run"):
        fit_of(tmp_path, Tiny(), epochs=1).run()
    path = tmp_path / STATE
    parts, _ = checkpoint.load_state(path)
    with pytest.raises(InputError, match="another architecture"):
        checkpoint.restore(Tiny(classes=3), parts["model"], path)
    fit_of(tmp_path, epochs=1, workers=1).run()  # how fast it runs does not make it another run


def test_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two classes or more"):
        fit_of(tmp_path, train=images(classes=1))


def test_weights_are_decayed_and_vectors_are_not(tmp_path: Path) -> None:
    fit = fit_of(tmp_path, weight_decay=0.3)
    decay = {
        id(p): group["weight_decay"] for group in fit.stepper.optimizer.param_groups for p in group["params"]
    }
    assert {name: decay[id(p)] for name, p in fit.model.named_parameters()} == {
        "body.2.weight": 0.3,
        "body.2.bias": 0.0,
        "head.weight": 0.3,
        "head.bias": 0.0,
    }


def test_recipe_names_what_decides_the_weights() -> None:
    recipe = Recipe()
    assert recipe.digest() == recipe.model_copy(update={"workers": 3, "track": []}).digest()
    assert recipe.digest() != recipe.model_copy(update={"lr": 1.0}).digest()


def test_held_out_images_are_balanced_and_apart() -> None:
    from robvit.training.splits import held_out

    data = open_data("sample", split="train", limit=200)
    train, validation = held_out(data, 0.1, seed=0)
    assert len(validation) == 20
    assert sorted(validation.labels) == sorted(list(range(10)) * 2)
    assert sorted(train.names + validation.names) == sorted(data.names)


def test_a_number_of_held_out_images_for_large_data_is_a_fifth_of_small_data() -> None:
    from robvit.training.splits import held_out

    data = open_data("sample", split="train", limit=40)
    assert [len(part) for part in held_out(data, 200, seed=0)] == [32, 8]
    assert [len(part) for part in held_out(data, 20, seed=0)] == [20, 20]
