"""Attacks made to transfer: every switch off is pgd, every switch on is what its paper says."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from helpers.attack_cases import EPS, images, labelled, tiny
from helpers.networks import small_net
from helpers.plain_vit import plain_vit
from robvit.attacks import pgd, run, transfer
from robvit.attacks.core import gradient
from robvit.attacks.losses import cross_entropy
from robvit.attacks.transfer import DiverseViews, blurred, shrunk
from robvit.attention import attention_cut, token_gradients_levelled
from robvit.attention.gradients import INPUT_SHARE, MAP_SHARE, level_map, level_tokens
from robvit.errors import InputError, Unsupported
from robvit.threat import NORMS, Threat

OFF = {"momentum": 0.0, "diversity": 0.0, "translation": 1, "pna": False, "tgr": False}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("early_stop", [False, True])
def test_with_every_switch_off_it_is_pgd_bit_for_bit(norm, early_stop):
    model, x = tiny(), images()
    y, threat = labelled(model, x), Threat(norm, EPS[norm])
    common = {"steps": 4, "random_start": True, "seed": 2, "early_stop": early_stop}
    assert torch.equal(transfer(model, x, y, threat, **OFF, **common), pgd(model, x, y, threat, **common))
    moved = transfer(model, x, y, threat, **(OFF | {"momentum": 0.9}), **common)
    assert torch.equal(moved, pgd(model, x, y, threat, momentum=0.9, **common))


@pytest.mark.parametrize("switch", [{"momentum": 1.0}, {"diversity": 1.0}, {"translation": 3}])
def test_every_switch_does_something(switch):
    model, x = tiny(), images()
    y, threat = labelled(model, x), Threat("linf", EPS["linf"])
    common = {"steps": 4, "early_stop": False}
    given: list[dict[str, Any]] = [OFF, OFF | switch]
    adv = [transfer(model, x, y, threat, **settings, **common) for settings in given]
    assert not torch.equal(*adv)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.5, 2.0])
def test_momentum_carries_on_where_the_gradient_turns(momentum):
    """The loss is a ridge at 0.55: the first step crosses it, and the next velocity is momentum minus one."""
    seen = []

    def ridge(point):
        seen.append(float(point.detach().mean()))
        depth = (point - 0.55).abs().flatten(1).sum(1)
        return torch.stack([depth, torch.zeros_like(depth)], dim=1)

    x, y = torch.full((1, 3, 2, 2), 0.5).double(), torch.zeros(1, dtype=torch.long)
    settings = {**OFF, "momentum": momentum, "early_stop": False}
    transfer(ridge, x, y, Threat("linf", 0.45), steps=3, step_size=0.1, **settings)
    expected, velocity = [0.5], 0.0
    for _ in range(3):
        velocity = momentum * velocity + (1 if expected[-1] < 0.55 else -1)
        expected.append(expected[-1] + (0.1 if velocity > 0 else -0.1))
    assert seen == pytest.approx(expected)


@pytest.mark.parametrize("norm", NORMS)
def test_on_a_linear_loss_momentum_goes_straight(norm):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2)).double()
    x, y = torch.full((2, 3, 4, 4), 0.5).double(), torch.zeros(2, dtype=torch.long)
    with torch.no_grad():
        model[1].bias[0] += 100  # nothing can break it, so that every step is taken
    weight = (model[1].weight[1] - model[1].weight[0]).detach().view(1, 3, 4, 4).expand_as(x)
    threat = Threat(norm, 0.08)
    adv = transfer(model, x, y, threat, steps=4, step_size=0.01, loss="margin")
    if norm == "l1":  # spread over a twentieth of the values at first, then over one
        assert float((adv - x).abs().flatten(1).sum(1)[0]) == pytest.approx(0.04)
        return
    expected = x + (0.04 * weight.sign() if norm == "linf" else threat.steepest(weight, 0.04))
    torch.testing.assert_close(adv, expected)


def test_a_view_keeps_its_gradient():
    x = torch.rand(2, 3, 5, 5, dtype=torch.double, requires_grad=True)
    side, place = torch.tensor([0.7, 0.9]).double(), torch.tensor([[-1.0, 0.5], [1.0, 0.0]]).double()
    assert torch.autograd.gradcheck(lambda z: shrunk(z, side, place), (x,))


def test_a_view_is_the_image_smaller_and_where_it_is_wanted():
    x = torch.ones(2, 3, 8, 8)
    view = shrunk(x, torch.tensor([0.5, 1.0]), torch.tensor([[-1.0, 1.0], [0.0, 0.0]]))
    expected = torch.zeros(3, 8, 8)
    expected[:, 4:, :4] = 1  # to the left and down
    torch.testing.assert_close(view[0, :, 5:, :3], expected[:, 5:, :3])
    assert float(view[0, :, :3].abs().max()) == 0
    assert float(view[0, :, :, 5:].abs().max()) == 0
    torch.testing.assert_close(view[1], x[1])


def test_views_are_drawn_for_each_image_alone_and_a_chance_of_zero_shows_the_image():
    x = images(4)
    for chance in (0.5, 1.0):
        together = DiverseViews(lambda z: z, x, chance, 0.5, seed=1)
        alone = [DiverseViews(lambda z: z, x[i : i + 1], chance, 0.5, seed=1) for i in range(4)]
        for _ in range(3):
            assert torch.equal(together(x), torch.cat([one(x[i : i + 1]) for i, one in enumerate(alone)]))
    assert torch.equal(DiverseViews(lambda z: z, x, 0.0, 0.5, seed=1)(x), x)


def test_a_blurred_gradient_is_the_mean_over_shifts():
    grad = torch.zeros(1, 3, 9, 9).double()
    grad[0, 1, 4, 4] = 1.0
    seen = blurred(grad, 5)
    assert float(seen.sum()) == pytest.approx(1)
    assert seen[0, 0].abs().max() == 0
    assert torch.equal(seen, seen.transpose(2, 3))
    assert float(seen[0, 1, 4, 4] / seen[0, 1, 4, 3]) == pytest.approx(float(torch.tensor(1.125).exp()))
    assert float(seen[0, 1, 1].abs().max()) == 0


class _ConstantMaps(nn.Module):
    """timm's attention, its maps written out and taken for constants."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, **_):
        count, tokens, width = x.shape
        heads = self.inner.num_heads
        q, k, v = self.inner.qkv(x).view(count, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
        maps = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).softmax(-1).detach()
        return self.inner.proj((maps @ v).transpose(1, 2).reshape(count, tokens, width))


@pytest.mark.parametrize("fused", [True, False])
def test_pna_is_the_gradient_of_constant_attention(fused):
    net, x = plain_vit().double(), torch.rand(2, 3, 32, 32).double()
    y = net(x).argmax(1)
    reference = copy.deepcopy(net)
    for block, other in zip(net.blocks, reference.blocks, strict=True):
        block.attn.fused_attn = fused
        other.attn = _ConstantMaps(other.attn)

    def goal(output):
        return cross_entropy(output, y)

    plain_output, _, plain = gradient(net, x, goal)
    with attention_cut(net):
        output, _, cut = gradient(net, x, goal)
    assert torch.equal(output, plain_output)
    _, _, expected = gradient(reference, x, goal)
    torch.testing.assert_close(cut, expected)
    assert not torch.allclose(cut, plain)
    assert torch.equal(gradient(net, x, goal)[2], plain), "nothing is left behind"


@pytest.mark.parametrize("context", [attention_cut, token_gradients_levelled])
def test_hooks_leave_when_a_pass_fails(context):
    net, x = plain_vit(), torch.rand(1, 3, 32, 32)
    before = net(x)
    with pytest.raises(RuntimeError), context(net):
        net(torch.rand(1, 3, 32, 32).double())
    assert torch.equal(net(x), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_tgr_leaves_extremes_out_and_weakens_the_rest():
    grad = torch.randn(2, 5, 3).double()
    kept = level_tokens(grad, 0.5)
    for image, seen in zip(grad, kept, strict=True):
        for channel in range(3):
            order = image[:, channel].argsort()
            assert seen[order[[0, -1]], channel].tolist() == [0, 0]
            assert torch.equal(seen[order[1:-1], channel], 0.5 * image[order[1:-1], channel])
    maps = torch.zeros(1, 1, 4, 4).double() + 0.1
    maps[0, 0, 1, 2], maps[0, 0, 3, 0] = 9.0, -9.0
    left = level_map(maps)[0, 0]
    assert left.nonzero().tolist() == [[0, 1], [0, 3], [2, 1], [2, 3]]
    assert float(left[0, 1]) == pytest.approx(0.1 * MAP_SHARE)


@pytest.mark.parametrize("fused", [True, False])
def test_tgr_changes_the_gradient_and_not_the_output(fused):
    net, x = plain_vit(depth=1).double(), torch.rand(2, 3, 32, 32).double()
    net.blocks[0].attn.fused_attn = fused
    seen: dict[str, torch.Tensor] = {}
    net.blocks[0].attn.qkv.register_full_backward_hook(lambda m, given, out: seen.update(qkv=given[0]))
    net.blocks[0].norm1.register_full_backward_hook(lambda m, given, out: seen.update(norm=out[0]))
    with token_gradients_levelled(net):
        output, _, _ = gradient(net, x, lambda output: output[:, 0])
    torch.testing.assert_close(output, net(x).detach())
    torch.testing.assert_close(seen["norm"], level_tokens(seen["qkv"], INPUT_SHARE))
    alone = [gradient_of(net, x[i : i + 1]) for i in range(2)]
    torch.testing.assert_close(gradient_of(net, x), torch.cat(alone))


def gradient_of(net, x):
    with token_gradients_levelled(net):
        return gradient(net, x, lambda output: output[:, 0])[2]


@pytest.mark.parametrize("family", ["vit", "deit", "eva02", "cait", "swin", "levit", "xcit"])
@pytest.mark.parametrize("switch", ["pna", "tgr"])
def test_the_transformers_switches_work_in_every_family(family, switch):
    net = small_net(family)
    side = {"levit": 224, "eva02": 28}.get(family, 32)
    x = torch.rand(1, 3, side, side)
    y = net(x).argmax(1)
    threat = Threat("linf", 4 / 255)
    plain, changed = (
        transfer(net, x, y, threat, steps=1, early_stop=False, **given) for given in ({}, {switch: True})
    )
    assert not torch.equal(plain, changed)


def test_it_is_judged_by_the_victim_and_bad_settings_are_named():
    model, victim, x = tiny(seed=0), tiny(seed=1), images()
    y, threat = labelled(victim, x), Threat("linf", 0.2)
    outcome = run("transfer", model, x, y, threat, victim=victim, steps=3, diversity=0.5)
    assert torch.equal(outcome.success, victim.eval()(outcome.adv).argmax(1) != y)
    for given, message in (
        ({"diversity": 2.0}, "chance"),
        ({"smallest": 0.0}, "share"),
        ({"translation": 4}, "odd"),
    ):
        with pytest.raises(InputError, match=message):
            transfer(model, x, y, threat, **given)
    with pytest.raises(Unsupported, match="attention"):
        transfer(model, x, y, threat, pna=True)
