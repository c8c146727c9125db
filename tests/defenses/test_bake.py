"""Baked tokens: a plain timm network gives what the hardened model gives."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from timm.models.vision_transformer import checkpoint_filter_fn
from typer.testing import CliRunner

import robvit
from helpers.networks import SMALL_NETS, small_net
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.defenses.bake import bake
from robvit.defenses.tokens import RobustTokens
from robvit.errors import Unsupported, WrongBackbone


def hardened(family: str) -> tuple[Model, RobustTokens, torch.Tensor]:
    model = Model(small_net(family), name=family).eval().double()
    tokens = RobustTokens(torch.randn(1, 3, model.width), model.fingerprint())
    return model, tokens, torch.rand(2, 3, *model.input_size, dtype=torch.double)


def plain(family: str, options: dict[str, Any]) -> torch.nn.Module:
    name, slim = SMALL_NETS[family]
    return timm.create_model(name, **{**slim, **options}).eval().double()


@pytest.mark.parametrize("form", ["timm", "dinov2"])
@pytest.mark.parametrize("family", ["vit", "deit3", "dinov2", "dinov2-reg"])
def test_a_plain_network_equals_the_hardened_model(family: str, form: str) -> None:
    model, tokens, x = hardened(family)
    state, options = bake(model, tokens, form)
    net = plain(family, options)
    net.load_state_dict(checkpoint_filter_fn(state, net) if form == "dinov2" else state)
    expected = model.replace(tokens=tokens.values.double())(x)
    assert (expected - model(x)).abs().max() > 1e-4  # the tokens do act
    torch.testing.assert_close(net(x), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("family", ["clip", "eva02", "cait", "siglip"])
def test_networks_without_a_place_for_registers_are_refused(family: str) -> None:
    model, tokens, _ = hardened(family)
    with pytest.raises(Unsupported, match="no place for registers"):
        bake(model, tokens)


def test_foreign_tokens_are_not_baked() -> None:
    model, _, _ = hardened("vit")
    with pytest.raises(WrongBackbone):
        bake(model, RobustTokens(torch.randn(1, 3, 48), "0" * 64))


def test_the_command_asks_first_and_warns_in_the_file(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    RobustTokens(0.1 * torch.randn(1, 4, 128), model.fingerprint()).save(tmp_path / "t.safetensors")
    out = tmp_path / "baked.safetensors"
    arguments = ["tokens", "bake", "robvit-mini", str(tmp_path / "t.safetensors"), "--out", str(out)]
    assert "--with-secret" in str(CliRunner().invoke(app, arguments).exception)
    assert not out.exists()
    done = CliRunner().invoke(app, [*arguments, "--with-secret"])
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with safe_open(out, "pt") as file:
        assert "secret" in file.metadata()["warning"]
    lines = [line.strip() for line in done.output.splitlines() if line.startswith("  ")]
    scope = {"timm": timm, "safetensors": __import__("safetensors.torch")}
    exec("\n".join(lines), scope)  # noqa: S102  the lines the command offers
    assert scope["net"].reg_token.shape == (1, 4, 128)
    assert torch.equal(scope["net"].reg_token, load_file(out)["reg_token"])
