"""Networks by the name of a folder: on the hub (of which a cache is planted), of timm's, or nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import robvit
from helpers.hostile_files import Harm
from robvit.backbones import download, weights, zoo
from robvit.backbones.folders import hub_folder
from robvit.cli import app
from robvit.errors import InputError, RobvitError, UnknownName, WeightsUnavailable
from robvit.evaluation.classifiers import open_classifier

CONFIG = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 3,
    "model_args": {"depth": 1},
    "pretrained_cfg": {
        "mean": [0.1, 0.2, 0.3],
        "std": [0.5, 0.5, 0.5],
        "input_size": [3, 32, 32],
        "label_names": ["ape", "bee", "cat"],
    },
}


def written(folder: Path, **changes: Any) -> torch.nn.Module:
    """A folder as timm's save_for_hf leaves it, and its network."""
    folder.mkdir(parents=True, exist_ok=True)
    net = timm.create_model("vit_tiny_patch16_224", num_classes=3, depth=1, img_size=32).eval()
    save_file(net.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return net


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files the hub is believed to have; nothing of it is in the cache."""

    def given(repository: str, name: str, revision: str | None = None) -> str:
        if not (tmp_path / "hub" / name).is_file():
            response = huggingface_hub.utils.EntryNotFoundError  # its arguments differ by version
            raise response.__new__(response)
        return str(tmp_path / "hub" / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", given)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    monkeypatch.setattr(download, "hub_problem", lambda: "")
    monkeypatch.setattr("robvit.fetch.tell", lambda _: None)
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "hub").mkdir()
    return tmp_path / "hub"


@pytest.mark.parametrize("start", ["hf:", "hf-hub:"])
def test_a_repository_of_timms_opens_with_classes_size_and_normalisation(start: str, hub: Path) -> None:
    net = written(hub)
    model = robvit.load(f"{start}timm/some_vit")
    assert (model.classes, model.class_names, model.input_size) == (3, ["ape", "bee", "cat"], (32, 32))
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(x), net((x - torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1, 1)) / 0.5))
    assert weights.architecture(f"{start}timm/some_vit") == "vit_tiny_patch16_224"


@pytest.mark.slow
@pytest.mark.parametrize("start", ["local-dir:", ""])
def test_a_folder_of_this_machine_opens_at_any_size(start: str, tmp_path: Path) -> None:
    written(tmp_path / "net")
    assert robvit.load(f"{start}{tmp_path}/net").input_size == (32, 32)
    model = robvit.load(f"{start}{tmp_path}/net", img_size=48, normalise="none")
    with torch.no_grad():
        assert model(torch.rand(1, 3, 48, 48)).shape == (1, 3)
    words = ["--format", "onnx", "--out", str(tmp_path / "net.onnx")]
    done = CliRunner().invoke(app, ["export", f"{start}{tmp_path}/net", *words])
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_transformers_on_the_hub_open_by_name_and_revision(hub: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    net = transformers.Dinov2Model(config).eval()
    net.save_pretrained(hub)
    model = robvit.load(f"hf:facebook/dinov2-mini@{40 * 'a'}")
    x = torch.rand(1, 3, 28, 28)
    with torch.no_grad():
        wanted = net(model.normalise(x)).last_hidden_state
        torch.testing.assert_close(model.features(x), wanted, rtol=0, atol=2e-6)


def test_code_in_a_pickle_of_timms_is_not_run(hub: Path, tmp_path: Path) -> None:
    written(hub)
    (hub / "model.safetensors").unlink()
    torch.save({"state_dict": Harm(tmp_path / "canary")}, hub / "pytorch_model.bin")
    with pytest.raises(InputError, match="read safely"):
        robvit.load("hf-hub:timm/evil")
    assert not (tmp_path / "canary").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "vit_tini"}, "vit_tini"),
        ({"architecture": "hf-hub:evil/net"}, "expected a model's name|hf-hub"),
        ({"model_args": {"depth": 40, "embed_dim": 3072}}, "do not fit"),
        ({"model_args": {"checkpoint_path": "x"}}, "no setting of a network"),
        ({"model_args": [1]}, "must be settings"),
    ],
)
def test_a_config_of_timms_that_cannot_be_true_is_refused(changes: Any, message: str, tmp_path: Path) -> None:
    written(tmp_path, **changes)
    with pytest.raises(RobvitError, match=message):
        robvit.load(str(tmp_path))


def test_names_that_lead_nowhere_say_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(download, "hub_problem", lambda: "the hub is switched off by HF_HUB_OFFLINE")
    with pytest.raises(WeightsUnavailable, match="not on this machine, and the hub is switched off"):
        robvit.load("hf:facebook/dinov2-nowhere")
    with pytest.raises(InputError, match="or hf:facebook/dinov2-small if it is on the model hub"):
        zoo.check_name("facebook/dinov2-small")
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match=r"no model is called 'mine'.* the folder that is here, \./mine"):
        zoo.check_name("mine")
    with pytest.raises(WeightsUnavailable, match="not on this machine"):
        open_classifier("hf:json")  # a module's name, but what is meant is the hub
    for name in ("../../etc", "a/b/c", "", "a b/c", "a/..b@../x"):
        with pytest.raises(InputError, match="expected OWNER/NAME"):
            hub_folder(name)
    with pytest.raises(InputError, match="no folder at"):
        zoo.check_name(f"local-dir:{tmp_path}/none")
    written(tmp_path / "net")
    for wrong in ({"num_classes": 2}, {"patch_size": 8}, {"pretrained": False}, {"pos_embed": "hub"}):
        with pytest.raises(InputError, match="leave"):
            robvit.load(str(tmp_path / "net"), **wrong)  # type: ignore[arg-type]
