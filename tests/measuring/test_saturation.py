"""What saturates: Delta, one-hot rows and lost gradients, against cases whose answer is known."""

from __future__ import annotations

import pytest
import torch

from helpers.networks import small_net
from helpers.planted import planted
from robvit.attacks.precision import DTYPES
from robvit.attention import attention_layers, watch
from robvit.backbones.model import Model
from robvit.measuring.saturation import (
    delta_curve,
    gradient_quality,
    saturation,
    saturation_table,
    smallest_exponent,
)


@pytest.mark.parametrize("precision", DTYPES)
def test_a_weight_rounds_to_zero_just_where_it_is_said(precision):
    edge = smallest_exponent(precision)
    for gap, vanishes in ((edge * 0.98, False), (edge * 1.02, True)):
        weights = torch.tensor([0.0, -gap], dtype=torch.float64).softmax(0).to(DTYPES[precision])
        assert (float(weights[1]) == 0) == vanishes


@pytest.mark.parametrize(
    ("sharpness", "one_hot"), [(10.0, ()), (900.0, ("fp16",)), (1e4, ("fp32", "bf16", "fp16"))]
)
def test_the_class_tokens_row_of_the_planted_model_is_one_hot_where_it_must_be(sharpness, one_hot):
    """Brightness differs by 0.05, so Delta is a twentieth of the sharpness; the other rows are flat."""
    net, x, y = planted(sharpness)
    (layer,) = saturation(net, [(x[:5], y[:5]), (x[5:], y[5:])])
    own = layer.delta.view(8, 5)[:, 0]
    torch.testing.assert_close(own, torch.full((8,), 0.05 * sharpness), rtol=0.15, atol=0)
    assert (layer.delta.view(8, 5)[:, 1:] == 0).all()
    for name in DTYPES:
        assert layer.one_hot[name] == pytest.approx(0.2 if name in one_hot else 0)
        # Rows of patches have no gradient, since only the class token is read; its own goes with the one-hot.
        if name == "fp32":
            assert layer.dead_rows[name] == pytest.approx(1.0 if name in one_hot else 0.8)


def test_scaling_divides_delta_and_brings_gradients_back():
    net, x, y = planted(1e4)
    (before,), (after,) = saturation(net, [(x, y)]), saturation(net, [(x, y)], scales=[1e-3])
    torch.testing.assert_close(after.delta, before.delta * 1e-3, rtol=1e-3, atol=1e-6)
    assert after.one_hot["fp32"] == 0
    assert (before.dead_rows["fp32"], after.dead_rows["fp32"]) == (1.0, pytest.approx(0.8))
    dead, alive = gradient_quality(net, x, y), gradient_quality(net, x, y, scales=[1e-3])
    assert dead.zero["fp32"] == 1
    assert dead.wrong_signs > 0.4  # float64 still has a gradient of e^-500
    assert dead.rounding == 1
    assert alive.zero["fp32"] < 0.6
    assert alive.rounding < 1e-6
    assert 0 <= alive.noise < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("family", ["vit", "swin", "levit", "cait", "xcit"])
def test_every_family_can_be_looked_into_and_is_left_as_it_was(family):
    model = Model(small_net(family))
    x = torch.rand(2, 3, *model.input_size)
    y = model(x).argmax(1)
    fused = [getattr(layer, "fused_attn", None) for layer in attention_layers(model)]
    layers = saturation(model, [(x, y)])
    assert len(layers) == len(attention_layers(model)) == len(fused)
    assert fused == [getattr(layer, "fused_attn", None) for layer in attention_layers(model)]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    with watch(model, scores=True) as seen, torch.no_grad():
        model(x)
    top = seen.scores[0].topk(2).values
    torch.testing.assert_close(layers[0].delta, (top[..., 0] - top[..., 1]).flatten(), rtol=1e-3, atol=1e-5)
    assert gradient_quality(model, x, y).rounding < 1e-3


def test_curves_and_tables_say_what_was_seen():
    net, x, y = planted(1e4)
    layers = saturation(net, [(x, y)])
    (curve,) = delta_curve("Delta", layers, saturation(net, [(x, y)], scales=[0.1]))
    assert set(curve.lines) == {"unscaled", "scaled"}
    for points in curve.lines.values():
        assert sum(share for _, share in points) == pytest.approx(1, abs=1e-5)
    table = saturation_table("Delta", layers)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["block"] == "1"
    assert row["largest"] == pytest.approx(float(layers[0].delta.max()))
    assert row["one-hot rows, fp32 %"] == pytest.approx(20)
    assert "fp32 104.0" in table.note
