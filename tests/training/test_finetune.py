"""Label-free fine-tuning: it goes on to the same bits, features stay where they were, masking is noticed."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import robvit
from helpers.lora import changed_lora, images
from helpers.networks import small_net
from helpers.plain_vit import plain_vit
from robvit.attacks.compute import Compute
from robvit.attacks.precision import fused_layers
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.data import ImageDataset, open_data
from robvit.data.dataset import Listing
from robvit.defenses.lora import LoRA
from robvit.defenses.low_rank import linear_layers, trainable
from robvit.errors import InputError, RobvitError
from robvit.files import write_json
from robvit.progress import silent
from robvit.record import Record
from robvit.report.card import model_card
from robvit.tensor_files import read_tensors
from robvit.training.computing import CHOICE, lowered, settled
from robvit.training.features import MOST_ADDED, FeatureLearner, Features
from robvit.training.finetune import Stopwatch, finetune
from robvit.training.finetune_plan import Cost, fitted, planned
from robvit.training.fit import Fit
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import OwnAttack, make_loss
from robvit.training.recipe import changed
from robvit.training.tuning import Tuning, learner_parts, make_learner, split, without_labels
from robvit.training.validation import Scores, judge

FEW: dict[str, Any] = {"steps": 4, "batch": 4, "held_out": 2, "validations": 2, "judge_steps": 3, "rank": 4}


@pytest.fixture(scope="module")
def mini() -> Model:
    return robvit.load("robvit-mini")


@pytest.fixture(scope="module")
def small() -> Model:
    """For what any network shows: an eighth of the work of the bundled one."""
    return Model(small_net("vit"), name="vit_tiny_patch16_224").eval()


@pytest.mark.slow
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


@pytest.mark.slow
def test_sets_of_one_image_are_refused(mini: Model) -> None:
    with pytest.raises(InputError, match="two images or more"):
        finetune(mini, images(1), **FEW)
    with pytest.raises(InputError, match=r"\(B 3 H W\)"):
        finetune(mini, torch.rand(3, 32, 32), **FEW)


def test_no_is_a_precision_on_the_command_line_too() -> None:
    assert Tuning.of({}, ["precision=no"]).recipe(100).precision == "no"


def test_what_is_left_out_is_the_setting_of_the_records(mini: Model) -> None:
    chosen = Tuning().settled(mini)
    assert (chosen.eps, chosen.class_weight, chosen.rank) == (2 / 255, 0.5, 16)
    assert Tuning(class_weight=0.2).settled(mini).class_weight == 0.2
    assert Tuning.of({}, ["class_weight=null"]).settled(mini).class_weight is None
    assert Tuning(loss="task").settled(mini).class_weight is None
    assert Tuning().settled(Model(small_net("swin"))).class_weight is None  # it has no class token
    with pytest.raises(InputError, match=r"a share such as 0\.5, auto, or null for none, got 'half'"):
        Tuning(class_weight="half")


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


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
def test_tuning_leaves_a_result_that_loads_and_a_record(tmp_path: Path, mini: Model, method: str) -> None:
    heard: list[str] = []
    settings = {**FEW, "method": method, "eps": 2 / 255}
    made = finetune(mini, images(), out=tmp_path, log=heard.append, **settings)
    x = torch.rand(2, 3, 32, 32)
    if method == "lora":
        loaded = robvit.load("robvit-mini", lora=tmp_path / "lora.safetensors")
        told = LoRA.load(tmp_path / "lora.safetensors").settings
    else:
        loaded = robvit.load(str(tmp_path / "model.safetensors"))
        told = json.loads(read_tensors(tmp_path / "model.safetensors", "weights")[1]["settings"])
    assert (made.lora is not None) == (method == "lora")
    assert told["data"] == made.record.data["digest"]
    assert (told["eps"], told["method"], told["model"]) == (2 / 255, method, "robvit-mini")
    tuned = {k: v for k, v in made.record.metrics.items() if k.startswith("cosine, tuned, ")}
    assert told["scores"] == tuned
    assert told["findings"][0]["evidence"] == made.record.findings[0].evidence
    assert torch.equal(loaded(x), made.model(x))
    LinearHead(2 * mini.width, 10, mini.fingerprint()).check(loaded)
    record = Record.load(tmp_path / "record.json")
    assert record.metrics["cosine, original, clean"] == pytest.approx(1, abs=1e-5)
    assert record.metrics["seconds"] > 0
    assert record.metrics["processor seconds"] > 0
    assert record.machine["threads"] >= 1
    assert record.history["step"] == [2, 4]
    assert record.findings[0].check == "masked gradients"
    assert len(heard) >= 2


def test_the_cost_of_all_runs_is_added_up(tmp_path: Path) -> None:
    (tmp_path / "seconds.txt").write_text("100.0 40.0\n")
    first = Stopwatch(tmp_path / "seconds.txt", silent)
    sum(range(1_000_000))
    first(0.5)
    again = Stopwatch(tmp_path / "seconds.txt", silent)
    assert 40 < again.processor < 50
    assert again.seconds >= 100 + again.processor - 40.2
    (tmp_path / "seconds.txt").write_text("100.0\n")  # of a run begun before both were kept
    assert Stopwatch(tmp_path / "seconds.txt", silent).processor >= 100


class Stop(Exception):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(("method", "precision"), [("lora", "auto"), ("full", "auto"), ("lora", "bf16")])
def test_a_stopped_tuning_goes_on_to_the_same_bits(
    tmp_path: Path, small: Model, method: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        **FEW,
        "method": method,
        "eps": 4 / 255,
        "add_steps": True,
        "reach": 1.0,
        "clean_cosine": 0.99,
        "changes": {"save_seconds": 0, "ema": 0.5, "precision": precision},
    }
    whole = finetune(small, images(), out=tmp_path / "whole", **settings)
    advance = Fit._advance

    def stopping(self: Fit, step: int, loader: Any) -> None:
        if step == 3:
            raise Stop
        advance(self, step, loader)

    monkeypatch.setattr(Fit, "_advance", stopping)
    with pytest.raises(Stop):
        finetune(small, images(), out=tmp_path / "parts", **settings)
    monkeypatch.undo()
    parts = finetune(small, images(), out=tmp_path / "parts", **settings)
    for name in ("training/state.safetensors", "training/model.safetensors"):
        one, other = (load_file(tmp_path / folder / name) for folder in ("whole", "parts"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert whole.model.identity() == parts.model.identity()
    assert whole.record.history == parts.record.history
    assert whole.record.machine["device"] == "cpu"
    used = whole.record.model["compute"]
    assert used["wanted precision"] == precision
    assert used["precision"] == ("bf16" if precision == "bf16" else "fp32")  # too short to probe
    state = load_file(tmp_path / "whole" / "training/state.safetensors")
    assert state["loss/added"] >= 1  # the guard was asked to doubt everything
    assert state["loss/weight"] != 1
    with pytest.raises(InputError, match="belongs to another run"):
        finetune(small, images(), out=tmp_path / "parts", **{**settings, "rank": 2, "lr": 1.0})


@pytest.mark.slow
def test_a_tuning_goes_on_from_an_earlier_one_towards_the_same_original(tmp_path: Path, small: Model) -> None:
    first = finetune(small, images(), out=tmp_path, **FEW)
    assert first.lora is not None
    learner = make_learner(small, Tuning(**FEW), first.lora)
    loss = make_loss("features", learner, images(), {})
    x, _ = images(2).tensors()
    assert torch.allclose(learner(x), first.model.features(x), atol=1e-5)
    assert torch.equal(loss.target(x, x), small.features(x))  # the aim is the original, not the start
    second = finetune(small, images(), lora=tmp_path / "lora.safetensors", **FEW)
    assert second.lora is not None
    costs = [one.lora.settings["processor seconds"] for one in (first, second) if one.lora]
    before = {"digest": first.lora.digest(), "steps": FEW["steps"], "processor seconds": costs[0]}
    assert second.lora.settings["start"] == second.record.model["settings"]["start"] == before
    third = finetune(small, images(), lora=second.lora, **FEW)
    before = third.record.model["settings"]["start"]
    assert (before["steps"], before["processor seconds"]) == (2 * FEW["steps"], sum(costs))
    untold = replace(first.lora, settings={"steps": 7})
    fourth = finetune(small, images(), lora=untold, **FEW).record.model["settings"]["start"]
    assert (fourth["steps"], fourth["processor seconds"]) == (7, None)
    assert len({one.model.identity() for one in (first, second, third)}) == 3
    with pytest.raises(InputError, match="have rank 4"):
        finetune(small, images(), lora=first.lora, **{**FEW, "rank": 2})
    with pytest.raises(InputError, match="only the method lora"):
        finetune(small, images(), lora=first.lora, **{**FEW, "method": "full"})


def test_factors_with_normalisations_are_taken_up(mini: Model) -> None:
    start = changed_lora(mini, rank=3, norms=True)
    twin, _ = trainable(mini, 3, 8.0, norms=True, start=start)
    x, _ = images(2).tensors()
    assert torch.allclose(twin.features(x), start.merge(mini).features(x), atol=1e-5)


def test_what_was_chosen_for_a_run_is_kept_when_it_is_taken_up(tmp_path: Path, mini: Model) -> None:
    write_json(tmp_path / CHOICE, asdict(Compute("auto", "bf16/plain", 1, "cpu")))
    tuning = Tuning(**FEW).settled(mini)
    learner = make_learner(mini, tuning)
    found = settled(learner, without_labels(images(), 32), tuning.recipe(20), 4, tmp_path)
    assert found.precision == "bf16/plain"
    layers = fused_layers(mini)
    with lowered(found, mini):
        assert [layer.fused_attn for layer in layers] == [False] * len(mini.net.blocks)
        assert mini(images(1).tensors()[0]).dtype is torch.bfloat16
    assert all(layer.fused_attn for layer in layers)


@pytest.mark.slow
def test_labels_are_not_looked_at(small: Model) -> None:
    results = [
        finetune(small, images(labels=labels), **FEW).model.identity()
        for labels in (None, [0, 1] * 12, [0] * 24)
    ]
    assert len(set(results)) == 1
    splits = split(without_labels(images(labels=[0, 1] * 12), 32), Tuning(held_out=4))
    assert (splits.train.kind, len(splits.train), len(splits.validation)) == ("none", 22, 2)
    assert splits.train[0][1] == -1


def test_drawings_leave_their_masks_behind() -> None:
    bare = without_labels(open_data("shapes", limit=3), 32)
    assert bare.kind == "none"
    assert [bare[i][1] for i in range(3)] == [-1, -1, -1]


@pytest.mark.slow
def test_images_in_memory_serve_as_well(small: Model) -> None:
    x, _ = images().tensors()
    made = finetune(small, x, **FEW)
    assert made.record.data["count"] == 22
    assert made.record.data["digest"] != finetune(small, x.flip(-1), **FEW).record.data["digest"]


@pytest.mark.slow
def test_a_share_of_each_batch_comes_from_a_second_set(small: Model, tmp_path: Path) -> None:
    extra = without_labels(images(10), 32)
    both = finetune(small, images(), extra=extra, extra_share=0.5, out=tmp_path, **FEW)
    assert both.record.history["step"] == [2, 4]  # as many steps as with one set
    assert both.record.data["extra"] == {"spec": "", "count": 10, "digest": extra.digest()}
    assert both.lora is not None
    assert both.lora.settings["extra"]["count"] == 10
    assert "and | 50% of each batch from memory, 10 images" in model_card([both.record])
    assert both.model.identity() != finetune(small, images(), **FEW).model.identity()
    for wrong in ({"extra": extra}, {"extra_share": 0.5}):
        with pytest.raises(InputError, match=r"extra images and extra_share=0\.5, say, go together"):
            finetune(small, images(), **FEW, **wrong)
    with pytest.raises(InputError, match="extra_share is for the loss features"):
        Tuning(loss="trades", extra_share=0.5)


@pytest.mark.slow
def test_tuning_keeps_attacked_features_in_place(mini: Model) -> None:
    made = finetune(
        mini, images(40), steps=24, batch=8, eps=2 / 255, lr=5e-3, held_out=4, validations=2, judge_steps=10
    )
    cosines = made.record.metrics
    before, after = (cosines[f"cosine, {who}, attack of 10 steps"] for who in ("original", "tuned"))
    assert 1 - after < 0.9 * (1 - before)
    assert cosines["cosine, tuned, clean"] > 0.9


@pytest.mark.slow
def test_the_clean_term_keeps_clean_features(mini: Model) -> None:
    settings = {**FEW, "steps": 8, "batch": 4, "eps": 16 / 255, "lr": 1e-2, "validations": 1}
    wishes: list[dict[str, float]] = [
        {},
        {"clean_weight": 5.0},
        {"clean_cosine": 0.995},
        {"clean_cosine": 0.9},
    ]
    records = [finetune(mini, images(), **settings, **more).record for more in wishes]
    free, held, bound, _ = (record.metrics["cosine, tuned, clean"] for record in records)
    assert held > free
    assert bound > free
    assert [len(record.findings) for record in records] == [1, 1, 2, 2]
    for record, asked in zip(records[2:], (0.995, 0.9), strict=True):
        kept, finding = record.metrics["cosine, tuned, clean"], record.findings[1]
        assert f"kept a cosine of {kept:.3f} of the {asked:g} asked for" in finding.evidence
        assert finding.status == ("green" if round(kept, 3) >= asked else "red")


def test_the_guard_doubts_what_only_short_attacks_leave_in_place(mini: Model) -> None:
    loss = Features(FeatureLearner(*trainable(mini, 2, 2.0)), images(), add_steps=True)
    assert loss.doubt(Scores(1.0, 0.8, 0.7), 0) == ""
    assert loss.doubt(Scores(1.0, 0.999, 0.995), 0) == ""  # nothing moves
    inner = Tuning().recipe(100).inner
    assert loss.short_attack(inner) == (2, 0.75)
    assert "masked" in loss.doubt(Scores(1.0, 0.9, 0.5), 0)
    assert loss.short_attack(inner) == (3, 0.5)


@pytest.mark.parametrize("share", [None, 0.5])
@pytest.mark.parametrize("distance", ["squared", "cosine"])
def test_the_loss_is_the_distance_from_the_originals_clean_features(
    mini: Model, distance: str, share: float | None
) -> None:
    learner = FeatureLearner(*trainable(mini, 2, 2.0))
    loss = Features(learner, images(), distance=distance, clean_weight=0.5, class_weight=share)
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
        each = (a - target).square().sum(-1)
        if distance == "cosine":
            each = 1 - F.cosine_similarity(a, target, dim=-1)
        return each.mean() if share is None else (each[:, 0].mean() + each[:, 1:].mean()) / 2

    expected = dist(learner(moved)) + 0.5 * dist(learner(x))
    torch.testing.assert_close(loss(learner, x, torch.zeros(3), Fixed()), expected)  # type: ignore[arg-type]


def test_a_large_budget_gets_more_inner_steps_unless_they_are_given(mini: Model) -> None:
    assert [Tuning(eps=n / 255).attack_steps for n in (1, 2, 4, 8)] == [2, 2, 3, 5]
    given = Tuning(eps=4 / 255, inner_steps=2).settled(mini)
    assert (given.inner_steps, given.recipe(100).inner.steps) == (2, 2)
    assert Tuning(eps=4 / 255).settled(mini).recipe(100).inner.steps == 3


@pytest.mark.slow
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
    with pytest.raises(InputError, match=r"or smaller images \(--img-size 70\)"):
        fitted(Tuning(), cost, 0.5, size=(112, 14))
    with pytest.raises(InputError, match="minutes must be above 0"):
        fitted(Tuning(), cost, 0)
    tuning = Tuning(held_out=2, judge_steps=2).settled(mini)
    plan = planned(mini, images(), tuning, 10, tmp_path)
    assert plan.steps >= 20
    monkeypatch.setattr("robvit.training.finetune_plan.probe", lambda *_: pytest.fail("measured again"))
    assert planned(mini, images(), tuning, 10, tmp_path) == plan
    for other in ({"eps": 4 / 255}, {"method": "full"}, {"rank": 2}):
        with pytest.raises(pytest.fail.Exception, match="measured again"):
            planned(mini, images(), replace(tuning, **other), 10, tmp_path)
    with pytest.raises(InputError, match="got 60 steps and 10 minutes; give one"):
        planned(mini, images(), replace(tuning, steps=60), 10, tmp_path)
    (tmp_path / "plan.json").write_text('{"minutes": 10}')
    with pytest.raises(InputError, match="damaged"):
        planned(mini, images(), tuning, 10, tmp_path)


@pytest.mark.slow
def test_the_command_tunes_factors_and_refuses_options_of_other_methods(tmp_path: Path) -> None:
    command = ["robustify", "robvit-mini", "sample", "--limit", "20", "--out", str(tmp_path / "out")]
    small = ["--method", "lora", "--rank", "2", "--steps", "1", "--batch", "4", "--eps", "2/255"]
    done = CliRunner().invoke(app, [*command, *small, "--set", "judge_steps=1", "--set", "validations=1"])
    assert done.exit_code == 0, done.output
    assert "no secret" in done.output
    assert "masked gradients: " in done.output or "warning: gradients may be masked" in done.output
    assert Record.load(tmp_path / "out" / "record.json").command
    model = robvit.load("robvit-mini", lora=tmp_path / "out" / "lora.safetensors")
    assert model.original_fingerprint == robvit.load("robvit-mini").fingerprint()
    both = CliRunner().invoke(app, [*command, "--method", "lora", "--steps", "150", "--minutes", "1"])
    assert both.exit_code == 2
    assert "--steps and --minutes" in both.output
    for method, option in (("tokens", "--rank"), ("lora", "--count"), ("lora", "--pool"), ("full", "--psnr")):
        refused = CliRunner().invoke(app, [*command, "--method", method, option, "4"])
        assert refused.exit_code == 2
        assert f"{option} is for" in refused.output


def passes_of_a_step(mini: Model, **settings: Any) -> dict[str, list[Any]]:
    """What the learner and the original are asked in one step: whether each pass is recorded for gradients,
    how many tokens it sees, and whether factors are open to gradients then."""
    tuning = Tuning(rank=2, **settings).settled(mini)
    learner = make_learner(mini, tuning)
    recipe = tuning.recipe(100)
    loss = make_loss(recipe.loss, learner, images(), recipe.loss_settings)
    assert isinstance(loss, Features)
    seen: dict[str, list[Any]] = {"original": [], "learner": []}
    for name, one in (("original", loss.original.args[0]), ("learner", learner)):
        open_to = next(learner.trained.parameters())

        def note(_: Any, args: Any, __: Any, name: str = name, p: Any = open_to) -> None:
            seen[name].append((torch.is_grad_enabled(), args[0].shape[1], p.requires_grad))

        one.model[0].net.blocks[0].register_forward_hook(note)
    attack = InnerAttack(recipe.inner, 2 / 255, 1 / 255, seed=3)
    loss(learner, torch.rand(4, 3, 32, 32), torch.zeros(4), attack).backward()
    return seen


def test_a_step_wastes_no_pass(mini: Model) -> None:
    seen = passes_of_a_step(mini)
    assert seen["original"] == [(False, 65, True)]  # once, without gradients
    # Two of the attack, in which factors get no gradients, and one that they learn from.
    assert seen["learner"] == [(True, 65, False), (True, 65, False), (True, 65, True)]
    kept = passes_of_a_step(mini, keep=0.25, clean_weight=1.0)
    assert [tokens for _, tokens, _ in kept["original"]] == [17]
    assert [tokens for _, tokens, _ in kept["learner"]] == [17] * 4  # and the clean term


def test_the_original_and_the_learner_keep_the_same_tokens(mini: Model) -> None:
    learner = FeatureLearner(*trainable(mini, 2, 2.0))
    x = torch.rand(3, 3, 32, 32)

    class Fixed:
        more, seed = 0, 1

        def __call__(self, *_: Any) -> torch.Tensor:
            return x

    values = [
        float(Features(learner, images(), keep=keep)(learner, x, torch.zeros(3), Fixed()).detach())  # type: ignore[arg-type]
        for keep in (1.0, 0.3)
    ]
    assert values == [0, 0]
    assert learner(x).shape[1] == 65  # nothing is left behind
    with pytest.raises(InputError, match="keep must be above 0"):
        Features(learner, images(), keep=0)
    with pytest.raises(RobvitError, match="plain ViTs"):
        Features(FeatureLearner(*trainable(Model(small_net("cait")), 2, 2.0)), images(), keep=0.5)


@pytest.mark.slow
def test_keeping_every_token_changes_no_bit_and_half_of_them_teaches_too() -> None:
    plain = Model(plain_vit())
    whole, same, half = (
        finetune(plain, images(), **FEW, **more) for more in ({}, {"keep": 1.0}, {"keep": 0.5})
    )
    assert whole.model.identity() == same.model.identity() != half.model.identity()
    assert half.model.features(torch.rand(1, 3, 32, 32)).shape[1] == 65


class Hiding(nn.Module):
    """Features that move only on a narrow way between small and large perturbations of a grey image: two
    large steps jump over it to where nothing moves, and many small ones find it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        eps = 8 / 255
        shift = (x - 0.5).flatten(1).mean(1) / eps  # (B,) from -1 to 1
        angle = 3 * (0.3 - (shift - 0.3).abs()).clamp(min=0)
        return torch.stack((angle.cos(), angle.sin()), dim=1)[:, None]


def test_the_guard_adds_steps_until_its_attack_finds_what_was_hidden() -> None:
    grey = ImageDataset(Listing(["a", "b"], torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)), [0, 1])
    loss = Features(Hiding(), grey)
    recipe = Tuning(eps=8 / 255, inner_steps=2, judge_steps=20).recipe(100)
    doubts = []
    for _ in range(MOST_ADDED + 1):
        seen = judge(Hiding(), loss, grey, recipe, Accelerator(cpu=True))
        doubts.append(loss.doubt(seen, 0))
        if not doubts[-1]:
            break
    assert "one step more, and shorter ones" in doubts[0]
    assert doubts[-1] == ""  # the longer attack of shorter steps is not fooled
    assert 1 <= loss.added == len(doubts) - 1 <= MOST_ADDED
    steps, size = loss.short_attack(recipe.inner)
    assert steps * size == pytest.approx(2 * 0.75)


def judged_as(monkeypatch: pytest.MonkeyPatch, *seen: Scores) -> None:
    """Have the validations of a tuning see this, one after the other; its end is judged as ever."""
    told = iter(seen)
    monkeypatch.setattr("robvit.training.fit.judge", lambda *_: next(told))


def test_weights_that_hide_are_not_the_best(small: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = Scores(1.0, 0.98, 0.9)  # the training's attack hardly moves it, a longer one five times as far
    judged_as(monkeypatch, Scores(1.0, 0.7, 0.6), hidden, Scores(1.0, 0.75, 0.65), hidden)
    record = finetune(small, images(), **{**FEW, "validations": 4}).record
    assert record.metrics["best step"] == 3
    judged_as(monkeypatch, hidden, Scores(1.0, 0.8, 0.7), hidden, hidden)
    assert finetune(small, images(), **{**FEW, "validations": 4}).record.metrics["best step"] == 2


def test_weights_that_keep_the_clean_cosine_are_the_best(
    small: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, near = Scores(0.9, 0.85, 0.8), Scores(0.975, 0.7, 0.6)
    few = {**FEW, "validations": 4, "clean_cosine": 0.97}
    judged_as(monkeypatch, far, near, far, far)
    assert finetune(small, images(), **few).record.metrics["best step"] == 2
    judged_as(monkeypatch, far, far, Scores(0.95, 0.9, 0.85), far)
    record = finetune(small, images(), **{**few, "clean_cosine": 0.99999, "lr": 0.1}).record
    assert record.metrics["best step"] == 3  # none keeps it, which is told
    assert record.findings[1].status == "red"
    assert "of the 0.99999 asked for; tune for longer" in record.findings[1].evidence


@pytest.mark.slow
def test_what_the_guard_did_is_in_the_record(mini: Model) -> None:
    record = finetune(mini, images(), **FEW, reach=1.0, eps=4 / 255).record
    assert record.metrics["inner steps added"] == 2
    still = finetune(mini, images(), **FEW, reach=1.0, eps=4 / 255, add_steps=False).record
    assert still.metrics["inner steps added"] == 0
    assert {record.findings[0].status, still.findings[0].status} <= {"amber", "red"}


class Flat(nn.Module):
    """Features that move with one pixel of a grey image, and only on one side: half of all starts see it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angle = ((x[:, 0, 0, 0] - 128 / 255) * 255 / 4).clamp(min=0)
        return torch.stack((angle.cos(), angle.sin()), dim=1)[:, None]


def test_a_second_start_finds_what_the_first_did_not() -> None:
    pixels = torch.full((8, 3, 32, 32), 128, dtype=torch.uint8)
    pixels[:, 1, 0, 0] += torch.arange(8, dtype=torch.uint8)  # each image has starts of its own
    grey = ImageDataset(Listing([str(i) for i in range(8)], pixels), list(range(8)))
    loss = Features(Flat(), grey)
    seen = [
        judge(Flat(), loss, grey, Tuning(eps=4 / 255, **more).recipe(100), Accelerator(cpu=True))
        for more in ({"judge_starts": 1}, {})
    ]
    assert seen[1].robust < seen[0].robust - 0.05
    assert (seen[1].clean, seen[1].one_step) == (seen[0].clean, seen[0].one_step)


def test_the_judging_attack_is_longer_where_eps_is_large(mini: Model) -> None:
    assert [Tuning(eps=n / 255).long_attack for n in (1, 2, 4, 8)] == [(10, 1), (10, 1), (20, 2), (20, 2)]
    chosen = Tuning(eps=4 / 255, judge_steps=5).settled(mini)
    assert (chosen.judge_steps, chosen.judge_starts) == (5, 2)
    assert chosen.recipe(100).judge_starts == 2
    with pytest.raises(InputError, match="judge_starts must be 1 or more, got 0"):
        Tuning(judge_starts=0)
    one = Tuning(judge_starts=1).settled(mini).recipe(100)
    assert (
        one.digest()
        == changed(one, {"judge_starts": 1}).digest()
        != changed(one, {"judge_starts": 2}).digest()
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("loss", ["task", "trades"])
def test_with_labels_the_heads_loss_is_learned(tmp_path: Path, mini: Model, method: str, loss: str) -> None:
    torch.manual_seed(0)
    head = LinearHead(2 * mini.width, 2, mini.fingerprint())
    settings = {**FEW, "method": method, "loss": loss}
    made = finetune(mini.replace(head=head), images(labels=[0, 1] * 12), out=tmp_path, **settings)
    assert made.model.head is not None
    assert torch.equal(made.model.head.linear.weight, head.linear.weight)
    assert {"accuracy, tuned, clean", "accuracy, tuned, attack of 2 steps"} <= made.record.metrics.keys()
    assert "Labels were used." in made.record.notes
    name = "robvit-mini" if method == "lora" else str(tmp_path / "model.safetensors")
    factors = tmp_path / "lora.safetensors" if method == "lora" else None
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(robvit.load(name, lora=factors, head=head)(x), made.model(x))


def test_a_supervised_loss_needs_labels_and_their_classes(mini: Model) -> None:
    with pytest.raises(InputError, match="needs a dataset with labels, got none"):
        finetune(mini, images(), **FEW, loss="task")
    with pytest.raises(InputError, match="data's 2 classes, robvit-mini has 10"):
        finetune(mini, images(labels=[0, 1] * 12), **FEW, loss="trades")
    with pytest.raises(InputError, match="keep is for the loss features"):
        Tuning(loss="task", keep=0.5)
    with pytest.raises(InputError, match="loss must be features, task or trades"):
        Tuning(loss="far")


class Jumped(nn.Module):
    """A classifier that is wrong beyond half a grey level of brightness, and right again beyond one: a full
    step lands where it is right, and shorter ones stop where it is wrong."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = (x - 128 / 255).flatten(1).mean(1) * 255
        wrong = 1 - (shift - 0.75).abs() / 0.25
        return torch.stack((-wrong.clamp(min=-3), wrong.clamp(min=-3)), dim=1)


def test_with_labels_too_the_trainings_own_attack_is_compared() -> None:
    grey = ImageDataset(
        Listing(["a", "b"], torch.full((2, 3, 32, 32), 128, dtype=torch.uint8), [0, 0], classes=["a", "b"]),
        [0, 1],
    )
    recipe = Tuning(loss="task", eps=2 / 255, step=0.19).recipe(100)
    plain = make_loss("pgd_at", Jumped(), grey, {})
    own = OwnAttack(plain)
    assert own.short_attack(recipe.inner) == (2, 0.19)
    alone, both = (judge(Jumped(), loss, grey, recipe, Accelerator(cpu=True)) for loss in (plain, own))
    assert (alone.one_step, both.one_step) == (1, 0)
    assert "60.0% are correct after the training's own attack" in own.doubt(Scores(0.9, 0.6, 0.1), 2)
    assert "60.0% are correct after one step" in plain.doubt(Scores(0.9, 0.6, 0.1), 2)


@pytest.mark.slow
def test_normalisations_learn_along_and_are_kept_in_the_file(tmp_path: Path, mini: Model) -> None:
    settings = {**FEW, "norms": True, "lr": 1e-2}
    made = finetune(mini, images(), out=tmp_path, **settings)
    assert made.lora is not None
    assert set(made.lora.whole) == {
        n for n, _ in mini.net.named_parameters() if "norm" in n and not n.startswith("fc_norm")
    }
    assert not torch.equal(made.lora.whole["norm.weight"], mini.net.get_parameter("norm.weight"))
    loaded = robvit.load("robvit-mini", lora=tmp_path / "lora.safetensors")
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(loaded(x), made.model(x))
    assert "parameters of normalisations" in str(made.lora)
    with pytest.raises(InputError, match="norms is for the method lora"):
        Tuning(method="full", norms=True)
