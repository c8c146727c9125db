"""Patches and universal perturbations: their budget, and closed forms where a linear model has one."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

from helpers.attack_cases import images, labelled, linear, setting, tiny
from robvit.attacks import ATTACKS, check_adversarial, feature_patch, feature_universal, patch, run, universal
from robvit.attacks.patch import best_places
from robvit.errors import BrokenAttack, InputError
from robvit.threat import Threat

SQUARE = Threat("patch", 3)


def test_the_size_of_a_change_is_the_side_of_the_least_square_around_it() -> None:
    delta = torch.zeros(4, 3, 7, 9)
    delta[1, 0, 2, 3] = 1e-8
    delta[2, 1, 1:4, 5] = 0.1
    delta[3, 2, 0, 0] = delta[3, 0, 2, 8] = -1
    assert SQUARE.size(delta).tolist() == [0, 1, 3, 9]
    x = torch.full_like(delta, 0.5)
    check_adversarial(x[:3], x[:3] + delta[:3], SQUARE)
    with pytest.raises(BrokenAttack, match="image 0 must stay within patch 3, got patch 9"):
        check_adversarial(x[3:], (x + delta)[3:].clamp(0, 1), SQUARE)


def test_a_projection_keeps_the_square_of_the_largest_change() -> None:
    x, adv = torch.zeros(2, 3, 6, 6), torch.full((2, 3, 6, 6), 0.1)
    adv[0, :, 4:, 1:3] = 1.5
    adv[1, :, 0, 5] = 0.9
    near = SQUARE.project(x, adv)
    check_adversarial(x, near, SQUARE)
    assert torch.equal(near[0, :, 4:, 1:3], torch.ones(3, 2, 2))
    assert torch.equal(near[1, :, :3, 3:], adv[1, :, :3, 3:])
    assert float((near - x)[1].abs().sum()) == pytest.approx(float(adv[1, :, :3, 3:].sum()))
    assert torch.equal(Threat("patch", 0).project(x, adv), x)
    assert torch.equal(Threat("patch", 50).project(x, adv), adv.clamp(0, 1))


@pytest.mark.parametrize("side", [-1, 2.5, float("inf")])
def test_a_patch_has_a_side_of_whole_pixels(side: float) -> None:
    with pytest.raises(InputError, match="whole pixels"):
        Threat("patch", side)


def test_the_worst_patch_of_a_linear_model_is_found() -> None:
    x, y = setting()
    model, weight = linear(2, 100.0)
    slope = (weight[1] - weight[0]).view(1, 3, 8, 8)
    sums = F.avg_pool2d(slope.abs().sum(1, keepdim=True), 3, stride=1, divisor_override=1)
    adv = patch(model, x, y, SQUARE)
    rise = (model(adv) - model(x)) @ torch.tensor([-1.0, 1.0])
    assert rise.tolist() == pytest.approx([0.5 * float(sums.max())] * 2, rel=1e-4)
    others = best_places(x[:1], slope, 3, 3)
    assert len({tuple(place[0].tolist()) for place in others}) == 3


def test_success_turns_with_the_side_of_the_patch() -> None:
    x, y = setting()
    _, weight = linear(2, 0.0)
    slope = (weight[1] - weight[0]).view(1, 3, 8, 8).abs().sum(1, keepdim=True)
    reach = {s: 0.5 * float(F.avg_pool2d(slope, s, stride=1, divisor_override=1).max()) for s in (2, 3)}
    model, _ = linear(2, (reach[2] + reach[3]) / 2)
    for side, success in ((2, False), (3, True)):
        outcome = run("patch", model, x, y, Threat("patch", side))
        assert outcome.success.tolist() == [success] * 2
        assert int(outcome.distance.max()) <= side


def test_a_universal_change_is_one_for_all_images() -> None:
    model, x = tiny().eval(), 0.2 + 0.6 * images()
    y = labelled(model, x)
    small = universal(model, x, y, Threat("linf", 0.1), steps=20) - x
    torch.testing.assert_close(small, small[:1].expand_as(small))
    stuck = universal(model, x, y, SQUARE, steps=20)
    contents = torch.stack(
        [one[:, changed.any(1)][:, :, changed.any(0)] for one, changed in places(x, stuck)]
    )
    assert contents.shape == (8, 3, 3, 3)
    assert torch.equal(contents, contents[:1].expand_as(contents))
    assert len({tuple(changed.nonzero()[0].tolist()) for _, changed in places(x, stuck)}) > 1
    before, after = (F.cross_entropy(model(images), y) for images in (x, stuck))
    assert after > before


def places(x: torch.Tensor, adv: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Attacked images, and where (H W) each of them differs."""
    return list(zip(adv, (adv != x).any(1), strict=True))


@pytest.mark.parametrize("name", ["patch", "feature_patch"])
def test_a_patch_for_all_places_does_more_on_average_than_one_for_its_own(name: str) -> None:
    model, x = tiny().eval(), images()
    y = labelled(model, x) if name == "patch" else None
    with torch.no_grad():
        clean = model(x)
    rises = []
    for settings in ({"locations": 1, "early_stop": False}, {"eot": 6}):
        settings = settings if y is not None else {k: v for k, v in settings.items() if k != "early_stop"}
        adv = ATTACKS[name](model, x, y, SQUARE, steps=30, **settings)
        check_adversarial(x, adv, SQUARE)
        everywhere = []
        for row, column in itertools.product(range(x.shape[-1] - 2), repeat=2):
            moved = x.clone()
            for one, (image, changed) in zip(moved, places(x, adv), strict=True):
                one[:, row : row + 3, column : column + 3] = image[:, changed.any(1)][:, :, changed.any(0)]
            with torch.no_grad():
                out = model(moved)
            everywhere.append(-F.cosine_similarity(out, clean) if y is None else F.cross_entropy(out, y))
        rises.append(float(torch.stack(everywhere).mean()))
    assert rises[1] > rises[0]


@pytest.mark.parametrize("attack", [feature_patch, feature_universal])
def test_features_are_driven_away_or_to_a_target(attack: object) -> None:
    model, x = tiny().eval(), images()
    with torch.no_grad():
        clean = model(x)
        there = clean[:1].expand_as(clean)
    assert callable(attack)
    away, near = (attack(model, x, y, SQUARE, steps=10) for y in (None, there))
    with torch.no_grad():
        assert (F.cosine_similarity(model(away), clean) < 0.99).any()
        assert F.cosine_similarity(model(near), there).mean() > F.cosine_similarity(clean, there).mean()


def test_no_places_or_steps_are_refused() -> None:
    x, y = setting()
    for name, settings in (("patch", {"locations": 0}), ("patch", {"eot": -1}), ("universal", {"steps": 0})):
        with pytest.raises(InputError, match="must be at least"):
            ATTACKS[name](linear(2, 1.0)[0], x, y, SQUARE, **settings)
