"""Explanations: closed forms of what is drawn, and pictures that are there, readable and not blank."""

from __future__ import annotations

import pytest
import torch

import robvit
from robvit.errors import InputError
from robvit.explain.gradients import accumulate_gradient, grey_perturbation, noise, rescaled_perturbation
from robvit.threat import Threat


def test_a_perturbation_fills_the_range_of_grey_exactly() -> None:
    x = torch.full((2, 3, 2, 2), 0.5)
    adv = x.clone()
    adv[0, :, 0, 0] += 0.1
    adv[0, :, 1, 1] -= 0.05
    grey = grey_perturbation(x, adv)
    assert grey.shape == (2, 1, 2, 2)
    expected = torch.tensor([[1.0, 0.5], [0.5, 0.25]])
    torch.testing.assert_close(grey[0, 0], expected)
    torch.testing.assert_close(grey[1, 0], torch.full((2, 2), 0.5))  # nothing changed
    torch.testing.assert_close(grey_perturbation(x, adv, eps=0.2)[0, 0, 0, 0], torch.tensor(0.75))
    red = x.clone()
    red[:, 0] += 0.1
    torch.testing.assert_close(grey_perturbation(x, red), torch.full((2, 1, 2, 2), 0.5 + 0.299 / 2))
    colours = rescaled_perturbation(x, red)
    assert colours[:, 0].eq(1).all()
    assert colours[:, 1:].eq(0.5).all()
    with pytest.raises(InputError, match="one shape"):
        grey_perturbation(x, adv[:1])
    with pytest.raises(InputError, match="above zero"):
        grey_perturbation(x, adv, eps=0.0)


def test_an_accumulated_gradient_is_steepest_ascent_on_the_target() -> None:
    weights = torch.randn(3, 3 * 4 * 4, generator=torch.Generator().manual_seed(1))

    def linear(x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ weights.T

    start, threat = torch.full((1, 3, 4, 4), 0.5), Threat("linf", 0.1)
    made = accumulate_gradient(linear, torch.tensor([1]), start=start, steps=1, step_size=0.1, threat=threat)
    share = linear(start).softmax(1)[0]
    slope = weights[1] - (share[:, None] * weights).sum(0)  # of the target's log-probability
    torch.testing.assert_close(made.flatten(), start.flatten() + 0.1 * slope.sign())


def test_an_accumulated_gradient_raises_the_targets_logit_and_stays_near() -> None:
    model = robvit.load("robvit-mini-robust").requires_grad_(True)
    start, target = noise(2, model.input_size), torch.tensor([1, 8])
    made = accumulate_gradient(model, target, start=start, steps=8, threat=Threat("l2", 6.0))
    with torch.no_grad():
        before, after = (model(p).gather(1, target[:, None]) for p in (start, made))
    assert (after > before).all()
    assert model(made).argmax(1).tolist() == [1, 8]
    assert (made - start).flatten(1).norm(dim=1).max() <= 6.0 + 1e-4
    assert 0 <= made.min() <= made.max() <= 1
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(noise(2, (4, 4), seed=1), noise(2, (4, 4), seed=1))
    with pytest.raises(InputError, match="steps"):
        accumulate_gradient(model, target, start=start, steps=0)
    with pytest.raises(InputError, match="one a picture"):
        accumulate_gradient(model, target[:1], start=start)
