"""Attention scaling: what it finds, what it leaves behind, and the one case in which it must win."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import robvit
from helpers.networks import small_net
from helpers.planted import planted
from robvit.attacks import ATTACKS, Count, check_adversarial, find_scales, pgd, run
from robvit.attacks.core import supported
from robvit.attacks.scale_objectives import OBJECTIVES, View, lpips, unit
from robvit.attacks.scales import Scaled
from robvit.attention import attention_layers, watch
from robvit.backbones.model import Model
from robvit.data import open_data
from robvit.errors import InputError, UnknownName, Unsupported
from robvit.threat import NORMS, Threat

LINF = Threat("linf", 8 / 255)
FAMILIES = ["vit", "deit", "dinov2", "swin", "levit", "cait", "xcit"]
SCALING = [e.name for e in ATTACKS if e.info.needs == "attention"]


def small(family: str, count: int = 3) -> tuple[Model, torch.Tensor, torch.Tensor]:
    model = Model(small_net(family))
    x = torch.rand(count, 3, *model.input_size)
    return model, x, model(x).argmax(1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the gradient is zero")
@pytest.mark.parametrize("settings", [{"starts": 4}, {"space": "log", "starts": 2}])
def test_where_softmax_underflows_plain_pgd_fails_and_scaled_pgd_succeeds(settings):
    net, x, y = planted(1e4)
    threat = Threat("linf", 16 / 255)
    assert torch.equal(net(x).argmax(1), y)
    with watch(net, scores=True) as seen:
        net(x)
    top = seen.scores[0][:, 0, 0].topk(2).values
    assert (top[:, 0] - top[:, 1] > 110).all()  # exp(-104) is the least that float32 can hold
    plain = run("pgd", net, x, y, threat, steps=8, restarts=4)
    assert "ZeroGradient" in plain.warnings
    assert plain.robust_accuracy == 1
    assert run("aas", net, x, y, threat, steps=8, fit="batch", **settings).robust_accuracy == 0
    assert run("aas_uniform", net, x, y, threat, steps=8).robust_accuracy == 0
    assert run("pgd", planted(10.0)[0], x, y, threat, steps=8).robust_accuracy == 0  # it was the softmax


@pytest.mark.parametrize("objective", [e.name for e in OBJECTIVES])
@pytest.mark.parametrize("space", ["linear", "log"])
def test_scales_stay_in_range_and_are_left_nowhere(objective, space):
    model, x, y = small("vit")
    before = model(x)
    found = find_scales(
        model, [(x, y), (x.flip(3), y)], objective=objective, space=space, step_size=100.0, starts=2, low=1e-3
    )
    assert len(found.values) == len(attention_layers(model)) == 2
    assert all(torch.tensor(1e-3) <= value <= 1 for value in torch.tensor(found.values))
    assert torch.equal(model(x), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_same_seed_finds_the_same_and_the_best_start_is_kept():
    model, x, y = small("vit")
    found = [
        find_scales(model, [(x, y)], steps=1, step_size=0.0, space="log", starts=k, seed=1)
        for k in (1, 2, 8, 8)
    ]
    assert found[2] == found[3]
    assert found[2].value == pytest.approx(_distance(model, x, found[2].values), rel=1e-4)
    values = [_distance(model, x, some.values) for some in found]
    assert values == sorted(values)
    assert values[0] < values[-1]


@torch.no_grad()
def _distance(model: Model, x: torch.Tensor, scales: tuple[float, ...]) -> float:
    views = []
    for some in ((1.0,) * len(scales), scales):
        with watch(model, residual=True) as seen:
            views.append(View(Scaled(model, some)(x), list(seen.residual)))
    return float(unit(views[1], views[0], None).mean())


def test_ascent_increases_its_objective():
    model, x, y = small("mini")
    start = find_scales(model, [(x, y)], steps=1, step_size=0.0).values
    end = find_scales(model, [(x, y)], steps=10).values
    assert _distance(model, x, end) > _distance(model, x, start)


@pytest.mark.slow
def test_it_tells_how_far_the_ascent_moved_and_a_search_without_steps_is_its_start():
    model, x, y = small("mini")
    batches = [(x, y), (x.flip(3), y)]
    found = {kind: find_scales(model, batches, direction=kind) for kind in ("gradient", "sign", "unit")}
    for one in found.values():
        assert len(one.moved) == 2
        gaps = [abs(end - start) for end, start in zip(one.values, one.start, strict=True)]
        assert one.moved[-1] == pytest.approx(max(gaps))
        assert one.metrics()["scales, furthest move of the ascent"] == max(one.moved)
        assert one.metrics()["scale 1"] == one.values[0]
    small_step = find_scales(model, [(x, y)], steps=1, step_size=0.01, direction="sign")
    assert small_step.moved[0] == pytest.approx(0.01, abs=1e-6)
    still = find_scales(model, [(x, y)], steps=0)
    assert (still.values, still.moved, still.forward) == (still.start, (0.0,), 0)
    assert still.start == find_scales(model, [(x, y)], steps=3).start


@pytest.mark.slow
def test_the_attack_on_a_data_set_fits_its_scales_on_training_images(tmp_path):
    given = {"steps": 1, "fit_images": 8, "fit_batch": 4, "scale_steps": 2}
    record = robvit.attack("robvit-mini", "sample", attack="aas", settings=given, limit=2, out=tmp_path)
    model = robvit.load("robvit-mini")
    train = open_data("sample", split="train")
    names = [train.names[i] for i in reversed(train.balanced_order(0))][:8]
    learned = open_data("sample", split="train", subset=names).batches(4)
    expected = find_scales(model, learned, steps=2, seed=0)
    assert record.metrics == expected.metrics()
    assert record.trials[-1].settings == {"seed": 0, **given}  # other models are compared by what was asked
    per_batch = robvit.attack(
        "robvit-mini", "sample", attack="aas", settings={**given, "fit": "batch"}, limit=2
    )
    assert "scales" not in per_batch.trials[-1].settings
    with pytest.raises(InputError, match=r"aas learns from training images.*fit=batch"):
        robvit.attack("robvit-mini", open_data("sample", limit=2), attack="aas", settings={"steps": 1})


def test_distances_are_those_of_their_formulas():
    a, b = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]]), torch.tensor([[[0.0, 0.0], [2.0, 0.0]]])
    seen, reference = View(a[0], [a, 2 * a]), View(b[0], [b, b])
    assert float(unit(seen, reference, None)) == pytest.approx(2 * 2**0.5)  # both at right angles
    gaps = [29**0.5 / (5 * 2), 104**0.5 / (10 * 2)]
    assert float(lpips(seen, reference, None)) == pytest.approx(sum(gaps))


def test_it_goes_on_from_given_factors():
    model, x, y = small("vit")
    once = find_scales(model, [(x, y)], steps=2).values
    still = find_scales(model, [(x, y)], begin=once, steps=1, step_size=0.0, seed=3).values
    noise = torch.randn(2, generator=torch.Generator().manual_seed(random.Random("3 0 0").getrandbits(63)))
    torch.testing.assert_close(torch.tensor(still), (torch.tensor(once) + noise).clamp(1e-7, 1))
    with pytest.raises(InputError, match="each of 2 blocks to begin, got 1"):
        find_scales(model, [(x, y)], begin=[1.0])


@pytest.mark.slow
def test_only_the_wanted_blocks_are_scaled():
    model, x, y = small("mini")
    count = len(attention_layers(model))
    first = find_scales(model, [(x, y)], blocks=2, space="log").values
    assert all(v < 1 for v in first[:2])
    assert first[2:] == (1.0,) * (count - 2)
    some = find_scales(model, [(x, y)], blocks=[1, 3], space="log").values
    assert [i for i, v in enumerate(some) if v != 1] == [1, 3]
    with pytest.raises(InputError, match=f"number up to {count}.*got {count + 1}"):
        find_scales(model, [(x, y)], blocks=count + 1)


def test_finding_scales_costs_what_it_needs_and_every_pass_is_counted():
    model, x, y = small("vit")
    counted = Count(model)
    found = find_scales(counted, [(x, y)], steps=10)
    assert (found.forward, found.backward) == (counted.forward, counted.backward) == (11 * 3, 10 * 3)
    assert all(p.grad is None for p in model.parameters())
    counted = Count(model)
    found = find_scales(counted, [(x, y)], steps=10, starts=3, objective="margin")
    # One reference for all starts; one pass more to compare where each ends.
    assert (found.forward, found.backward) == (counted.forward, counted.backward) == (34 * 3, 30 * 3)


@pytest.mark.parametrize("base", ["pgd", "fgsm", "pgd_margin", "pgd_dlr", "gama", "apgd_ce"])
def test_at_scale_one_it_is_the_base_attack_bit_for_bit(base):
    model, x, y = small("vit")
    settings = supported(base, steps=3)
    ones = [1.0] * len(attention_layers(model))
    expected = ATTACKS[base](model, x, y, LINF, seed=5, **settings, **supported(base, early_stop=False))
    assert torch.equal(
        ATTACKS["aas"](model, x, y, LINF, base=base, scales=ones, seed=5, **settings), expected
    )
    made = ATTACKS["aas_uniform"](model, x, y, LINF, base=base, factors=1.0, seed=5, **settings)
    assert torch.equal(made, expected)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", SCALING)
def test_every_family_is_attacked_and_left_as_it_was(name, family):
    model, x, y = small(family, 2)
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    adv = ATTACKS[name](model, x, y, LINF, **ATTACKS.info(name).check.quick)
    check_adversarial(x, adv, LINF)
    assert not torch.equal(adv, x)
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", SCALING)
def test_it_keeps_to_every_norm_and_repeats_itself(name, norm):
    model, x, y = small("vit")
    threat, quick = (
        Threat(norm, {"linf": 0.1, "l2": 0.6, "l1": 3.0}[norm]),
        ATTACKS.info(name).check.quick,
    )
    adv = ATTACKS[name](model, x, y, threat, **quick)
    check_adversarial(x, adv, threat)
    assert torch.equal(adv, ATTACKS[name](model, x, y, threat, **quick))


@pytest.mark.slow
def test_images_are_crafted_to_the_end_and_judged_unscaled():
    """On the scaled model all images are wrong from the start: an attack that asks it would do nothing."""
    model = robvit.load("robvit-mini")
    images = open_data("sample", limit=8)
    x, y = images.tensors()
    correct = model(x).argmax(1) == y
    x, y = x[correct], y[correct]
    flipped = Count(Scaled(model, [-3.0] * len(attention_layers(model))))
    assert (flipped(x).argmax(1) != y).any()
    adv = ATTACKS["aas"](model, x, y, LINF, scales=[-3.0] * len(attention_layers(model)), steps=3)
    assert (adv != x).flatten(1).any(1).all()
    outcome = run("aas_uniform", model, x, y, LINF, factors=0.5, steps=3)
    assert torch.equal(outcome.success, model(outcome.adv).argmax(1) != y)


@pytest.mark.slow
def test_of_several_factors_the_one_that_fools_the_unscaled_model_most_is_kept():
    model = robvit.load("robvit-mini-robust")
    x, y = open_data("sample", limit=12).tensors()
    factors = (10.0, 0.5, 1e-5)
    hits = [int(run("aas_uniform", model, x, y, LINF, factors=f, steps=3).success.sum()) for f in factors]
    assert int(run("aas_uniform", model, x, y, LINF, factors=factors, steps=3).success.sum()) == max(hits)
    assert len(set(hits)) > 1


def test_models_without_attention_and_unknown_settings_are_refused():
    x, y = torch.rand(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)
    linear = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(Unsupported, match=r"no attention layer.*ViT"):
        ATTACKS["aas"](linear, x, y, LINF)
    with pytest.raises(Unsupported, match="pass the torch module itself"):
        find_scales(torch.sin, [(x, y)])
    model, x, y = small("vit")
    with pytest.raises(UnknownName, match=r"setting of fgsm.*steps"):
        ATTACKS["aas"](model, x, y, LINF, base="fgsm", fit="batch", steps=3)
    with pytest.raises(UnknownName, match="nonsense"):
        find_scales(model, [(x, y)], objective="nonsense")
    with pytest.raises(InputError, match="margin needs labels"):
        find_scales(model, [(x, None)], objective="margin")
    with pytest.raises(InputError, match=r"on training images, got none.*fit=\"batch\""):
        ATTACKS["aas"](model, x, y, LINF)
    with pytest.raises(UnknownName, match="way to fit scales"):
        ATTACKS["aas"](model, x, y, LINF, fit="trian")
    with pytest.raises(UnknownName, match="direction"):
        find_scales(model, [(x, y)], direction="up")
    with pytest.raises(InputError, match="got no batch"):
        find_scales(model, [])
    model.net.set_grad_checkpointing(True)
    with pytest.raises(Unsupported, match="set_grad_checkpointing"):
        find_scales(model, [(x, y)])


def test_gradients_of_the_scaled_model_are_its_own():
    model, x, y = small("vit")
    adv = pgd(Scaled(model, [0.1, 0.1]), x, y, LINF, steps=2, early_stop=False)
    with torch.no_grad():
        for block in model.net.blocks:  # the same model, with the scale in its weights
            block.attn.qkv.weight[:48] *= 0.1
            block.attn.qkv.bias[:48] *= 0.1
    torch.testing.assert_close(pgd(model, x, y, LINF, steps=2, early_stop=False), adv, rtol=0, atol=1e-5)
