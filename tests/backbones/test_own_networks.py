"""Networks and checkpoints that people bring: any module, and fine-tuned classifiers of any size."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import save_file

import robvit
from robvit.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize("classes", [5, 1000])
def test_the_classes_of_a_fine_tuned_checkpoint_are_inferred(classes: int, tmp_path: Path) -> None:
    net = timm.create_model("vit_tiny_patch16_224", num_classes=classes, img_size=32).eval()
    save_file(net.state_dict(), tmp_path / "tuned.safetensors")
    model = robvit.load(str(tmp_path / "tuned.safetensors"), arch="vit_tiny_patch16_224", img_size=32)
    assert model.classes == classes
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(x), net(model.normalise(x)))


def test_a_network_of_timms_is_taken_with_its_own_normalisation() -> None:
    net = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32)
    model, x = robvit.load(net), torch.rand(2, 3, 32, 32)
    assert not model.training
    assert model.mean.flatten().tolist() == [0.5] * 3
    with torch.no_grad():
        assert torch.equal(model(x), net.eval()((x - 0.5) / 0.5))
    other = robvit.load(net, mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5))
    assert other.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])


def test_any_module_is_judged_and_attacked_once_its_normalisation_is_told() -> None:
    torch.manual_seed(0)
    net = torchvision.models.squeezenet1_1(num_classes=10)
    with pytest.raises(InputError, match="nothing tells how SqueezeNet wants its pixels normalised"):
        robvit.load(net)
    resnet = torchvision.models.resnet18(num_classes=10)
    model = robvit.load(resnet, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), img_size=32)
    assert model.classes == 10
    record = robvit.attack(
        model, "sample", threat=robvit.Threat("linf", 8 / 255), settings={"steps": 1}, limit=2
    )
    assert record.data["count"] == 2


def test_half_a_normalisation_and_a_model_of_robvits_are_refused() -> None:
    net = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=32)
    with pytest.raises(InputError, match="mean and std belong together"):
        robvit.load(net, mean=(0.5, 0.5, 0.5))
    with pytest.raises(InputError, match="a model of robvit's already"):
        robvit.load(robvit.load(net))
