"""Scales that are a part of the model: applied always, saved with it, its own in every copy."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import save_file

import robvit
from helpers.networks import SMALL_NETS, small_net
from robvit.attention import attention_layers, keep_scales, kept_scales, scaled
from robvit.backbones.model import Model
from robvit.errors import InputError


def prepared(family: str) -> tuple[Model, torch.Tensor, list[float]]:
    model = Model(small_net(family))
    return model, torch.rand(2, 3, *model.input_size), [0.5 / (i + 1) for i in range(depth(model))]


def depth(model: torch.nn.Module) -> int:
    return len(attention_layers(model))


@pytest.mark.parametrize("family", SMALL_NETS)
@torch.no_grad()
def test_kept_scales_do_what_scaled_does_and_scaled_comes_on_top(family):
    model, x, scales = prepared(family)
    assert kept_scales(model) is None
    plain = model(x)
    with scaled(model, scales):
        expected = model(x)
    assert not torch.equal(plain, expected)
    keep_scales(model, [1.0] * depth(model))
    assert torch.equal(model(x), plain)
    keep_scales(model, scales)
    assert torch.equal(model(x), expected)
    assert kept_scales(model).tolist() == pytest.approx(scales)
    with scaled(model, [0.25] * depth(model)):
        twice = model(x)
    assert torch.equal(model(x), expected)
    keep_scales(model, [0.25 * s for s in scales])
    torch.testing.assert_close(model(x), twice, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["vit", "swin", "cait", "xcit"])
@torch.no_grad()
def test_a_copy_has_scales_of_its_own(family):
    model, x, scales = prepared(family)
    keep_scales(model, scales)
    before, twin = model(x), copy.deepcopy(model)
    assert torch.equal(twin(x), before)
    keep_scales(twin, [0.1 * s for s in scales])
    assert torch.equal(model(x), before)
    assert not torch.equal(twin(x), before)
    with scaled(model, [0.5] * depth(model)):
        assert not torch.equal(model(x), before)
    assert torch.equal(model(x), before)


@torch.no_grad()
def test_they_ship_with_the_weights(tmp_path):
    model = robvit.load("robvit-mini")
    x = torch.rand(2, 3, 32, 32)
    plain, scales = model(x), [0.3, 0.2, 0.1, 1e-7]
    keep_scales(model, scales)
    expected = model(x)
    save_file(model.net.state_dict(), tmp_path / "model.safetensors")
    again = robvit.load(str(tmp_path / "model.safetensors"), arch="robvit-mini")
    assert torch.equal(again(x), expected)
    assert not torch.equal(expected, plain)
    assert kept_scales(again).tolist() == pytest.approx(scales)
    assert again.fingerprint() == model.fingerprint() != robvit.load("robvit-mini").fingerprint()


def test_a_wrong_number_of_scales_is_refused():
    model, _, scales = prepared("vit")
    with pytest.raises(InputError, match="each of 2 attention layers, got 1"):
        keep_scales(model, scales[:1])
