"""FAB and Square where the answer is known: what a step must do, and how much a search must find."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from helpers.attack_cases import (
    DUAL,
    EPS,
    EVERY,
    SMALL_EPS,
    labelled,
    linear,
    prepared,
    quick,
    setting,
)
from robvit.attacks import ATTACKS
from robvit.attacks.core import supported
from robvit.threat import Threat

fab_file = importlib.import_module("robvit.attacks.fab")  # the package's `fab` is the attack


@pytest.mark.parametrize(("name", "norm"), EVERY)
def test_the_model_is_shown_images_only(name, norm):
    """Every point a model is asked about lies in [0,1], also in the middle of a search."""
    model, x, _ = prepared(name, 4)
    x = (x > 0.5).to(x)  # black and white: every step leads out of the box
    y, seen = labelled(model, x), list[Any]()
    settings = {**quick(name), **supported(name, early_stop=False)}

    def watched(z: torch.Tensor) -> torch.Tensor:
        seen.extend(float(v) for v in z.detach().aminmax())
        return model.eval()(z)

    ATTACKS[name](watched, x, y, Threat(norm, 4 * EPS[norm]), **settings)
    slack = 0.02 if name.endswith("_reference") else 0.0  # the published start is not projected
    assert min(seen) >= 0 - slack
    assert max(seen) <= 1 + slack


@pytest.mark.parametrize("success", [False, True])
def test_a_step_goes_on_from_behind_an_adversarial_point(success):
    """In L2 far from the box a projection is x + (rise / |w|^2) w, so the whole step is known."""
    torch.manual_seed(0)
    x, normal = torch.full((1, 3, 4, 4), 0.5).double(), torch.randn(1, 3, 4, 4).double()
    point = x + 0.05 * torch.randn(1, 3, 4, 4).double()
    gap = torch.tensor([-0.3 if success else 0.3]).double()  # <normal, z - point> + gap = 0 is the boundary
    state = fab_file._State(torch.arange(1), x, point, torch.ones(1, 1, dtype=torch.long))
    found = fab_file._step(state, Threat("l2", 1.0), gap, normal, torch.tensor([success]))

    def moved(base: torch.Tensor) -> torch.Tensor:
        rise = -gap - (normal * (base - point)).sum()
        return rise / normal.square().sum() * normal

    base = x + 0.9 * (point - x) if success else point
    near, far = moved(base), moved(x)
    weight = min(float(near.norm() / (near.norm() + far.norm())), 0.1)
    expected = (1 - weight) * (base + 1.05 * near) + weight * (x + 1.05 * far)
    torch.testing.assert_close(found, expected)


def test_a_step_stays_in_the_box():
    x = torch.zeros(1, 3, 4, 4)
    state = fab_file._State(torch.arange(1), x, x, torch.ones(1, 1, dtype=torch.long))
    for sign in (1.0, -1.0):
        normal = torch.full_like(x, sign)
        far = fab_file._step(state, Threat("l2", 1.0), torch.tensor([100.0]), normal, torch.tensor([False]))
        assert bool(((far >= 0) & (far <= 1)).all())


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "share"), [("linf", 0.99), ("l2", 0.65), ("l1", 0.95)])
def test_square_finds_most_of_the_best_with_more_queries(norm, share):
    x, y = setting()
    model, weight = linear(2, 10.0)
    best = SMALL_EPS[norm] * (weight[1] - weight[0]).norm(p=DUAL[norm])
    adv = ATTACKS["square"](model, x[:1], y[:1], Threat(norm, SMALL_EPS[norm]), steps=3000)
    gap = nn.Sequential(model)(torch.cat([x[:1], adv])).diff(dim=1)[:, 0]
    assert share <= float((gap[1] - gap[0]) / best) <= 1 + 1e-4
