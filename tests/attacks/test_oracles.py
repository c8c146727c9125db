"""Attacks against a linear model, where the best perturbation of each norm is known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from helpers.attack_cases import DUAL, SMALL_EPS, linear, setting
from robvit.attacks import ATTACKS, LOSSES, pgd, run
from robvit.attacks.core import supported
from robvit.errors import InputError, UnknownName
from robvit.threat import Threat


def oracle(name: str) -> dict[str, object]:
    return dict(ATTACKS.info(name).check.oracle)


def tolerance(name: str, norm: str) -> float:
    known = ATTACKS.info(name).check.tolerance
    return known[norm] if isinstance(known, dict) else known


def of_kind(kind: str) -> list[tuple[str, str]]:
    # What repeats published code, in normalised space, keeps no budget in pixels.
    ours = [e for e in ATTACKS if e.info.keeps_budget and not e.info.needs]
    chosen = [e for e in ours if e.info.kind == kind and e.info.task == "classes"]
    return [(e.name, norm) for e in chosen for norm in e.info.norms if norm in DUAL]  # patches: test_patch.py


@pytest.mark.parametrize(("name", "norm"), of_kind("budget"))
@pytest.mark.parametrize("kept", [False, True])
def test_a_budget_attack_reaches_the_best_margin(name, norm, kept):
    x, y = setting()
    # Unless kept, a misclassified image stops early: there the model must be one that can't be misclassified.
    model, weight = linear(2, 0.1 if kept else 10.0)
    clean = model(x)[:, 1] - model(x)[:, 0]
    best = SMALL_EPS[norm] * (weight[1] - weight[0]).norm(p=DUAL[norm])
    adv = ATTACKS[name](
        model, x, y, Threat(norm, SMALL_EPS[norm]), **oracle(name), **supported(name, early_stop=not kept)
    )
    rise = (model(adv)[:, 1] - model(adv)[:, 0] - clean) / best
    assert bool((rise <= 1 + 1e-4).all()), "more than the budget allows"
    assert bool((rise >= 1 - tolerance(name, norm)).all()), rise


@pytest.mark.parametrize(("name", "norm"), of_kind("minimum"))
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_minimum_attack_finds_the_nearest_boundary(name, norm, classes):
    x, y = setting()
    model, weight = linear(classes, 0.5)
    gaps = (model(x)[0, 0] - model(x)[0, 1:]) / (weight[1:] - weight[0]).norm(p=DUAL[norm], dim=1)
    best = float(gaps.min())
    threat = Threat(norm, math.inf)
    adv = ATTACKS[name](model, x, y, threat, **oracle(name))
    assert bool((model(adv).argmax(1) != y).all())
    size = threat.size(adv - x)
    assert bool((size >= best * (1 - 1e-4)).all()), "nearer than the boundary"
    assert bool((size <= 1.05 * best).all()), size / best


@pytest.mark.parametrize(("name", "norm"), of_kind("minimum") + of_kind("budget"))
@pytest.mark.parametrize("above", [False, True])
def test_success_turns_at_the_distance_of_the_boundary(name, norm, above):
    """Just below the known distance nothing can succeed; above it, by the tolerance, everything must."""
    x, y = setting()
    model, weight = linear(2, 0.5)
    distance = float((model(x)[0, 0] - model(x)[0, 1]) / (weight[1] - weight[0]).norm(p=DUAL[norm]))
    far = 1.1 / (1 - tolerance(name, norm)) if above else 0.99
    adv = ATTACKS[name](model, x, y, Threat(norm, far * distance), **oracle(name))
    assert bool(((model(adv).argmax(1) != y) == above).all())


@pytest.mark.parametrize(("name", "norm"), of_kind("minimum"))
@pytest.mark.parametrize("tone", [0.02, 1.0])
def test_a_minimum_attack_finds_the_nearest_boundary_along_the_box(name, norm, tone):
    """In near-black or white images half of the ways out are closed."""
    model, weight = linear(2, 0.5)
    x, y = torch.full((1, 3, 8, 8), tone), torch.zeros(1, dtype=torch.long)
    with torch.no_grad():
        model[1].bias += torch.tensor([1.0, 0.0]) - model(x)[0]  # ahead by one, whatever the tone
    threat = Threat(norm, math.inf)
    best = threat.size(threat.onto_plane(x, (weight[1] - weight[0]).view_as(x), torch.ones(1)))
    adv = ATTACKS[name](model, x, y, threat, **oracle(name))
    assert bool((model(adv).argmax(1) != y).all())
    assert bool((threat.size(adv - x) <= 1.05 * best).all())


def pulled(gap: float, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """Three classes at mid-grey: 0 leads, 1 follows closely and ignores the image, 2 is `gap` behind and
    follows the weights (n,): it wins exactly where they rise by the gap."""
    first, second = linear(2, gap, seed)[1]
    weight = second - first
    layer = nn.Linear(len(weight), 3)
    with torch.no_grad():
        layer.weight.copy_(torch.stack([torch.zeros_like(weight), torch.zeros_like(weight), weight]))
        layer.bias.copy_(torch.tensor([0.0, -0.01, -gap - 0.5 * float(weight.sum())]))
    return nn.Sequential(nn.Flatten(), layer.requires_grad_(False)), weight


TARGETED = [
    e.name
    for e in ATTACKS
    if "targeted" in e.info.defaults
    and LOSSES.info(e.info.defaults["loss"]).targeted
    and set(DUAL) <= set(e.info.norms)
]


@pytest.mark.parametrize("norm", DUAL)
@pytest.mark.parametrize("name", TARGETED)
def test_a_targeted_attack_reaches_its_class_where_it_can_be_reached(name, norm):
    x, _ = setting()
    wanted = torch.full((2,), 2)
    model, weight = pulled(0.5)
    nearest = 0.5 / float(weight.norm(p=DUAL[norm]))
    for share, success in ((0.99, False), (1.1 / (1 - tolerance(name, norm)), True)):
        adv = ATTACKS[name](model, x, wanted, Threat(norm, share * nearest), targeted=True)
        assert bool(((model(adv).argmax(1) == wanted) == success).all())
        outcome = run(name, model, x, wanted, Threat(norm, share * nearest), targeted=True)
        assert torch.equal(outcome.adv, adv)
        assert bool((outcome.success == success).all())
    best = SMALL_EPS[norm] * weight.norm(p=DUAL[norm])
    adv = ATTACKS[name](model, x, wanted, Threat(norm, SMALL_EPS[norm]), targeted=True, early_stop=False)
    rise = (model(adv)[:, 2] - model(x)[:, 2]) / best
    assert bool((rise <= 1 + 1e-4).all())
    assert bool((rise >= 1 - tolerance(name, norm)).all()), rise


def test_targets_are_classes_and_only_some_attacks_have_them():
    assert set(TARGETED) == {"pgd", "pgd_margin", "apgd", "apgd_ce", "transfer"}
    (x, y), (model, _), threat = setting(), pulled(0.5), Threat("linf", 0.1)
    for target in (None, torch.rand(2, 3)):
        with pytest.raises(InputError, match=r"targeted.*label|needs labels"):
            pgd(model, x, target, threat, targeted=True)
    for name in ("pgd_dlr", "apgd_dlr"):
        with pytest.raises(InputError, match="dlr does not lead to a class"):
            ATTACKS[name](model, x, y, threat, targeted=True)
    with pytest.raises(UnknownName, match="setting of square"):
        run("square", model, x, y, threat, targeted=True)
    already = torch.full((2,), 2)
    moved = x + 0.05 * (pulled(0.5)[1].view_as(x[0])).sign()
    outcome = run("pgd", model, moved, already, threat, targeted=True)
    assert torch.equal(outcome.adv, moved), "what is classified as the target already is left alone"
    assert bool(outcome.success.all())
