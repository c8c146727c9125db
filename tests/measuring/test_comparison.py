"""Scaled against unscaled: judged on the unscaled model, at equal cost, pair by pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import robvit
from helpers.planted import planted
from robvit.attacks import find_scales, run
from robvit.attention import attention_layers
from robvit.data import ImageDataset, open_data
from robvit.errors import InputError
from robvit.measuring.comparison import (
    Comparison,
    ScalingMethod,
    compare_scaling,
    control_of,
)
from robvit.record import Trial
from robvit.threat import Threat
from robvit.verdict import Verdict

LINF = Threat("linf", 8 / 255)
BATCH = ScalingMethod(fit="batch")


class _Few:
    """Images in memory, as much of a set as a comparison needs."""

    kind = "labels"

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def batches(self, size: int) -> Any:
        return zip(self.x.split(size), self.y.split(size), strict=True)


def few(x: torch.Tensor, y: torch.Tensor) -> ImageDataset:
    """As much of a dataset as a comparison needs."""
    return cast(ImageDataset, _Few(x, y))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the gradient is zero")
def test_on_the_planted_model_the_effect_appears() -> None:
    net, x, y = planted(1e4)
    found = compare_scaling(
        net,
        few(x, y),
        Threat("linf", 16 / 255),
        settings={"steps": 5},
        method=ScalingMethod(fit="batch", settings={"starts": 4}),
    )
    assert sum(found.plain.correct) == sum(found.control.correct) == 8
    assert sum(found.scaled.correct) == sum(found.both) == 0
    assert found.claim().verdict is Verdict.SEEN
    assert found.claim("it helps", 4.9).paper == 4.9
    assert all(0 < v <= 1 for v in found.scales[0])


@pytest.mark.slow
@pytest.mark.parametrize(("base", "settings"), [("pgd", {"steps": 4}), ("fgsm", {})])
@pytest.mark.parametrize("name", ["aas", "aas_uniform"])
def test_an_image_that_withstands_gets_no_fewer_passes_from_the_control(
    base: str, settings: dict[str, Any], name: str
) -> None:
    """With no budget nothing breaks, so what is spent is what is allowed."""
    model = robvit.load("robvit-mini")
    x, y = open_data("sample", limit=2).tensors()
    y = model(x).argmax(1)
    way = ScalingMethod(
        name, fit="batch", settings={"factors": (1.0, 0.1, 0.01)} if name == "aas_uniform" else {"steps": 3}
    )
    found = compare_scaling(model, few(x, y), Threat("linf", 0.0), base=base, settings=settings, method=way)
    spent = {n: t.forward + t.backward for n, t in vars(found).items() if isinstance(t, Trial)}
    ours = spent["plain"] + spent["scaled"]
    assert ours <= spent["control"] <= ours + 2 * 8  # a step or two more
    assert found.claim().verdict is Verdict.BOUNDED


@pytest.mark.slow
def test_outcomes_are_the_unscaled_models_and_the_scaled_models_are_apart() -> None:
    model = robvit.load("robvit-mini-robust")
    x, y = open_data("sample", limit=8).tensors()
    scales = [0.05] * len(attention_layers(model))
    found = compare_scaling(
        model, few(x, y), LINF, settings={"steps": 3}, method=ScalingMethod(scales=scales), batch=5
    )
    assert found.clean.correct == (model(x).argmax(1) == y).tolist()
    assert len(found.scales) == 2
    for trial in found.trials[1:]:
        assert not any(r and not c for r, c in zip(trial.correct, found.clean.correct, strict=True))
    parts = [
        run("aas", model, a, b, LINF, scales=scales, steps=3)
        for a, b in zip(x.split(5), y.split(5), strict=True)
    ]
    assert found.scaled.correct == [not s for part in parts for s in part.success.tolist()]
    assert found.own is not None
    assert found.own[0] < 1  # of images that the model itself gets right
    assert found.control.control
    assert found.both == [a and b for a, b in zip(found.plain.correct, found.scaled.correct, strict=True)]


@pytest.mark.slow
def test_scales_are_fitted_once_on_training_images_and_controls_stand_beside_the_plain_attack(
    tmp_path: Path,
) -> None:
    model = robvit.load("robvit-mini-robust")
    images, train = open_data("sample", limit=6), open_data("sample", split="train", limit=6)
    others = {"random scales": [[0.3, 1.0, 1e-7, 0.6]], "two": [[0.5] * 4, [0.1] * 4]}
    given: dict[str, Any] = {"settings": {"steps": 2}, "train": train, "others": others, "batch": 4}
    found = compare_scaling(model, images, LINF, memory=tmp_path, **given)
    expected = find_scales(model, train.batches(4), seed=0)
    assert found.searches == [expected]
    assert set(found.scales) == {expected.values}
    assert found.scaled.forward > expected.forward  # the search is in the cost
    named = [("clean", ""), ("pgd", ""), ("aas", ""), ("pgd", "same cost")]
    drawn = ["random scales", "two, draw 1", "two, draw 2"]
    named += [("aas", f"{name}, after plain") for name in drawn]
    assert [(trial.attack, trial.variant) for trial in found.trials] == named
    assert all(trial.control for draws in found.others.values() for trial in draws)
    claim = found.claim("over random", over="random scales")
    assert (claim.text, claim.seeds) == ("over random", 1)
    assert found.claim("over two", over="two").seeds == 2
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = compare_scaling(model, images, LINF, memory=tmp_path, **given)
    assert again == found
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept
    with pytest.raises(InputError, match="fitted on training images"):
        compare_scaling(model, images, LINF)


def test_verdicts_need_more_than_chance() -> None:
    def says(both: list[bool], control: list[bool]) -> Verdict:
        plain = Trial("pgd", None, {}, both, [], [])
        return Comparison(plain, plain, plain, replace(plain, correct=control), [], None).claim().verdict

    yes, no = [True] * 8, [False] * 8
    assert says(no, yes) is Verdict.SEEN
    assert says(yes, no) is Verdict.OPPOSITE
    assert says(no[:3] + yes, yes + yes[:3]) is Verdict.BOUNDED


def test_controls_go_on_with_what_the_plain_attack_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked: list[tuple[str, list[int]]] = []

    def tracked(name: str, model: Any, x: torch.Tensor, y: torch.Tensor, *rest: Any, **given: Any) -> Any:
        outcome = run(name, model, x, y, *rest, **given)
        attacked.append((name, x.flatten(1).sum(1).tolist()))
        return outcome

    monkeypatch.setattr("robvit.measuring.batches.run", tracked)
    model, images = robvit.load("robvit-mini-robust"), open_data("sample", limit=12)
    way, others = ScalingMethod(scales=[0.5] * 4), {"random": [[0.3] * 4, [0.6] * 4]}
    given: dict[str, Any] = {"settings": {"steps": 2}, "method": way, "others": others}
    found = compare_scaling(model, images, LINF, **given)
    plain, scaled, *controls = attacked
    assert len(scaled[1]) == len(plain[1]) == sum(found.clean.correct)
    assert [len(x) for _, x in controls] == [sum(found.plain.correct)] * 3
    assert sum(found.plain.correct) < sum(found.clean.correct)
    for trial in (found.control, *found.others["random"]):
        assert not any(c and not p for c, p in zip(trial.correct, found.plain.correct, strict=True))
        assert trial.forward > found.plain.forward  # the plain attack is in the cost


def test_several_draws_widen_the_interval_where_they_differ() -> None:
    plain = Trial("pgd", None, {}, [True] * 60, [], [])
    few, many = (replace(plain, correct=[n >= broken for n in range(60)]) for broken in (5, 25))
    ours = Comparison(plain, plain, replace(plain, correct=[n >= 15 for n in range(60)]), plain, [], None)
    one, alike, apart = (
        replace(ours, others={"random": draws}).claim(over="random")
        for draws in ([few], [few] * 3, [few, many, few])
    )
    assert one.verdict is alike.verdict is Verdict.SEEN
    assert apart.verdict is Verdict.BOUNDED
    assert apart.high - apart.low > alike.high - alike.low


def test_the_cost_of_a_search_is_shared_out_among_as_many_images_as_there_are_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("robvit.measuring.comparison.SHARED", 2)
    lengths: dict[int, set[float]] = {}
    model, train = robvit.load("robvit-mini"), open_data("sample", split="train", limit=4)
    for count in (1, 2, 4):

        def noted(base: str, settings: Any, threat: Any, passes: float, count: int = count) -> Any:
            lengths.setdefault(count, set()).add(passes)
            return control_of(base, settings, threat, passes)

        monkeypatch.setattr("robvit.measuring.comparison.control_of", noted)
        x, _ = open_data("sample", limit=count).tensors()
        images = few(x, model(x).argmax(1))
        compare_scaling(model, images, Threat("linf", 0.0), settings={"steps": 1}, train=train)
    assert lengths[2] == lengths[4]  # the same control, which comparisons can share
    assert min(lengths[1]) > max(lengths[2])  # one image bears all of it


def test_a_model_that_is_always_wrong_has_nothing_to_break() -> None:
    model = robvit.load("robvit-mini")
    x, _ = open_data("sample", limit=2).tensors()
    wrong = (model(x).argmax(1) + 1) % 10
    found = compare_scaling(model, few(x, wrong), LINF, settings={"steps": 1}, method=BATCH)
    assert [trial.correct for trial in found.trials] == [[False, False]] * 4
    assert [trial.forward for trial in found.trials] == [2, 0, 0, 0]


def test_attacks_that_take_no_restarts_have_no_control() -> None:
    assert control_of("pgd", {"steps": 100}, LINF, 223) == ("pgd", {"restarts": 1, "steps": 111})
    assert control_of("gama", {"steps": 10}, LINF, 65) == ("gama", {"restarts": 3, "steps": 11})
    with pytest.raises(InputError, match=r"steps and restarts, got autoattack.*pgd"):
        control_of("autoattack", {}, LINF, 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"steps": 5}, {"space": "log", "starts": 2, "steps": 5}], ids=["linear", "log"]
)
def test_without_underflow_scaling_is_never_reported_better_than_its_control(
    settings: dict[str, Any],
) -> None:
    model = robvit.load("robvit-mini-robust")
    images, way = open_data("sample", limit=20), ScalingMethod(fit="batch", settings=settings)
    for base, given in (("fgsm", {}), ("pgd", {"steps": 4}), ("gama", {"steps": 4})):
        found = compare_scaling(model, images, LINF, base=base, settings=given, method=way)
        assert found.claim().verdict is not Verdict.SEEN, str(found.claim())
