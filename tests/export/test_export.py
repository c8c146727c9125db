"""Exported files: opened without robvit they answer as the model does, and secrets go in only when asked."""

from __future__ import annotations

import copy
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import timm
import torch
from safetensors import safe_open
from typer.testing import CliRunner, Result

import robvit
from helpers.networks import SMALL_NETS, small_net
from robvit.backbones.heads import NearestHead, SegmentationHead
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.defenses.pool import TokenPool
from robvit.defenses.tokens import RobustTokens
from robvit.defenses.tora.io import adapted, fresh
from robvit.errors import InputError, Unsupported
from robvit.exporting import formats
from robvit.exporting.formats import export
from robvit.exporting.parity import BrokenExport, Parity, Runner, checked, compare


def robvit_(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def tokens_for(model: Model, *layers: int) -> RobustTokens:
    values = torch.randn(max(1, len(layers)), 4, model.width)
    return RobustTokens(values, model.fingerprint(), layers=layers or (0,))


def torch_answers(path: Path, x: torch.Tensor) -> tuple[list[torch.Tensor], dict[str, str]]:
    """What a torch file answers, and what it says of itself."""
    about = {formats.ABOUT: ""}
    with path.open("rb") as file:
        program = torch.export.load(file, extra_files=about)
    return list(program.module()(x)), json.loads(about[formats.ABOUT])


@pytest.mark.slow
def test_the_command_writes_onnx_that_answers_like_the_hardened_model(tmp_path: Path) -> None:
    model, out = robvit.load("robvit-mini"), tmp_path / "mini.onnx"
    tokens = tokens_for(model)
    tokens.save(tmp_path / "t.safetensors")
    arguments = ("export", "robvit-mini", "--tokens", tmp_path / "t.safetensors", "--out", out, "--limit", 6)
    assert "--with-secret" in str(robvit_(*arguments).exception)
    assert not out.exists()
    done = robvit_(*arguments, "--with-secret")
    assert done.exit_code == 0, done.output
    assert "predictions identical" in done.output
    assert "warning: this file carries secret" in done.output
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    session = onnxruntime.InferenceSession(out)
    facts = session.get_modelmeta().custom_metadata_map
    assert "secret" in facts["warning"]
    assert facts["model"] == "robvit-mini"
    assert [one.name for one in session.get_outputs()] == ["features", "logits"]
    assert session.get_inputs()[0].shape == ["batch", 3, 32, 32]
    strong = model.replace(tokens=tokens)
    for count in (1, 7):  # sizes the export has not seen
        x, _ = robvit.data.open_data("sample", limit=count, seed=1).tensors()
        features, logits = session.run(None, {"pixels": x.numpy()})
        np.testing.assert_allclose(features, strong.features(x).detach(), atol=1e-4, rtol=0)
        assert (logits.argmax(1) == strong(x).argmax(1).numpy()).all()
        assert abs(logits - model(x).detach().numpy()).max() > 1e-2  # the tokens do act
    assert not any(place in out.read_bytes() for place in (b"/site-packages/", b"/robvit/backbones"))
    assert "already there" in str(robvit_(*arguments, "--with-secret").exception)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["xcit", "dinov3"])
def test_other_families_become_torch_programs(family: str, tmp_path: Path) -> None:
    size = (32, 32) if family == "xcit" else None
    net = small_net(family, depth=1) if family == "xcit" else small_net(family)
    model = Model(net, name=family, mean=(0.4, 0.5, 0.6), input_size=size).eval()
    strong = model.replace(tokens=tokens_for(model, *range(model.depth)))
    x = torch.rand(5, 3, *model.input_size)
    export(strong, tmp_path / "m.pt2", "torch", images=x, with_secret=True)
    answers, facts = torch_answers(tmp_path / "m.pt2", x[:3])
    torch.testing.assert_close(answers[0], strong.features(x[:3]), atol=1e-4, rtol=0)
    torch.testing.assert_close(answers[1], strong(x[:3]), atol=1e-4, rtol=0)
    assert facts["warning"] == formats.WARNING
    assert stat.S_IMODE((tmp_path / "m.pt2").stat().st_mode) == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("family", ["xcit", "cait", "eva02", "swin"])
def test_other_families_become_onnx(family: str, tmp_path: Path) -> None:
    size = (32, 32) if family == "xcit" else None
    # As few blocks as have every kind of layer; a second one of Swin's shifts its windows.
    blocks = {"depths": (2, 1)} if family == "swin" else {"depth": 1}
    model = Model(small_net(family, **blocks), name=family, input_size=size).eval()
    x = torch.rand(3, 3, *model.input_size)
    export(model, tmp_path / "m.onnx", images=x)
    features, logits = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"pixels": x.numpy()})
    np.testing.assert_allclose(features, model.features(x).detach(), atol=1e-4, rtol=0)
    np.testing.assert_allclose(logits, model(x).detach(), atol=1e-4, rtol=0)
    assert stat.S_IMODE((tmp_path / "m.onnx").stat().st_mode) == 0o644


@pytest.mark.slow
def test_adapters_are_exported_at_their_present_trade_off(tmp_path: Path) -> None:
    model = Model(small_net("vit"), name="vit").eval()
    held = fresh(model, trades=(0.0, 0.5, 1.0))
    with torch.no_grad():
        for parameter in held.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    both, x = adapted(model, held), torch.rand(3, 3, 32, 32)
    with torch.no_grad():
        other = both.replace(trade_off=1.0)(x)
        both = both.replace(trade_off=0.3)
        expected = both(x)
    assert (expected - other).abs().max() > 1e-2
    export(both, tmp_path / "m.pt2", "torch", images=x)
    assert both.trade_off == 0.3
    answers, facts = torch_answers(tmp_path / "m.pt2", x)
    torch.testing.assert_close(answers[1], expected, atol=1e-4, rtol=0)
    assert facts["trade_off"] == "0.3"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["knn", "segmentation"])
def test_heads_go_along(kind: str, tmp_path: Path) -> None:
    model = Model(small_net("vit"), name="vit").eval()
    if kind == "knn":
        bank, labels = torch.nn.functional.normalize(torch.randn(30, 96), dim=1), torch.arange(30) % 3
        model = model.replace(head=NearestHead(bank, labels, 3, model.fingerprint(), ["a", "b", "c"]))
    else:
        model = model.replace(head=SegmentationHead(48, 3, model.fingerprint(), ["a", "b", "c"]).eval())
    x = torch.rand(5, 3, 32, 32)
    export(model, tmp_path / "m.pt2", "torch", images=x)
    answers, facts = torch_answers(tmp_path / "m.pt2", x)
    torch.testing.assert_close(answers[1], model(x), atol=1e-4, rtol=0)
    assert facts["classes"] == '["a", "b", "c"]'
    with pytest.raises(Unsupported, match="no place for a head"):
        export(model, tmp_path / "m.safetensors", "timm", images=x, arch="vit_tiny_patch16_224")


@pytest.mark.parametrize("hardened", [False, True])
def test_a_timm_checkpoint_loads_by_the_lines_that_are_offered(hardened: bool, tmp_path: Path) -> None:
    model, out = robvit.load("robvit-mini"), tmp_path / "plain.safetensors"
    tokens = tokens_for(model)
    tokens.save(tmp_path / "t.safetensors")
    secret = ("--tokens", tmp_path / "t.safetensors", "--with-secret") if hardened else ()
    done = robvit_("export", "robvit-mini", "--format", "timm", "--out", out, "--limit", 5, *secret)
    assert done.exit_code == 0, done.output
    lines = [line.strip() for line in done.output.splitlines() if line.startswith("  ")]
    scope: dict[str, Any] = {"timm": timm, "safetensors": __import__("safetensors.torch")}
    exec("\n".join(lines), scope)  # noqa: S102  the lines the command offers
    x, _ = robvit.data.open_data("sample", limit=3).tensors()
    expected = model.replace(tokens=tokens)(x) if hardened else model(x)
    torch.testing.assert_close(scope["net"].eval()(model.normalise(x)), expected, atol=1e-4, rtol=0)
    with safe_open(out, "pt") as file:
        assert ("warning" in file.metadata()) == hardened
    assert stat.S_IMODE(out.stat().st_mode) == (0o600 if hardened else 0o644)
    if not hardened:
        assert torch.equal(robvit.load(str(out))(x), expected)


def test_a_pool_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    pool, x = TokenPool((tokens_for(model), tokens_for(model))), torch.rand(2, 3, 32, 32)
    with pytest.raises(Unsupported, match="robvit serve"):
        export(model.replace(tokens=pool), tmp_path / "m.onnx", images=x, with_secret=True)
    with pytest.raises(InputError, match="onnx, torch, timm"):
        export(model, tmp_path / "m.xml", "openvino", images=x)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["timm", "huggingface"])
def test_a_checkpoint_that_answers_otherwise_is_not_kept(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, gaps = getattr(formats, f"_write_{layout}"), iter((5e-6, 2e-5))

    def off(*args: Any) -> Runner:
        run, gap = honest(*args), next(gaps)
        return lambda x: [answer * (1 + gap) for answer in run(x)]

    monkeypatch.setattr(formats, f"_write_{layout}", off)
    model = robvit.load("robvit-mini") if layout == "timm" else Model(small_net("vit"), name="vit").eval()
    x = torch.rand(2, 3, 32, 32)
    assert export(model, tmp_path / "kept", layout, images=x).close
    with pytest.raises(BrokenExport, match=r"does not answer as the model does: .* within 1e-05 of"):
        export(model, tmp_path / "other", layout, images=x)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_file_that_answers_otherwise_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_write_timm", lambda *_: lambda x: [torch.zeros(1)])
    (tmp_path / "m.safetensors").write_text("the old one")
    with pytest.raises(BrokenExport, match="different shapes"):
        export(
            robvit.load("robvit-mini"), tmp_path / "m.safetensors", "timm", images=torch.rand(2, 3, 32, 32)
        )
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    assert (tmp_path / "m.safetensors").read_text() == "the old one"


@pytest.mark.slow
def test_parity_sees_every_kind_of_difference() -> None:
    model, x = robvit.load("robvit-mini"), torch.rand(6, 3, 32, 32)

    def run(pixels: torch.Tensor) -> list[torch.Tensor]:
        return list(model.features_and_logits(pixels))

    assert compare(model, run, x) == Parity(6, 0.0, 0.0, 0.0, 0)
    assert compare(model, lambda p: [run(p)[0], run(p)[1].flip(1)], x).changed > 0
    assert not compare(model, lambda p: [run(p)[0] * torch.nan, run(p)[1]], x).close
    with pytest.raises(BrokenExport, match="different shapes"):
        compare(model, lambda p: run(p)[:1], x)
    last = x.clone()

    def wrong_at_the_end(pixels: torch.Tensor) -> list[torch.Tensor]:
        features, logits = run(pixels)
        return [features + (pixels == last[-1]).all(dim=(1, 2, 3))[:, None, None], logits]

    assert compare(model, wrong_at_the_end, x).absolute == pytest.approx(1.0, rel=1e-5)


def test_where_the_model_rounds_coarsely_double_precision_is_the_judge() -> None:
    model, x = robvit.load("robvit-mini"), torch.rand(3, 3, 32, 32)
    exact = list(copy.deepcopy(model).double().features_and_logits(x.double()))

    def coarse(_: torch.nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        return output * (1 + 3e-4) if output.dtype == torch.float32 else output

    def run(pixels: torch.Tensor) -> list[torch.Tensor]:
        places = [int((x == one).all(dim=(1, 2, 3)).nonzero()) for one in pixels]
        return [answer[places].float().detach() for answer in exact]

    with model.net.norm.register_forward_hook(coarse):
        assert not compare(model, run, x).close
        parity = checked(model, run, x, "it")
        assert parity.exact
        assert parity.features < 1e-6
        with pytest.raises(BrokenExport):
            checked(model, lambda p: [answer * (1 - 3e-4) for answer in run(p)], x, "it")


@pytest.mark.parametrize("family", sorted(set(SMALL_NETS) - {"levit", "levit-conv"}))
def test_one_pass_gives_what_two_give(family: str) -> None:
    model = Model(small_net(family), name=family).eval()
    x = torch.rand(2, 3, *model.input_size)
    features, logits = model.features_and_logits(x)
    assert torch.equal(features, model.features(x))
    torch.testing.assert_close(logits, model(x), atol=1e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.weights
def test_real_dinov2_becomes_onnx(tmp_path: Path) -> None:
    out = tmp_path / "dinov2.onnx"
    done = robvit_("export", "dinov2-small", "--img-size", 112, "--limit", 4, "--out", out)
    assert done.exit_code == 0, done.output
    model = robvit.load("dinov2-small", img_size=112)
    x, _ = robvit.data.open_data("sample", limit=3, seed=2, size=112).tensors()
    session = onnxruntime.InferenceSession(out)
    assert [one.name for one in session.get_outputs()] == ["features"]
    (features,) = session.run(None, {"pixels": x.numpy()})
    wanted = model.features(x).detach()
    assert ((wanted - torch.from_numpy(features)).norm(dim=-1) / wanted.norm(dim=-1)).max() < 1e-4
