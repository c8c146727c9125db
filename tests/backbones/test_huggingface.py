"""DINOv2 in Hugging Face's layout: the same answers, and back to the same bits; `robvit bake` writes both."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

import robvit
from helpers.lora import changed_lora
from helpers.networks import small_net
from robvit.backbones.heads import LinearHead
from robvit.backbones.huggingface import from_huggingface, to_huggingface
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.errors import InputError, Unsupported
from robvit.exporting import export, loading_lines


def dinov2_features(state: dict[str, torch.Tensor], config: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    """What a Dinov2Model computes from its state, written down once more: normalised (B 3 H W) to (B T D)."""
    width, heads, eps = config["hidden_size"], config["num_attention_heads"], config["layer_norm_eps"]

    def linear(name: str, h: torch.Tensor) -> torch.Tensor:
        return F.linear(h, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(name: str, h: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(h, (width,), state[f"{name}.weight"], state[f"{name}.bias"], eps)

    place = "embeddings.patch_embeddings.projection"
    patches = F.conv2d(x, state[f"{place}.weight"], state[f"{place}.bias"], stride=config["patch_size"])
    h = torch.cat(
        (state["embeddings.cls_token"].expand(len(x), -1, -1), patches.flatten(2).transpose(1, 2)), 1
    )
    h = h + state["embeddings.position_embeddings"]
    if "embeddings.register_tokens" in state:
        registers = state["embeddings.register_tokens"].expand(len(x), -1, -1)
        h = torch.cat((h[:, :1], registers, h[:, 1:]), 1)
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        q, k, v = (
            linear(f"{at}.attention.attention.{one}", norm(f"{at}.norm1", h)).unflatten(2, (heads, -1)).mT
            for one in ("query", "key", "value")
        )  # (B T d h) each
        q, k, v = (one.permute(0, 3, 1, 2) for one in (q, k, v))
        mixed = ((q @ k.mT * (width // heads) ** -0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)
        h = h + linear(f"{at}.attention.output.dense", mixed) * state[f"{at}.layer_scale1.lambda1"]
        inner = F.gelu(linear(f"{at}.mlp.fc1", norm(f"{at}.norm2", h)))
        h = h + linear(f"{at}.mlp.fc2", inner) * state[f"{at}.layer_scale2.lambda1"]
    return norm("layernorm", h)


@pytest.mark.parametrize("family", ["dinov2", "dinov2-reg"])
def test_the_state_of_a_dinov2model_computes_the_same(family: str) -> None:
    model = changed_lora(plain := Model(small_net(family), name=family).eval()).merge(plain)
    state, config = to_huggingface(model)
    x = torch.rand(2, 3, 28, 28)
    with torch.no_grad():
        answer = dinov2_features(state, config, model.normalise(x))
        registers = config.get("num_register_tokens", 0)
        answer = torch.cat((answer[:, :1], answer[:, 1 + registers :]), 1)
        torch.testing.assert_close(answer, model.features(x), rtol=0, atol=1e-5)
    back = from_huggingface(state)
    own = model.net.state_dict()
    assert back.keys() == {name for name in own if not name.startswith("head")}
    assert all(torch.equal(back[name], own[name]) for name in back)
    assert all(re.match(r"embeddings|encoder\.layer\.\d+|layernorm", name) for name in state)


@pytest.mark.parametrize("family", ["dinov2", "dinov2-reg"])
def test_the_real_dinov2model_opens_what_is_baked_and_its_own_state_comes_back(
    family: str, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    plain = Model(small_net(family), name=family).eval()
    model = changed_lora(plain, norms=True).merge(plain)
    x = torch.rand(2, 3, 28, 28)
    out = tmp_path / "baked.safetensors"
    export(model, out, "huggingface", images=x)
    scope = {"transformers": transformers, "safetensors": __import__("safetensors.torch")}
    exec("\n".join(loading_lines(out, "huggingface")), scope)  # noqa: S102  the lines that robvit offers
    theirs: Any = scope["net"]
    theirs.eval()
    with torch.no_grad():
        answer = theirs(model.normalise(x)).last_hidden_state
        tokens = model.tokens(x)
        mine = torch.cat((tokens.prefix, tokens.patch), 1)
        torch.testing.assert_close(answer, mine, rtol=0, atol=1e-5)
        for parameter in theirs.parameters():  # the other way: weights that were never timm's
            parameter.copy_(0.1 * torch.randn(parameter.shape))
        answer = theirs(model.normalise(x)).last_hidden_state
        theirs.save_pretrained(tmp_path / "theirs")
        for state in (theirs.state_dict(), load_file(tmp_path / "theirs" / "model.safetensors")):
            own = {name: t for name, t in model.net.state_dict().items() if name.startswith("head")}
            model.net.load_state_dict(from_huggingface(state) | own)
            tokens = model.tokens(x)
            mine = torch.cat((tokens.prefix, tokens.patch), 1)
            torch.testing.assert_close(answer, mine, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["vit", "clip", "siglip", "eva02", "cait", "swin"])
def test_what_a_dinov2model_cannot_be_is_refused(family: str) -> None:
    with pytest.raises(Unsupported, match="Dinov2Model"):
        to_huggingface(Model(small_net(family), name=family))
    with pytest.raises(InputError, match="no name of a Dinov2Model"):
        from_huggingface({"vit.embeddings": torch.zeros(1)})


def test_bake_writes_a_plain_checkpoint(tmp_path: Path) -> None:
    mini = robvit.load("robvit-mini")
    lora = changed_lora(mini)
    lora.save(tmp_path / "l.safetensors")
    out = tmp_path / "baked.safetensors"
    arguments = ["bake", "robvit-mini", str(tmp_path / "l.safetensors"), "--out", str(out)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    loaded = robvit.load(str(out))
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(loaded(x), lora.merge(mini)(x), rtol=0, atol=1e-5)
    LinearHead(2 * mini.width, 10, mini.fingerprint()).check(loaded)
    lines = [line.strip() for line in done.output.splitlines() if line.startswith("  ")]
    scope = {"timm": timm, "safetensors": __import__("safetensors.torch")}
    exec("\n".join(lines), scope)  # noqa: S102  the lines the command offers
    net: Any = scope["net"]
    torch.testing.assert_close(net.eval()(mini.normalise(x)), lora.merge(mini)(x), rtol=0, atol=1e-5)
    refused = CliRunner().invoke(app, [*arguments, "--layout", "huggingface", "--force"])
    assert isinstance(refused.exception, Unsupported)


@pytest.mark.weights
def test_the_real_dinov2_bakes_into_both_layouts(tmp_path: Path) -> None:
    model = robvit.load("dinov2-small", img_size=56)
    lora = changed_lora(model, rank=2)
    lora.save(tmp_path / "l.safetensors")
    for layout in ("timm", "huggingface"):
        out = tmp_path / f"{layout}.safetensors"
        arguments = ["bake", "dinov2-small", str(tmp_path / "l.safetensors"), "--img-size", "56"]
        done = CliRunner().invoke(app, [*arguments, "--out", str(out), "--layout", layout])
        assert done.exit_code == 0, done.output
    with safe_open(out, "pt") as file:
        config = json.loads(file.metadata()["config"])
    x, merged = torch.rand(1, 3, 56, 56), lora.merge(model)
    with torch.no_grad():
        answer = dinov2_features(load_file(out), config, model.normalise(x))
        wanted = merged.features(x)
    assert ((answer - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max() < 1e-5
