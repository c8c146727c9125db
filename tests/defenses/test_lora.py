"""LoRA: factors that change nothing at first, a file that fits its weights alone, an exact merge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import robvit
from helpers.lora import changed_lora
from helpers.networks import SMALL_NETS, small_net
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.defenses.lora import LoRA
from robvit.defenses.low_rank import linear_layers, lora_of, trainable
from robvit.errors import InputError, Unsupported, WrongBackbone

FAMILIES = [name for name in SMALL_NETS if name != "levit-conv"]  # convolutions, no linear layers


@pytest.fixture(scope="module")
def mini() -> Model:
    return robvit.load("robvit-mini")


@pytest.mark.parametrize("family", FAMILIES)
def test_factors_change_nothing_at_first_and_merge_into_what_they_were(family: str) -> None:
    model = Model(small_net(family), name=family).eval()
    x = torch.rand(2, 3, *model.input_size)
    twin, factors = trainable(model, 2, 4.0)
    with torch.no_grad():
        assert torch.equal(twin.features(x), model.features(x))
    assert torch.equal(twin.features(x), model.features(x))  # the form that gives gradients to factors alone
    for part in factors.children():
        nn.init.normal_(part.up, std=0.02)
        part.up.data, part.down.data = part.up.bfloat16().float(), part.down.bfloat16().float()
    merged = lora_of(factors, 4.0, model.fingerprint(), {}).merge(model)
    learning = twin.features(x)
    with torch.no_grad():
        torch.testing.assert_close(merged.features(x), twin.features(x), rtol=0, atol=0)
        torch.testing.assert_close(merged.features(x), learning, rtol=1e-4, atol=1e-4)
        assert (merged.features(x) - model.features(x)).abs().max() > 1e-3
    grads = torch.autograd.grad(learning.sum(), list(factors.parameters()))
    assert all(torch.isfinite(g).all() for g in grads)
    assert not any(
        p.requires_grad for p in twin.net.parameters() if id(p) not in map(id, factors.parameters())
    )


def test_merging_is_exact_to_rounding_in_double_precision() -> None:
    model = Model(small_net("dinov2"), name="d").eval().double()
    twin, factors = trainable(model, 2, 4.0)
    factors.double()
    for part in factors.children():
        nn.init.normal_(part.up, std=0.02)
        part.up.data, part.down.data = part.up.bfloat16().double(), part.down.bfloat16().double()
    x = torch.rand(2, 3, 28, 28, dtype=torch.double)
    merged = lora_of(factors, 4.0, model.fingerprint(), {}).merge(model)
    torch.testing.assert_close(merged.features(x), twin.features(x), rtol=0, atol=1e-5)


def test_a_file_gives_back_what_was_saved(tmp_path: Path, mini: Model) -> None:
    lora = changed_lora(mini)
    lora.save(tmp_path / "lora.safetensors")
    again = LoRA.load(tmp_path / "lora.safetensors")
    assert str(again) == str(lora)
    assert (again.alpha, again.rank, again.settings) == (8.0, 3, {"eps": 1 / 255})
    assert (tmp_path / "lora.safetensors").stat().st_size < 2 * lora.size + 20_000
    x = torch.rand(2, 3, 32, 32)
    loaded = robvit.load("robvit-mini", lora=tmp_path / "lora.safetensors")
    assert torch.equal(loaded(x), lora.merge(mini)(x))
    assert not torch.equal(loaded(x), mini(x))
    assert torch.equal(mini(x), robvit.load("robvit-mini")(x))  # the original is untouched


def test_heads_of_the_original_fit_and_tokens_must_come_later(mini: Model) -> None:
    lora = changed_lora(mini)
    head = LinearHead(2 * mini.width, 10, mini.fingerprint())
    merged = lora.merge(mini)
    head.check(merged)
    head.check(merged.replace(tokens=None))
    with pytest.raises(WrongBackbone, match="was trained on a backbone"):
        LinearHead(2 * mini.width, 10, "0" * 64).check(merged)
    with pytest.raises(InputError, match="merge first"):
        lora.merge(mini.replace(tokens=torch.zeros(1, 2, mini.width)))
    with pytest.raises(WrongBackbone, match="exact weights"):
        lora.merge(merged)  # twice


def test_other_weights_and_other_shapes_are_refused(mini: Model) -> None:
    lora = changed_lora(mini)
    other = robvit.load("robvit-mini-robust")
    with pytest.raises(WrongBackbone, match="fingerprint"):
        lora.merge(other)
    with pytest.raises(
        WrongBackbone, match=r"linear layer blocks\.0\.attn\.qkv \(384, 128\).*has \(144, 48\)"
    ):
        lora.merge(Model(small_net("vit"), name="narrow"))
    with pytest.raises(WrongBackbone, match="no such linear layer"):
        lora.merge(Model(nn.Sequential(nn.Flatten()), name="none"))


def test_networks_without_linear_layers_and_blocks_that_are_not_there_are_refused(mini: Model) -> None:
    with pytest.raises(Unsupported, match="no linear layers"):
        linear_layers(Model(timm.create_model("resnet10t"), name="resnet"))
    with pytest.raises(InputError, match="blocks must be"):
        linear_layers(mini, 9)
    assert {name.split(".")[1] for name in linear_layers(mini, 2)} == {"0", "1"}


def broken_files() -> dict[str, tuple[dict[str, torch.Tensor], dict[str, Any] | None, str]]:
    about = {"alpha": 4.0, "fingerprint": "0" * 64, "settings": {}}
    down, up = torch.ones(2, 8).bfloat16(), torch.ones(6, 2).bfloat16()
    pair = {"a.down": down, "a.up": up}
    return {
        "no factors": ({}, about, "needs factors"),
        "half a pair": ({"a.down": down}, about, "must have .down and .up"),
        "foreign tensor": ({**pair, "b": up.clone()}, about, "must have .down and .up"),
        "not finite": ({"a.down": down * float("inf"), "a.up": up}, about, "must be finite"),
        "ranks apart": ({"a.down": torch.ones(3, 8), "a.up": up}, about, r"\(r I\) and \(O r\)"),
        "two ranks": (
            {**pair, "b.down": down[:1].clone(), "b.up": up[:, :1].contiguous()},
            about,
            "one rank",
        ),
        "whole numbers": ({"a.down": down.int(), "a.up": up.int()}, about, "must be floats"),
        "one axis": ({"a.down": down[0].contiguous(), "a.up": up}, about, "must be floats"),
        "alpha in words": (pair, {**about, "alpha": "much"}, "alpha must be of type float"),
        "endless alpha": (pair, {**about, "alpha": float("inf")}, "alpha must be a finite"),
        "more facts": (pair, {**about, "code": "print()"}, "damaged"),
        "no facts": (pair, None, "does not hold a LoRA"),
    }


@pytest.mark.parametrize("name", broken_files())
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    tensors, about, words = broken_files()[name]
    facts = {} if about is None else {"format": "robvit-lora-1", "about": json.dumps(about)}
    save_file(tensors, tmp_path / "x.safetensors", facts)
    with pytest.raises(InputError, match=words):
        LoRA.load(tmp_path / "x.safetensors")


def test_truncated_and_pickled_files_are_refused(tmp_path: Path, mini: Model) -> None:
    changed_lora(mini).save(tmp_path / "x.safetensors")
    whole = (tmp_path / "x.safetensors").read_bytes()
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "x.safetensors").write_bytes(whole[:length])
        with pytest.raises(InputError, match="not a LoRA file that can be read"):
            LoRA.load(tmp_path / "x.safetensors")
    torch.save({"a.down": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="not a LoRA file that can be read"):
        LoRA.load(tmp_path / "x.safetensors")
