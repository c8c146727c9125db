"""The geometry of every norm against brute force and against what must always hold."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robvit.budget import parse_number
from robvit.errors import InputError
from robvit.threat import NORMS, Threat


def images(seed: int, count: int = 3, side: int = 4) -> torch.Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed)).double()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NORMS), st.floats(0, 3), st.integers(0, 99), st.sampled_from([None, 20.0, 40.0]))
def test_projection_lands_inside_and_leaves_inner_points(norm, eps, seed, psnr):
    eps = min(eps, 1.0) if norm == "linf" else eps
    threat, x = Threat(norm, eps, psnr), images(seed)
    adv = threat.project(x, x + 4 * (images(seed + 1) - 0.5))
    delta = adv - x
    assert bool((threat.size(delta) <= eps + 1e-9).all())
    assert float(adv.min()) >= 0
    assert float(adv.max()) <= 1
    assert bool((delta.flatten(1).norm(dim=1) <= threat.radius(x) + 1e-9).all())
    torch.testing.assert_close(threat.project(x, adv), adv)


def test_l1_projection_is_the_nearest_point():
    threat, x = Threat("l1", 1.5), images(0)
    wish = x + 2 * (images(1) - 0.5)
    near = (threat.project(x, wish) - wish).flatten(1).norm(dim=1)
    for seed in range(2, 60):
        other = threat.project(x, wish + 0.3 * (images(seed) - 0.5))
        assert bool(((other - wish).flatten(1).norm(dim=1) >= near - 1e-9).all())


@pytest.mark.parametrize("norm", NORMS)
def test_the_steepest_move_has_its_length_and_no_other_rises_more(norm):
    threat, x = Threat(norm, 0.4), images(0)
    gradient = images(1) - 0.5
    move = threat.steepest(gradient, 0.4)
    torch.testing.assert_close(threat.size(move), torch.full((3,), 0.4, dtype=x.dtype))
    rise = (move * gradient).flatten(1).sum(1)
    for seed in range(2, 40):
        other = threat.steepest(images(seed) - 0.5, 0.4)
        assert bool(((other * gradient).flatten(1).sum(1) <= rise + 1e-12).all())
    assert not threat.steepest(torch.zeros_like(x), 0.4).any()


def test_an_l1_step_may_be_spread():
    move = Threat("l1", 1).steepest(images(0) - 0.5, 0.4, torch.tensor([0.0, 0.25, 1.0]))
    assert (move != 0).flatten(1).sum(1).tolist() == [1, 12, 48]


@pytest.mark.parametrize("norm", NORMS)
def test_random_points_fill_the_ball_without_a_drift(norm):
    threat, x = Threat(norm, 0.3), torch.full((400, 3, 4, 4), 0.5)
    delta = threat.random(x, torch.rand(x.shape, generator=torch.Generator().manual_seed(0))) - x
    size = threat.size(delta)
    assert bool((size <= 0.3 + 1e-6).all())
    assert float(size.mean()) > 0.28
    assert float(delta.mean().abs()) < 0.1 * float(delta.abs().mean())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(NORMS), st.floats(-3, 3), st.integers(0, 99))
def test_the_move_onto_a_plane_reaches_it_and_none_is_shorter(norm, rise, seed):
    threat, x = Threat(norm, math.inf), images(seed)
    normal = images(seed + 1) - 0.5
    wanted = torch.full((3,), rise, dtype=x.dtype)
    move = threat.onto_plane(x, normal, wanted)
    assert float((x + move).min()) + 1e-12 >= 0
    assert float((x + move).max()) <= 1 + 1e-12
    got = (move * normal).flatten(1).sum(1)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-9)
    # A ball a little smaller holds no point of the plane: the best a linear function can do in it is less.
    size = float(threat.size(move).max())
    if size > 1e-3:
        row = int(threat.size(move).argmax())
        one, slope = x[row : row + 1], normal[row : row + 1] * (1 if rise > 0 else -1)
        smaller = Threat(norm, 0.99 * size)
        point = one
        for _ in range(30):
            point = smaller.project(one, point + 0.5 * slope)
        assert float(((point - one) * slope).sum()) < abs(rise)


def test_a_plane_out_of_reach_is_approached_as_far_as_the_box_allows():
    x = torch.full((1, 3, 2, 2), 0.5)
    for norm in NORMS:
        move = Threat(norm, math.inf).onto_plane(x, torch.ones_like(x), torch.tensor([100.0]))
        torch.testing.assert_close(x + move, torch.ones_like(x))


def test_text_and_bad_values():
    assert str(Threat.parse("linf", "8/255")) == "linf 8/255"
    assert str(Threat.parse("linf", "0.5/255")) == "linf 0.5/255"
    assert str(Threat.parse("linf", "0.031372")) == "linf 0.031372"
    assert str(Threat.parse("l2", "0.5")) == "l2 0.5"
    assert str(Threat("l2", 0.5, psnr=40)) == "l2 0.5, PSNR >= 40 dB"
    assert parse_number("inf") == math.inf
    for norm, eps in (("l7", "1"), ("linf", "-1"), ("linf", "nan"), ("linf", "8/0")):
        with pytest.raises(InputError):
            Threat.parse(norm, eps)
    for norm, eps in (("linf", 8), ("linf", 1.01), ("l2", -1), ("linf", math.nan), ("l1", math.nan)):
        with pytest.raises(InputError, match=r"eps is in pixels, 0 or more and .*; write 8/255"):
            Threat(norm, eps)
    for norm, eps in (("linf", 1), ("l2", 8), ("l1", 800), *((norm, math.inf) for norm in NORMS)):
        assert Threat(norm, eps).eps == eps, "fab and cw_l2 search without a bound"
    assert Threat("linf", 0.75).times(2).eps == 1
    assert Threat("l1", 12).times(3).eps == 36
    for strange in (None, [8], "9" * 400 + "/1", 10**400, "1/2/3", "inf/2", "/255"):
        with pytest.raises(InputError, match="expected a number"):
            parse_number(strange)
