"""Folders of transformers': read to the same answers, written back to the same answers, and never trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import robvit
from helpers.lora import changed_lora
from helpers.networks import small_net
from robvit.backbones.heads import ClassTokenHead, LinearHead
from robvit.backbones.huggingface import layouts, to_transformers
from robvit.backbones.huggingface.writing import preprocessor
from robvit.backbones.model import Model
from robvit.cli import app
from robvit.errors import InputError, Unsupported
from robvit.exporting import export, loading_lines

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
DINOV2 = SMALL | {"mlp_ratio": 2}
REGISTERS = DINOV2 | {"num_register_tokens": 3}
VIT = SMALL | {"intermediate_size": 40}
NAMES = {"id2label": {0: "ape", 1: "bee", 2: "cat"}}
# The class of transformers', and the settings that make it small.
NETWORKS: dict[str, dict[str, Any]] = {
    "Dinov2Model": DINOV2,
    "Dinov2ForImageClassification": DINOV2 | NAMES,
    "Dinov2WithRegistersModel": REGISTERS,
    "Dinov2WithRegistersForImageClassification": REGISTERS | NAMES,
    "ViTModel": VIT | {"qkv_bias": False},
    "ViTForImageClassification": VIT | NAMES | {"hidden_act": "gelu_pytorch_tanh"},
    "DeiTModel": VIT,
    "DeiTForImageClassification": VIT | NAMES,
    "DeiTForImageClassificationWithTeacher": VIT | NAMES,
    "CLIPVisionModel": VIT,
    "CLIPVisionModelWithProjection": VIT | {"projection_dim": 8},
    "CLIPForImageClassification": {"vision_config": VIT} | NAMES,
}


def theirs(name: str, **more: Any) -> Any:
    """A small random network of transformers' whose every parameter matters."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    net = kind(kind.config_class(**NETWORKS[name] | more)).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def answers(net: Any, pixels: torch.Tensor) -> torch.Tensor:
    """What a network of transformers' is used for: logits, embeddings, or tokens."""
    out = net(pixels)
    for field in ("logits", "image_embeds"):
        if field in out:
            return out[field]  # type: ignore[no-any-return]
    return out["pooler_output" if type(net).__name__ == "CLIPVisionModel" else "last_hidden_state"]  # type: ignore[no-any-return]


def same_of(model: Model, name: str, x: torch.Tensor) -> torch.Tensor:
    """The same of a model of robvit's."""
    if "Classification" in name or "Projection" in name:
        return model(x)
    tokens = model.tokens(x)
    return tokens.prefix[:, 0] if "CLIP" in name else torch.cat((tokens.prefix, tokens.patch), 1)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folder_answers_as_transformers_does_and_so_does_what_is_written_back(
    name: str, tmp_path: Path
) -> None:
    net = theirs(name)
    net.save_pretrained(tmp_path / "theirs")
    model = robvit.load(str(tmp_path / "theirs"))
    x = torch.rand(2, 3, 28, 28)
    with torch.no_grad():
        wanted = answers(net, model.normalise(x))
        torch.testing.assert_close(same_of(model, name, x), wanted, rtol=0, atol=2e-6)
        export(model, tmp_path / "ours", "huggingface", images=x)
        again, told = type(net).from_pretrained(tmp_path / "ours", output_loading_info=True)
        torch.testing.assert_close(answers(again.eval(), model.normalise(x)), wanted, rtol=0, atol=2e-6)
    unread = {key for key in told["missing_keys"] if not key.startswith("pooler.")}
    assert not unread
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    if "Classification" in name:
        assert model.class_names == list(again.config.id2label.values()) == ["ape", "bee", "cat"]


@pytest.mark.parametrize("name", ["Dinov2Model", "Dinov2WithRegistersModel", "ViTModel", "CLIPVisionModel"])
def test_positions_for_another_size_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    net = theirs(name)
    net.save_pretrained(tmp_path)
    model = robvit.load(str(tmp_path), img_size=42)
    x = torch.rand(1, 3, 42, 42)
    with torch.no_grad():
        more = {} if "Dinov2" in name else {"interpolate_pos_encoding": True}
        out = net(model.normalise(x), **more)
        wanted = out.pooler_output if name == "CLIPVisionModel" else out.last_hidden_state
        torch.testing.assert_close(same_of(model, name, x), wanted, rtol=0, atol=2e-6)


def test_a_gated_mlp_and_half_precision_and_many_files_are_read(tmp_path: Path) -> None:
    net = theirs("Dinov2Model", use_swiglu_ffn=True)
    net.half().save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    model = robvit.load(str(tmp_path))
    x = torch.rand(1, 3, 28, 28)
    with torch.no_grad():
        wanted = net.float()(model.normalise(x)).last_hidden_state
        torch.testing.assert_close(model.features(x), wanted, rtol=0, atol=1e-5)
        state, config = to_transformers(model)
        assert config["use_swiglu_ffn"]
        assert "encoder.layer.0.mlp.weights_in.weight" in state


def test_the_preprocessor_decides_size_normalisation_and_fitting(tmp_path: Path) -> None:
    theirs("Dinov2Model").save_pretrained(tmp_path)
    told = {
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
        "do_center_crop": True,
        "crop_size": {"height": 56, "width": 56},
        "size": {"shortest_edge": 64},
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    model = robvit.load(str(tmp_path))
    assert model.input_size == (56, 56)
    assert model.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert (model.usual_resize, model.resize) == ("crop", "")
    export(model, tmp_path / "ours", "huggingface", images=torch.rand(1, 3, 56, 56))
    written = json.loads((tmp_path / "ours" / "preprocessor_config.json").read_text())
    assert written["image_mean"] == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize("family", ["dinov2", "dinov2-reg", "vit", "deit", "clip"])
def test_networks_of_timms_become_folders_of_transformers(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    plain = Model(small_net(family), name=family).eval()
    if family == "clip":
        with torch.no_grad():
            plain.net.head.bias.zero_()  # type: ignore[union-attr, operator]
    model = changed_lora(plain, norms=True).merge(plain)
    side = model.input_size[0]
    x = torch.rand(2, 3, side, side)
    export(model, tmp_path / "out", "huggingface", images=x)
    scope: dict[str, Any] = {"transformers": transformers}
    exec("\n".join(loading_lines(tmp_path / "out", "huggingface")), scope)  # noqa: S102  the lines that robvit offers
    with torch.no_grad():
        answer = answers(scope["net"].eval(), model.normalise(x))
        torch.testing.assert_close(answer, model(x), rtol=0, atol=1e-5)


def test_a_head_of_robvits_is_the_classifier_there(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    plain = Model(
        timm.create_model("vit_small_patch14_dinov2", img_size=28, depth=1, embed_dim=48, num_heads=3)
    )
    head = ClassTokenHead(48, 2, plain.fingerprint(), ["yes", "no"])
    model = plain.replace(head=head).eval()
    x = torch.rand(2, 3, 28, 28)
    export(model, tmp_path / "out", "huggingface", images=x)
    net = transformers.Dinov2ForImageClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(net(model.normalise(x)).logits, model(x), rtol=0, atol=1e-5)
    assert net.config.id2label == {0: "yes", 1: "no"}


@pytest.mark.parametrize("family", ["siglip", "eva02", "cait", "swin", "mini"])
def test_what_transformers_has_no_place_for_is_refused(family: str) -> None:
    with pytest.raises(Unsupported, match="none of transformers'"):
        to_transformers(Model(small_net(family), name=family))


def settings(folder: Path, **changes: Any) -> None:
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type 'bert'"),
        ({"hidden_size": 10**9}, "hidden_size"),
        ({"num_hidden_layers": 500}, "do not fit"),
        ({"hidden_size": 4096, "num_hidden_layers": 50}, "do not fit"),
        ({"hidden_act": "sin"}, "activation 'sin'"),
        ({"num_attention_heads": 5}, "multiple of its heads"),
        ({"num_channels": 4}, "num_channels"),
        ({"image_size": "large"}, "image_size"),
        ({"patch_size": 7}, "do not fit|shape"),
    ],
)
def test_a_config_that_cannot_be_true_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    theirs("ViTModel").save_pretrained(tmp_path)
    settings(tmp_path, **changes)
    with pytest.raises((InputError, Unsupported), match=message):
        robvit.load(str(tmp_path))


def test_weights_that_are_not_those_of_the_config_are_refused(tmp_path: Path) -> None:
    theirs("ViTModel").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    save_file(state | {"evil.weight": torch.zeros(1)}, file)
    with pytest.raises(InputError, match=r"'evil\.weight' is no tensor of a ViTModel"):
        robvit.load(str(tmp_path))
    save_file({name: t for name, t in state.items() if "query.weight" not in name}, file)
    with pytest.raises(InputError, match="query, key and value"):
        robvit.load(str(tmp_path))
    file.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pickles such as pytorch_model\.bin are not opened"):
        robvit.load(str(tmp_path))
    index = {"weight_map": {"a": "../elsewhere.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="files beside it"):
        robvit.load(str(tmp_path))


@pytest.mark.slow
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
    transformers = pytest.importorskip("transformers")
    model = robvit.load("dinov2-small", img_size=56)
    lora = changed_lora(model, rank=2)
    lora.save(tmp_path / "l.safetensors")
    for layout, name in (("timm", "baked.safetensors"), ("huggingface", "folder")):
        arguments = ["bake", "dinov2-small", str(tmp_path / "l.safetensors"), "--img-size", "56"]
        done = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / name), "--layout", layout])
        assert done.exit_code == 0, done.output
    with safe_open(tmp_path / "folder" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["img_size"]) == [56, 56]
    net = transformers.Dinov2Model.from_pretrained(tmp_path / "folder").eval()
    x, merged = torch.rand(1, 3, 56, 56), lora.merge(model)
    with torch.no_grad():
        answer, wanted = net(model.normalise(x)).last_hidden_state, merged.features(x)
    assert ((answer - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max() < 1e-5
    again = robvit.load(str(tmp_path / "folder"))
    assert again.fingerprint() == merged.fingerprint()


def test_images_are_cropped_there_as_they_are_here() -> None:
    net = timm.create_model("vit_small_patch14_dinov2", img_size=28, depth=1, embed_dim=48, num_heads=3)
    cropped = robvit.Model(net, usual_resize="crop", input_size=(384, 384))
    config = preprocessor(cropped, layouts.DINOV2)
    assert config["do_center_crop"]
    assert config["size"] == {"shortest_edge": 438}  # as `fit` cuts them: rounded down
    assert not preprocessor(robvit.Model(net), layouts.DINOV2)["do_center_crop"]
