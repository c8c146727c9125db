"""What single attacks and helpers promise beyond the contract."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.attack_cases import Segmenter, images, labelled, tiny
from robvit.attacks import (
    ATTACKS,
    Count,
    RandomisedOutput,
    apgd,
    autoattack,
    bpda,
    check_adversarial,
    eight_bit,
    eot,
    feature,
    feature_reference,
    misclassified,
    pgd,
    pgd_reference,
    run,
    segpgd,
    segpgd_reference,
)
from robvit.attacks import losses as L
from robvit.attacks.eot import bpda_moved
from robvit.errors import BrokenAttack, InputError
from robvit.threat import NORMS, Threat

LINF = Threat("linf", 8 / 255)


class Tokens(nn.Module):
    """Images to (B T D) features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 2, 2), nn.GELU(), nn.Conv2d(16, 8, 1))
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).flatten(2).transpose(1, 2)


class Bowl(nn.Module):
    """The squared distance of an image from grey (B 1)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - 0.5).square().flatten(1).sum(1, keepdim=True)


def levels(count: int = 4) -> torch.Tensor:
    return (images(count).float() * 255).round() / 255


# Losses


def test_losses_agree_with_their_definitions():
    z, y = torch.randn(5, 6).double(), torch.arange(5)
    torch.testing.assert_close(L.cross_entropy(z, y), F.cross_entropy(z, y, reduction="none"))
    for i in range(5):
        row, others = z[i].sort(descending=True).values, torch.cat([z[i, :i], z[i, i + 1 :]])
        gap = others.max() - z[i, i]
        torch.testing.assert_close(L.margin(z, y)[i], gap)
        torch.testing.assert_close(L.dlr(z, y)[i], gap / (row[0] - row[2]))
        wanted = torch.full((5,), 5)
        scale = row[0] - (row[2] + row[3]) / 2
        torch.testing.assert_close(L.dlr_targeted(z, y, wanted)[i], (z[i, 5] - z[i, i]) / scale)
    p = torch.randn(5, 6).double().softmax(1)
    torch.testing.assert_close(L.kl(z, p), (p * (p.log() - z.log_softmax(1))).sum(1))
    a, b = torch.randn(2, 5, 3, 7).double()
    one = sum(F.cosine_similarity(a[4, t], b[4, t], dim=0) for t in range(3)) / 3
    torch.testing.assert_close(L.cosine(a, b)[4], -one)
    torch.testing.assert_close(L.cosine(a[:, 0], b[:, 0]), -F.cosine_similarity(a[:, 0], b[:, 0]))
    torch.testing.assert_close(L.embedding_l2(a[:, 0], b[:, 0]), (a - b)[:, 0].square().sum(1))


def test_cross_entropy_keeps_its_gradient_where_the_usual_form_loses_it():
    z = torch.tensor([[40.0, 0.0]], requires_grad=True)
    (usual,) = torch.autograd.grad(F.cross_entropy(z, torch.tensor([0])), z)
    (ours,) = torch.autograd.grad(L.cross_entropy(z, torch.tensor([0])).sum(), z)
    assert usual[0, 0] == 0
    assert ours[0, 0] == -ours[0, 1] < 0


@pytest.mark.parametrize("classes", [2, 3])
def test_targeted_dlr_has_a_gradient_for_few_classes(classes):
    z = torch.tensor([[3.0, 1.0, -1.5]])[:, :classes].requires_grad_()
    for wanted in range(1, classes):
        loss = L.dlr_targeted(z, torch.tensor([0]), torch.tensor([wanted]))
        (grad,) = torch.autograd.grad(loss.sum(), z)
        assert grad.abs().max() > 1e-3


def test_ignored_pixels_count_for_nothing():
    z, y = torch.randn(2, 4, 5, 5), torch.randint(4, (2, 5, 5))
    y[0, 0], y[1, :, 2] = 255, -1
    usual = torch.stack(
        [
            F.cross_entropy(z[i : i + 1], y[i : i + 1].where(y[i : i + 1] != -1, 255), ignore_index=255)
            for i in (0, 1)
        ]
    )
    torch.testing.assert_close(L.pixel_cross_entropy(z, y), usual)


# Pace and cost


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_adaptive_steps_settle_on_an_optimum_inside_the_ball(norm):
    x, threat = images(3), Threat(norm, 0.2)
    goal = threat.project(x, x + 0.02 * (images(3, seed=1) - 0.5))

    def nearness(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -(output - target).square().sum(1)

    adv = apgd(lambda z: z.flatten(1), x, goal.flatten(1), threat, loss=nearness)
    assert bool((threat.size(adv - goal) < 0.03 * threat.eps).all())


@pytest.mark.parametrize(
    ("name", "settings", "forward", "backward"),
    [
        ("fgsm", {}, 1, 1),
        ("pgd", {"steps": 7, "restarts": 2}, 16, 14),
        ("gama", {"steps": 7}, 9, 7),
        ("apgd_ce", {"steps": 7}, 8, 7),
        ("apgd_t", {"steps": 7, "targets": 2}, 17, 14),
        ("fab_t", {"steps": 7, "targets": 2}, 17, 14),
        ("fab", {"steps": 7, "targets": 3}, 9, 21),
        ("square", {"steps": 7}, 7, 0),
        ("feature", {"steps": 7, "rounded": False}, 9, 7),
    ],
)
def test_no_pass_is_wasted(name, settings, forward, backward):
    model, x = tiny(), images(3)
    counted = Count(model)
    ATTACKS[name](counted, x, labelled(model, x), Threat("linf", 1e-9), **settings)
    assert (counted.forward, counted.backward) == (3 * forward, 3 * backward)


# Feature attacks and grey levels


def test_the_feature_attack_keeps_the_papers_promises():
    model, x = Tokens(), levels()
    adv = feature(model, x, None, LINF)
    check_adversarial(x, adv, Threat("linf", 8 / 255, psnr=40), eight_bit=True)

    def likeness(image: torch.Tensor) -> float:
        return float(F.cosine_similarity(model(image), model(x), dim=-1).mean())

    noise = Threat("linf", 8 / 255, psnr=40).random(x, torch.rand(x.shape))
    assert 1 - likeness(adv) > 2 * (1 - likeness(noise))
    psnr = -10 * torch.log10((adv - x).square().flatten(1).mean(1))
    assert bool((psnr < 40.3).all()), "the budget is used up"
    assert likeness(feature(model, x, None, LINF, psnr=None)) < likeness(adv)


def test_the_reference_attack_follows_the_published_code():
    model, x = Tokens(), levels()
    adv = feature_reference(model, x, None, LINF)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    move = (adv - x) * 255
    assert bool((move <= 8 * std + 1e-3).all()), "eight levels of the normalised image"
    assert bool((move >= -8 * std - 1 - 1e-3).all()), "and cut off, not rounded"
    assert float(F.cosine_similarity(model(adv), model(x), dim=1).mean()) < 1
    torch.testing.assert_close((adv * 255).round(), adv * 255)
    still = feature_reference(model, x, None, LINF, stop=0.0)
    one = feature_reference(model, x, None, LINF, steps=1)
    assert torch.equal(still, one), "it stops after the step, on the error before it"
    with pytest.raises(BrokenAttack):
        run("feature_reference", model, x, None, Threat("linf", 0.0))


def test_the_published_attacks_differ_in_what_they_minimise_alone():
    model, x = tiny().float().eval(), (images(3) * 255).round().float() / 255
    y = labelled(model, x)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)

    def loss(image: torch.Tensor) -> float:
        return float(F.cross_entropy(model(image).detach(), y))

    adv = pgd_reference(model, x, y, LINF)
    assert loss(adv) > loss(x)
    assert bool(((adv - x) * 255 <= 8 * std + 1e-3).all()), "eight levels of the normalised image"
    with pytest.raises(InputError, match="pgd_reference needs labels"):
        pgd_reference(model, x, None, LINF)
    with pytest.raises(InputError, match="segpgd_reference needs a label a pixel"):
        segpgd_reference(model, x, y, LINF)


def test_the_error_in_the_feature_attack_has_the_sign_that_keeps_it_small():
    model, x = Tokens(), levels()
    bare, spared = (feature(model, x, None, LINF, psnr=None, mse=weight) for weight in (0.0, 1e4))
    assert float((spared - x).square().mean()) < float((bare - x).square().mean()) / 2
    hardly = feature(model, x, None, LINF, psnr=None, mse=1e-9)
    assert float((hardly - bare).abs().mean()) < 0.5 / 255


@pytest.mark.parametrize(
    "threat",
    [
        LINF,
        Threat("linf", 0.03),
        Threat("l2", 0.4),
        Threat("l1", 2.0),
        Threat("linf", 8 / 255, psnr=40),
        Threat("linf", 0.0),
    ],
)
def test_rounding_stays_inside_the_ball_and_near(threat):
    x = levels()
    adv = threat.project(x, x + torch.randn(x.shape))
    rounded = eight_bit(x, adv, threat)
    check_adversarial(x, rounded, threat, eight_bit=True)
    assert float((rounded - adv).abs().max()) <= 1 / 255 + 1e-6
    read_back = (rounded * 255).round().to(torch.uint8).float() / 255
    assert torch.equal(read_back, rounded)
    with pytest.raises(InputError, match="8-bit"):
        eight_bit(x * 0.987, adv, threat)


def test_a_run_can_return_images_that_survive_saving():
    model, x = tiny().float(), levels()
    y = labelled(model, x)
    result = run("pgd", model, x, y, Threat("l2", 0.8), eight_bit=True)
    check_adversarial(x, result.adv, Threat("l2", 0.8), eight_bit=True)
    saved = (result.adv * 255).round().to(torch.uint8).float() / 255
    assert torch.equal(misclassified(model.eval()(saved), y), result.success)


# Segmentation


@pytest.mark.parametrize("weighted", [True, False])
def test_segmentation_attacks_turn_pixels(weighted):
    model, x = Segmenter().eval(), images(3)
    y = labelled(model, x)
    adv = segpgd(model, x, y, Threat("linf", 0.3), steps=10, weighted=weighted)
    assert float((model(adv).argmax(1) == y).float().mean()) < 0.6
    with pytest.raises(InputError, match="a label a pixel"):
        segpgd(model, x, y[:, 0], LINF)


# Ensembles, randomness, stand-ins, transfer


def test_an_ensemble_breaks_what_any_member_breaks():
    model, x = tiny(), images()
    y = labelled(model, x)
    threat = Threat("linf", 0.02)
    alone = [run(name, model, x, y, threat).success for name in ("pgd", "apgd_dlr")]
    both = run("worst_of", model, x, y, threat)
    assert torch.equal(both.success, alone[0] | alone[1])
    with pytest.raises(InputError, match="version"):
        autoattack(model, x, y, threat, version="best")


def test_transfer_through_an_ensemble_is_judged_by_the_victim():
    model, victim, x = tiny(seed=0), tiny(seed=5), images()
    y = labelled(victim, x)
    threat = Threat("linf", 0.1)
    single = [run(name, model, x, y, threat, victim=victim).success for name in ("pgd", "apgd_dlr")]
    both = run("worst_of", model, x, y, threat, victim=victim)
    assert torch.equal(both.success, single[0] | single[1])


@pytest.mark.slow
def test_a_random_model_is_judged_by_the_mean_of_fresh_passes():
    net, x = tiny().eval(), images(16)
    y = labelled(net, x)
    sure = L.margin(net(x), y) < -0.15  # so sure that the mean of 400 passes is right
    x, y = x[sure], y[sure]
    torch.manual_seed(0)

    def noisy(z: torch.Tensor) -> torch.Tensor:
        return net(z) + 0.5 * torch.randn(len(z), 4)

    tiny_budget = Threat("linf", 1e-5)
    with pytest.warns(RandomisedOutput):
        lucky = run("pgd", noisy, x, y, tiny_budget, steps=20)
    assert lucky.warnings == ("RandomisedOutput",)
    rand = {"version": "rand", "steps": 5, "judgements": 400}
    steady = run("autoattack", noisy, x, y, tiny_budget, samples=400, **rand)
    assert not steady.success.any(), "noise alone fools nobody"
    assert run("pgd", eot(noisy, 4), x, y, Threat("linf", 0.5), samples=100, early_stop=False).success.all()


def test_bpda_gives_a_gradient_to_what_has_none():
    model, x = tiny().eval(), images()

    def coarse(z: torch.Tensor) -> torch.Tensor:
        return (z * 16).round() / 16

    y = model(coarse(x)).argmax(1)
    threat = Threat("linf", 0.1)
    blind = pgd(lambda z: model(coarse(z)), x, y, threat, random_start=False)
    seeing = pgd(lambda z: model(bpda(coarse)(z)), x, y, threat)
    assert misclassified(model(coarse(seeing)), y).sum() > misclassified(model(coarse(blind)), y).sum()
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(bpda(coarse, lambda z: 3 * z)(leaf).sum(), leaf)
    assert torch.equal(grad, torch.full_like(x, 3))
    with pytest.raises(InputError, match="stand-in"):
        bpda(lambda z: z.mean())(x)


def test_bpda_takes_the_gradient_where_a_purification_lands():
    bowl = Bowl()
    x = torch.full((2, 3, 4, 4), 0.4)

    def slope(model: Callable[[torch.Tensor], torch.Tensor]) -> float:
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(leaf).sum(), leaf)
        assert torch.allclose(grad, grad[0, 0, 0, 0])
        return float(grad[0, 0, 0, 0])

    def across(z: torch.Tensor) -> torch.Tensor:
        bowl(z)  # a look on the way is not where it lands
        with torch.no_grad():
            return bowl(z + 0.2)

    assert slope(bpda(across, bowl)) == pytest.approx(2 * (0.4 - 0.5))
    assert slope(bpda_moved(across, bowl)) == pytest.approx(2 * (0.6 - 0.5))
    assert torch.equal(bpda_moved(across, bowl)(x), across(x))
    draws = iter([0.1, 0.2])
    drawn = bpda_moved(lambda z: bowl(z + next(draws)), bowl)
    assert slope(eot(drawn, 2)) == pytest.approx(2 * (0.4 + 0.15 - 0.5)), "each draw has a place of its own"
    smaller = bpda_moved(lambda z: bowl(z[..., :2] + 0.2), bowl)
    assert slope(smaller) == pytest.approx(2 * (0.4 - 0.5)), "another shape leaves the start"
    assert not bowl._forward_pre_hooks


@pytest.mark.parametrize("norm", NORMS)
def test_a_minimum_attack_spends_the_budget_when_it_is_to_transfer(norm):
    model, x = tiny(), images()
    threat = Threat(norm, {"linf": 0.1, "l2": 0.8, "l1": 4.0}[norm])
    y = labelled(model, x)
    nearest = run("fab_t", model, x, y, Threat(norm, math.inf), steps=10).distance
    result = run("fab_t", model, x, y, threat, victim=model, steps=10)
    assert float(result.distance.mean()) > 1.2 * float(nearest.mean())


def test_the_confidence_of_cw_is_the_margin_that_is_reached():
    model, x = tiny().eval(), images(6)
    with torch.no_grad():
        y = model(x).argmax(1)
    near, far = (
        ATTACKS["cw_l2"](model, x, y, Threat("l2", math.inf), steps=100, searches=8, confidence=c)
        for c in (0.0, 0.1)
    )
    with torch.no_grad():
        reached = L.margin(model(far), y)
    found = (far != x).flatten(1).any(1)
    assert found.any()
    assert (reached[found] >= 0.1).all()
    assert ((far - x).flatten(1).norm(dim=1) > (near - x).flatten(1).norm(dim=1))[found].all()
