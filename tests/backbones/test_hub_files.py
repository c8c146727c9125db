"""Files from the model hub: opened by our readers alone, whatever timm would do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import timm.models._builder as builder
import torch

from helpers.hostile_files import Harm
from robvit.backbones import download, weights, zoo
from robvit.errors import WeightsUnavailable

CUSTOM = "vit_tiny_patch16_224.augreg_in21k"  # timm expects a file of another framework for it


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> zoo.Known:
    """A model whose file lies in the hub's cache; timm may not open it."""

    def opened(*_: Any, **__: Any) -> None:
        raise AssertionError("timm opened the file")

    monkeypatch.setattr(builder, "load_state_dict", opened)
    return zoo.Known("toy", "test_vit", "vit", "CC0", 0.4, hub="timm/test_vit")


def lies_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "hub_cached", lambda known: path)


def test_code_in_a_pickle_of_the_cache_is_not_run(
    toy: zoo.Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"state_dict": Harm(tmp_path / "canary")}, tmp_path / "pytorch_model.bin")
    lies_at(tmp_path / "pytorch_model.bin", monkeypatch)
    with pytest.raises(WeightsUnavailable, match="read safely"):
        weights._hub(toy)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_good_files_are_read(
    name: str, toy: zoo.Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = timm.create_model("test_vit")
    save = torch.save if name.endswith("bin") else safetensors.torch.save_file
    save(net.state_dict(), tmp_path / name)
    lies_at(tmp_path / name, monkeypatch)
    found = weights._hub(toy)
    assert found is not None
    torch.testing.assert_close(found[0], net.state_dict())


def test_a_network_with_a_loader_of_its_own_reads_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert timm.get_pretrained_cfg(CUSTOM).custom_load
    net = timm.create_model(CUSTOM)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "model.safetensors")
    lies_at(tmp_path / "model.safetensors", monkeypatch)
    found = weights._hub(zoo.resolve(CUSTOM))
    assert found is not None
    torch.testing.assert_close(found[0], net.state_dict())
