"""Label-free fine-tuning: it goes on to the same bits, features stay where they were, masking is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import robvit
from helpers.lora import images
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.data import open_data
from robvit.defenses.lora import linear_layers, trainable
from robvit.errors import InputError, RobvitError
from robvit.record import Record
from robvit.training.features import FeatureLearner, Features
from robvit.training.finetune import finetune
from robvit.training.finetune_plan import Cost, fitted, planned
from robvit.training.fit import Fit
from robvit.training.tuning import Tuning, learner_parts, split, without_labels
from robvit.training.validation import Scores

FEW: dict[str, Any] = {"steps": 4, "batch": 4, "held_out": 2, "validations": 2, "judge_steps": 3, "rank": 4}


@pytest.fixture(scope="module")
def mini() -> Model:
    return robvit.load("robvit-mini")


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"rank": 0}, "rank must be"),
        ({"blocks": 9}, "blocks must be"),
        ({"eps": 0.0}, "eps must be above 0"),
        ({"method": "half"}, "method must be lora or full"),
        ({"distance": "far"}, "squared or cosine"),
        ({"steps": 0}, "steps must be 1"),
        ({"clean_cosine": 1.5}, "between 0 and 1"),
        ({"changes": {"emma": 1}}, "ema"),
    ],
)
def test_settings_that_cannot_be_are_refused(mini: Model, wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(RobvitError, match=words):
        finetune(mini, images(), **{**FEW, **wishes})


def test_sets_of_one_image_are_refused(mini: Model) -> None:
    with pytest.raises(InputError, match="two images or more"):
        finetune(mini, images(1), **FEW)
    with pytest.raises(InputError, match=r"\(B 3 H W\)"):
        finetune(mini, torch.rand(3, 32, 32), **FEW)


def test_only_the_first_blocks_are_tuned_if_wanted(mini: Model) -> None:
    twin, net = learner_parts(mini, Tuning(method="full", blocks=1))
    assert {n.split(".")[1] for n, p in twin.net.named_parameters() if p.requires_grad} == {"0"}
    whole, _ = learner_parts(mini, Tuning(method="full"))
    still = {n for n, p in whole.net.named_parameters() if not p.requires_grad}
    assert still == {"head.weight", "head.bias"}  # features do not follow from the classifier
    assert net is twin.net


def test_the_network_stays_in_eval_mode_and_only_factors_are_a_state(mini: Model) -> None:
    learner = FeatureLearner(*trainable(mini, 2, 2.0)).train()
    assert not any(part.training for part in (learner, *learner.model[0].modules()))
    assert len(learner.state_dict()) == 2 * len(linear_layers(mini))


@pytest.mark.parametrize("method", ["lora", "full"])
def test_tuning_leaves_a_result_that_loads_and_a_record(tmp_path: Path, mini: Model, method: str) -> None:
    heard: list[str] = []
    settings = {**FEW, "method": method, "eps": 2 / 255}
    made = finetune(mini, images(), out=tmp_path, log=heard.append, **settings)
    x = torch.rand(2, 3, 32, 32)
    if method == "lora":
        loaded = robvit.load("robvit-mini", lora=tmp_path / "lora.safetensors")
        assert made.lora is not None
        assert made.lora.settings["data"] == made.record.data["digest"]
        assert made.lora.settings["eps"] == 2 / 255
    else:
        loaded = robvit.load(str(tmp_path / "model.safetensors"))
        assert made.lora is None
    assert torch.equal(loaded(x), made.model(x))
    LinearHead(2 * mini.width, 10, mini.fingerprint()).check(loaded)
    record = Record.load(tmp_path / "record.json")
    assert record.metrics["cosine, original, clean"] == pytest.approx(1, abs=1e-5)
    assert record.metrics["seconds"] > 0
    assert record.history["step"] == [2, 4]
    assert record.findings[0].check == "masked gradients"
    assert len(heard) >= 2


class Stop(Exception):
    pass


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_stopped_tuning_goes_on_to_the_same_bits(
    tmp_path: Path, mini: Model, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        **FEW,
        "method": method,
        "eps": 4 / 255,
        "add_steps": True,
        "reach": 1.0,
        "clean_cosine": 0.99,
        "changes": {"save_seconds": 0, "ema": 0.5},
    }
    whole = finetune(mini, images(), out=tmp_path / "whole", **settings)
    advance = Fit._advance

    def stopping(self: Fit, step: int, loader: Any) -> None:
        if step == 3:
            raise Stop
        advance(self, step, loader)

    monkeypatch.setattr(Fit, "_advance", stopping)
    with pytest.raises(Stop):
        finetune(mini, images(), out=tmp_path / "parts", **settings)
    monkeypatch.undo()
    parts = finetune(mini, images(), out=tmp_path / "parts", **settings)
    for name in ("training/state.safetensors", "training/model.safetensors"):
        one, other = (load_file(tmp_path / folder / name) for folder in ("whole", "parts"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert whole.model.identity() == parts.model.identity()
    assert whole.record.history == parts.record.history
    state = load_file(tmp_path / "whole" / "training/state.safetensors")
    assert state["loss/added"] >= 1  # the guard was asked to doubt everything
    assert state["loss/weight"] != 1
    with pytest.raises(InputError, match="another training"):
        finetune(mini, images(), out=tmp_path / "parts", **{**settings, "rank": 2, "lr": 1.0})


def test_labels_are_not_looked_at(mini: Model) -> None:
    results = [
        finetune(mini, images(labels=labels), **FEW).model.identity()
        for labels in (None, [0, 1] * 12, [0] * 24)
    ]
    assert len(set(results)) == 1
    splits = split(without_labels(images(labels=[0, 1] * 12), 32), Tuning(held_out=4))
    assert (splits.train.kind, len(splits.train), len(splits.validation)) == ("none", 22, 2)
    assert splits.train[0][1] == -1


def test_drawings_leave_their_masks_behind() -> None:
    bare = without_labels(open_data("shapes", limit=3), 32)
    assert bare.kind == "none"
    assert [y for _, y in bare] == [-1, -1, -1]


def test_images_in_memory_serve_as_well(mini: Model) -> None:
    x, _ = images().tensors()
    made = finetune(mini, x, **FEW)
    assert made.record.data["count"] == 22
    assert made.record.data["digest"] != finetune(mini, x.flip(-1), **FEW).record.data["digest"]


def test_tuning_keeps_attacked_features_in_place(mini: Model) -> None:
    made = finetune(
        mini, images(40), steps=24, batch=8, eps=2 / 255, lr=5e-3, held_out=4, validations=2, judge_steps=10
    )
    cosines = made.record.metrics
    before, after = (cosines[f"cosine, {who}, attack of 10 steps"] for who in ("original", "tuned"))
    assert 1 - after < 0.9 * (1 - before)
    assert cosines["cosine, tuned, clean"] > 0.97


def test_the_clean_term_keeps_clean_features(mini: Model) -> None:
    settings = {**FEW, "steps": 8, "batch": 4, "eps": 16 / 255, "lr": 1e-2, "validations": 1}
    free, held, bound = (
        finetune(mini, images(), **settings, **more).record.metrics["cosine, tuned, clean"]
        for more in ({}, {"clean_weight": 5.0}, {"clean_cosine": 0.995})
    )
    assert held > free
    assert bound > free


def test_the_guard_doubts_what_only_short_attacks_leave_in_place(mini: Model) -> None:
    loss = Features(FeatureLearner(*trainable(mini, 2, 2.0)), images(), add_steps=True)
    assert loss.doubt(Scores(1.0, 0.8, 0.7), 0) == ""
    assert loss.doubt(Scores(1.0, 0.999, 0.995), 0) == ""  # nothing moves
    inner = Tuning().recipe(100).inner
    assert loss.short_attack(inner) == (2, 0.75)
    assert "masked" in loss.doubt(Scores(1.0, 0.9, 0.5), 0)
    assert loss.short_attack(inner) == (3, 0.75)


@pytest.mark.parametrize("distance", ["squared", "cosine"])
def test_the_loss_is_the_distance_from_the_originals_clean_features(mini: Model, distance: str) -> None:
    learner = FeatureLearner(*trainable(mini, 2, 2.0))
    loss = Features(learner, images(), distance=distance, clean_weight=0.5)
    x, target = torch.rand(3, 3, 32, 32), None
    target = mini.features(x).detach()
    for part in learner.trained.children():
        nn.init.normal_(part.up, std=0.05)
    moved = torch.rand(3, 3, 32, 32)

    class Fixed:
        more = 0

        def __call__(self, *_: Any) -> torch.Tensor:
            return moved

    def dist(a: torch.Tensor) -> torch.Tensor:
        if distance == "cosine":
            return (1 - F.cosine_similarity(a, target, dim=-1)).mean()
        return (a - target).square().sum(-1).mean()

    expected = dist(learner(moved)) + 0.5 * dist(learner(x))
    torch.testing.assert_close(loss(learner, x, torch.zeros(3), Fixed()), expected)  # type: ignore[arg-type]


def test_minutes_become_steps_and_the_plan_is_kept(
    tmp_path: Path, mini: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = Cost(step=0.2, validation=0.6)
    long = fitted(Tuning(), cost, 60)
    assert (long.batch, long.validations) == (32, 5)
    assert 0.85 * 3600 < cost.total(long) < 3600
    short = fitted(Tuning(), cost, 5)
    assert short.batch < 32
    assert cost.total(short) < 300
    with pytest.raises(InputError, match=r"too few to learn; give \d+ minutes or more"):
        fitted(Tuning(), cost, 0.1)
    with pytest.raises(InputError, match="minutes must be above 0"):
        fitted(Tuning(), cost, 0)
    tuning = replace(Tuning(), held_out=2, judge_steps=2)
    plan = planned(mini, images(), tuning, 1, tmp_path)
    assert plan.steps >= 20
    monkeypatch.setattr("robvit.training.finetune_plan.probe", lambda *_: pytest.fail("measured again"))
    assert planned(mini, images(), tuning, 1, tmp_path) == plan
    (tmp_path / "plan.json").write_text('{"minutes": 1}')
    with pytest.raises(InputError, match="damaged"):
        planned(mini, images(), tuning, 1, tmp_path)


def test_the_command_tunes_factors_and_refuses_options_of_other_methods(tmp_path: Path) -> None:
    command = ["robustify", "robvit-mini", "sample", "--limit", "20", "--out", str(tmp_path / "out")]
    small = ["--method", "lora", "--rank", "2", "--steps", "1", "--batch", "4", "--eps", "2/255"]
    done = CliRunner().invoke(app, [*command, *small, "--set", "judge_steps=1", "--set", "validations=1"])
    assert done.exit_code == 0, done.output
    assert "no secret" in done.output
    assert Record.load(tmp_path / "out" / "record.json").command
    model = robvit.load("robvit-mini", lora=tmp_path / "out" / "lora.safetensors")
    assert model.original_fingerprint == robvit.load("robvit-mini").fingerprint()
    for method, option in (("tokens", "--rank"), ("lora", "--count"), ("lora", "--pool"), ("full", "--psnr")):
        refused = CliRunner().invoke(app, [*command, "--method", method, option, "4"])
        assert refused.exit_code == 2
        assert f"{option} is for" in refused.output
