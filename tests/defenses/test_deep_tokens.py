"""Tokens in any layer: the laws over every family, as files, and what cannot take them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.networks import SMALL_NETS, small_net
from robvit.backbones.model import Model
from robvit.defenses.bake import bake
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError, Unsupported, WrongBackbone
from robvit.tensor_files import FORMATS

TAKE_EXTRA = [f for f in SMALL_NETS if not f.startswith(("swin", "levit"))]


def small_model(family: str) -> tuple[Model, torch.Tensor]:
    model = Model(small_net(family), name=family).eval()
    size = (32, 32) if family == "xcit" else model.input_size
    return model, torch.rand(2, 3, *size)


def block_inputs(model: Model, x: torch.Tensor, *arguments: object) -> list[torch.Tensor]:
    """What enters each of the blocks that tokens may enter."""
    seen: list[torch.Tensor] = []
    hooks = [
        block.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        for block in model.family.blocks(model.net)[: model.depth]
    ]
    model.tokens(x, *arguments)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("family", TAKE_EXTRA)
def test_each_layers_tokens_stand_before_its_block_and_no_other(family: str) -> None:
    model, x = small_model(family)
    plain = block_inputs(model, x)
    extra = torch.randn(2, 3, model.width)
    deep = block_inputs(model, x, extra, (0, 1))
    for layer in (0, 1):
        assert torch.equal(deep[layer][:, -3:], extra[layer].expand(2, -1, -1))
        assert deep[layer].shape[1] == plain[layer].shape[1] + 3
    late = block_inputs(model, x, extra[1:], (1,))
    assert torch.equal(late[0], plain[0])
    assert torch.equal(late[1][:, :-3], plain[1])
    assert torch.equal(late[1][:, -3:], extra[1].expand(2, -1, -1))


@pytest.mark.parametrize("family", TAKE_EXTRA)
def test_no_tokens_in_any_layer_change_no_bit(family: str) -> None:
    model, x = small_model(family)
    none = torch.zeros(model.depth, 0, model.width)
    assert torch.equal(model.replace(tokens=none, layers=range(model.depth))(x), model(x))


@pytest.mark.parametrize("family", TAKE_EXTRA)
def test_a_second_layer_with_what_the_first_left_changes_little_else(family: str) -> None:
    """Replacing the extra tokens by what they had become anyway is no replacement."""
    model, x = small_model(family)
    model, x = model.double(), x[:1].double()
    first = torch.randn(1, 3, model.width, dtype=torch.double)
    shallow = model.tokens(x, first)
    arrived = block_inputs(model, x, first)[1][:, -3:]
    again = model.tokens(x, torch.cat((first, arrived)), (0, 1))
    torch.testing.assert_close(again.patch, shallow.patch, rtol=0, atol=1e-12)
    other = model.tokens(x, torch.cat((first, torch.randn_like(first))), (0, 1))
    assert (other.patch - shallow.patch).abs().max() > 1e-6


def test_layers_that_do_not_fit_are_refused() -> None:
    model, x = small_model("vit")
    extra = torch.zeros(2, 3, 48)
    assert model.chosen_layers("all") == (0, 1)
    for layers in ((0, 2), (1, 0), (0, 0), (-1, 0), ()):
        with pytest.raises(InputError, match=r"rising numbers in 0\.\.1"):
            model.tokens(x, extra, layers)
    with pytest.raises(InputError, match=r"must be \(2 R 48\)"):
        model.replace(tokens=torch.zeros(1, 3, 48), layers=(0, 1))


def test_deep_tokens_survive_saving_and_tell_models_apart(tmp_path: Path) -> None:
    model, x = small_model("vit")
    tokens = RobustTokens(torch.randn(2, 3, 48), model.fingerprint(), layers=(0, 1))
    tokens.save(tmp_path / "t.safetensors")
    again = RobustTokens.load(tmp_path / "t.safetensors")
    assert again.layers == (0, 1)
    assert (again.key_id, again.count) == (tokens.key_id, 3)
    assert torch.equal(model.replace(tokens=again)(x), model.replace(tokens=tokens.values, layers=(0, 1))(x))
    assert not torch.equal(model.replace(tokens=again)(x), model(x))
    one = tokens.values[:1]
    assert (
        model.replace(tokens=one, layers=(0,)).identity() != model.replace(tokens=one, layers=(1,)).identity()
    )
    with pytest.raises(InputError, match="tokens for 1 layers"):
        RobustTokens(torch.randn(2, 3, 48))
    with pytest.raises(WrongBackbone):
        tokens.check(Model(small_net("deit3")).eval())


def test_files_from_before_there_were_layers_still_load(tmp_path: Path) -> None:
    about = json.dumps({"fingerprint": "", "key_id": "abc", "settings": {}})
    save_file(
        {"tokens": torch.ones(1, 2, 4)},
        tmp_path / "t.safetensors",
        {"format": FORMATS["tokens"].word, "about": about},
    )
    assert RobustTokens.load(tmp_path / "t.safetensors").layers == (0,)


def test_deep_tokens_cannot_be_baked() -> None:
    model, _ = small_model("vit")
    tokens = RobustTokens(torch.randn(2, 3, 48), model.fingerprint(), layers=(0, 1))
    with pytest.raises(Unsupported, match="before the first block only"):
        bake(model, tokens)
