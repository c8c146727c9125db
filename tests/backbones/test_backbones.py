"""Laws of the backbones, over every family: tokens, features, attention, scales."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.networks import SMALL_NETS, small_net
from robvit.attention import attention_blocks, attention_layers, class_attention, scaled, watch
from robvit.backbones.model import Model
from robvit.errors import InputError, Unsupported

TAKE_EXTRA = [f for f in SMALL_NETS if not f.startswith(("swin", "levit"))]
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)


def small_model(family: str) -> tuple[Model, torch.Tensor]:
    model = Model(small_net(family), name=family, mean=MEAN, std=STD).eval()
    size = (32, 32) if family == "xcit" else model.input_size
    return model, torch.rand(2, 3, *size)


def timm_logits(model: Model, x: torch.Tensor) -> torch.Tensor:
    """What timm's own network says to the normalised images."""
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    return model.net((x - mean) / std)


@pytest.mark.parametrize("family", SMALL_NETS)
def test_logits_are_timms_bit_for_bit(family: str) -> None:
    model, x = small_model(family)
    assert torch.equal(model(x), timm_logits(model, x))


@pytest.mark.parametrize("family", TAKE_EXTRA)
def test_our_way_through_the_network_equals_timms_bit_for_bit(family: str) -> None:
    model, x = small_model(family)
    expected = timm_logits(model, x)
    assert torch.equal(model.logits(model.tokens(x)), expected)
    none = torch.zeros(1, 0, model.width)
    assert torch.equal(model.logits(model.tokens(x, extra=none)), expected)


@pytest.mark.parametrize("family", TAKE_EXTRA)
def test_extra_tokens_act_and_their_order_does_not_matter(family: str) -> None:
    model, x = small_model(family)
    model, x = model.double(), x.double()
    extra = torch.randn(1, 3, model.width, dtype=torch.double)
    plain, some, turned = model.tokens(x), model.tokens(x, extra), model.tokens(x, extra.flip(1))
    assert (plain.patch - some.patch).abs().max() > 1e-4
    torch.testing.assert_close(some.patch, turned.patch, rtol=0, atol=1e-12)
    torch.testing.assert_close(some.prefix, turned.prefix, rtol=0, atol=1e-12)
    torch.testing.assert_close(some.extra, turned.extra.flip(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", TAKE_EXTRA)
def test_features_have_no_place_for_extra_tokens_or_registers(family: str) -> None:
    model, x = small_model(family)
    expected = (2, model.has_class_token + model.tokens(x).patch.shape[1], model.width)
    assert model.features(x).shape == expected
    assert model.features(x, torch.randn(1, 7, model.width)).shape == expected
    rows, columns = model.tokens(x).grid
    assert rows * columns == model.tokens(x).patch.shape[1]


def test_registers_are_in_the_prefix_but_not_among_the_features() -> None:
    model, x = small_model("dinov2-reg")
    assert model.tokens(x).prefix.shape[1] == 5
    assert torch.equal(model.features(x)[:, 0], model.tokens(x).prefix[:, 0])


def test_extra_tokens_are_not_rotated() -> None:
    """With equal patches, rotary positions are all that tells patches apart; extra tokens have none."""
    model, _ = small_model("eva02")
    model = model.double()
    x = torch.rand(1, 3, 28, 28, dtype=torch.double)
    twin = torch.randn(1, 1, model.width, dtype=torch.double).repeat(1, 2, 1)
    seen = model.tokens(x, twin).extra
    torch.testing.assert_close(seen[:, 0], seen[:, 1], rtol=0, atol=1e-12)


def test_extra_tokens_enter_after_the_norm_of_clip() -> None:
    model, x = small_model("clip")
    extra = torch.randn(1, 2, model.width)
    with watch(model, residual=True) as seen:
        model.tokens(x, extra)
    inputs = []
    handle = model.net.blocks[0].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    model.tokens(x, extra)
    handle.remove()
    assert torch.equal(inputs[0][:, -2:], extra.expand(2, -1, -1))
    assert len(seen.residual) == 2


@pytest.mark.parametrize("family", ["swin", "levit", "levit-conv"])
def test_families_without_a_token_sequence_say_so(family: str) -> None:
    model, x = small_model(family)
    assert model.features(x).shape[-1] == model.width
    with pytest.raises(Unsupported, match="no single token sequence"):
        model.tokens(x, torch.zeros(1, 2, model.width))
    with pytest.raises(Unsupported, match="no single token sequence"):
        Model(model.net, tokens=torch.zeros(1, 2, model.width))


@pytest.mark.parametrize("family", SMALL_NETS)
def test_watching_changes_nothing_and_leaves_nothing(family: str) -> None:
    model, x = small_model(family)
    expected = model(x)
    layers = attention_layers(model)
    with watch(model, residual=True, scores=True, maps=True) as seen:
        assert torch.equal(model(x), expected)
        assert torch.equal(model(x), expected)  # the second pass replaces what the first showed
    assert len(seen.scores) == len(seen.maps) == len(seen.residual) == len(layers)
    assert set(model.family.blocks(model.net)) <= set(attention_blocks(model))
    for attention in seen.maps:
        torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention.sum(-1)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("family", ["vit", "clip", "dinov2-reg", "eva02", "dinov3", "cait", "swin", "xcit"])
def test_scores_of_the_fused_kernel_are_those_of_the_plain_one(family: str) -> None:
    model, x = small_model(family)
    seen = {}
    for fused in (True, False):
        for layer in attention_layers(model):
            layer.fused_attn = fused
        with watch(model, scores=True) as seen[fused]:
            model(x)
    for kernel, plain in zip(seen[True].scores, seen[False].scores, strict=True):
        torch.testing.assert_close(kernel, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", SMALL_NETS)
def test_scale_one_changes_no_bit(family: str) -> None:
    model, x = small_model(family)
    expected = model(x)
    with scaled(model, torch.ones(len(attention_layers(model)))):
        assert torch.equal(model(x), expected)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("family", SMALL_NETS)
def test_scales_multiply_the_products_and_not_the_bias(family: str, fused: bool) -> None:
    """Scores are bias + s * product: with the bias seen at s = 0, the rest must be in proportion."""
    model, x = small_model(family)
    layers = attention_layers(model)
    for layer in layers:
        layer.fused_attn = fused
    first = {}
    for scale in (0.0, 0.5, 1.0):
        with scaled(model, [scale] + [1.0] * (len(layers) - 1)), watch(model, scores=True) as seen:
            model(x)
        first[scale] = seen.scores[0]
    assert (first[1.0] - first[0.0]).abs().max() > 1e-4
    torch.testing.assert_close(first[0.5], (first[0.0] + first[1.0]) / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["vit", "xcit", "cait", "swin", "levit", "eva02"])
def test_gradients_reach_every_scale(family: str) -> None:
    model, x = small_model(family)
    scales = torch.full((len(attention_layers(model)),), 0.7, requires_grad=True)
    with scaled(model, scales):
        model(x).square().sum().backward()
    assert scales.grad is not None
    assert (scales.grad != 0).all()


def test_a_failing_pass_leaves_no_scale_behind() -> None:
    model, x = small_model("xcit")
    names = set(model.state_dict())
    layers = attention_layers(model)
    broken = layers[0].proj.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), scaled(model, [0.5] * len(layers)):
        model(x)
    broken.remove()
    assert set(model.state_dict()) == names
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_wrong_number_of_scales_and_models_without_attention_are_refused() -> None:
    model, _ = small_model("vit")
    with pytest.raises(InputError, match="each of 2 attention layers, got 3"), scaled(model, [1.0] * 3):
        pass
    with pytest.raises(Unsupported, match="no attention layer"):
        attention_layers(torch.nn.Linear(2, 2))


def test_wrong_images_and_tokens_get_a_remedy() -> None:
    model, x = small_model("vit")
    with pytest.raises(InputError, match=r"loaded for 32x32 images, got 16x16.*img_size=16"):
        model(x[..., :16, :16])
    with pytest.raises(InputError, match=r"\(B 3 H W\)"):
        model(x[0])
    with pytest.raises(InputError, match=r"\(1 R 48\).*got \(1, 2, 47\)"):
        model.tokens(x, torch.zeros(1, 2, 47))


def test_fingerprint_is_of_the_weights_and_not_of_the_input_size() -> None:
    import timm

    def build(size: int, seed: int) -> Model:
        torch.manual_seed(seed)
        slim = {"depth": 1, "embed_dim": 48, "num_heads": 3}
        return Model(timm.create_model("vit_tiny_patch16_224", img_size=size, **slim))

    small, other = build(32, 0), build(32, 1)
    large = build(64, 2)
    fitted = timm.models.vision_transformer.checkpoint_filter_fn(small.net.state_dict(), large.net)
    large.net.load_state_dict(fitted)
    assert small.fingerprint() == large.fingerprint() != other.fingerprint()


def test_fingerprint_does_not_ask_how_class_token_and_its_position_are_split() -> None:
    model = Model(small_net("dinov2"))
    before = model.fingerprint()
    with torch.no_grad():
        total = model.net.cls_token + model.net.pos_embed[:, :1]
        model.net.cls_token.copy_(total / 2)
        model.net.pos_embed[:, :1] = total / 2
    assert model.fingerprint() == before
    with torch.no_grad():
        model.net.cls_token.mul_(1.01)
    assert model.fingerprint() != before


def test_secret_tokens_are_in_no_state_dict() -> None:
    net = small_net("vit")
    model = Model(net, tokens=torch.randn(1, 3, 48))
    assert "extra" not in model.state_dict()


@pytest.mark.parametrize("family", ["vit", "eva02", "xcit", "cait"])
def test_gradient_checkpointing_gives_the_same_gradients(family: str) -> None:
    model, x = small_model(family)
    extra = torch.randn(1, 2, model.width)
    grads = list[torch.Tensor]()
    for switched in (False, True):
        model.net.set_grad_checkpointing(switched)
        point = x.clone().requires_grad_()
        grads += torch.autograd.grad(model.features(point, extra).sum(), point)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", SMALL_NETS)
def test_where_the_class_token_looks_is_its_row_of_the_last_block(family: str) -> None:
    model, x = small_model(family)
    looks = class_attention(model, x)
    tokens = model.tokens(x)
    if family.startswith(("swin", "levit", "siglip")):
        assert looks is None  # windows, or no class token
        return
    assert looks is not None
    assert looks.shape == (len(x), *tokens.grid)
    with watch(model, maps=True) as seen:
        model(x)
    row = seen.maps[-1].mean(1)[:, 0]
    assert torch.equal(looks.flatten(1), row[:, -tokens.patch.shape[1] :])
    assert (looks.flatten(1).sum(1) < 1).all()  # the class token looks at itself, too


def test_extra_tokens_do_not_shift_the_map() -> None:
    model, x = small_model("vit")
    hardened = model.replace(tokens=torch.randn(1, 3, model.width))
    looks, tokens = class_attention(hardened, x), hardened.tokens(x)
    with watch(hardened, maps=True) as seen:
        hardened.tokens(x)
    prefix, count = tokens.prefix.shape[1], tokens.patch.shape[1]
    assert looks is not None
    assert torch.equal(looks.flatten(1), seen.maps[-1].mean(1)[:, 0, prefix : prefix + count])


def test_a_replaced_part_leaves_the_rest_and_the_model_itself_as_they_are() -> None:
    model = Model(small_net("vit"), name="small", mean=MEAN, std=STD, input_size=(32, 32)).eval().double()
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    before, plain = model.identity(), model(x)
    strong = model.replace(tokens=torch.randn(2, 3, 48).double(), layers=(0, 1))
    head = nn.Module()
    named = strong.replace(head=head, name="other")
    assert (named.name, named.head, named.layers) == ("other", head, (0, 1))
    assert named.extra is strong.extra
    assert named.mean.dtype == torch.float64
    assert (named.input_size, named.training) == (model.input_size, False)
    assert all(a is b for a, b in zip(named.net.parameters(), model.net.parameters(), strict=True))
    assert torch.equal(named.replace(head=None, tokens=None)(x), plain)
    assert model.identity() == before
    assert model.replace().identity() == before
