"""TORA on a real network: DINOv2-small with its weights takes a step of every phase and shows its gates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import robvit
from robvit.data import open_data
from robvit.defenses.tora.io import adapted, fresh
from robvit.explanation.figures.gates import gate_maps, gate_sheet
from robvit.training.recipe import load_recipe
from robvit.training.splits import Splits
from robvit.training.tora import train_adapters

pytestmark = [pytest.mark.slow, pytest.mark.weights]


def test_a_real_network_trains_a_step_of_each_phase_and_shows_its_gates(tmp_path: Path) -> None:
    model = robvit.load("dinov2-small", img_size=56)
    images = open_data("sample", split="train", size=56, limit=4)
    x = images.tensors()[0]
    with torch.no_grad():
        assert torch.equal(adapted(model, fresh(model, 10)).features(x[:1]), model.features(x[:1]))
    recipe = load_recipe(
        "tora-imagenet", **{"batch": 2, "epochs": 1, "warmup": 0, "inner.steps": 1, "judge_steps": 1}
    )
    splits = Splits(images.take(range(2)), images.take(range(2, 4)))
    _, runs = train_adapters(model, splits, recipe, tmp_path)
    assert [run.step for run in runs.values()] == [1, 1, 1]
    twin = robvit.load("dinov2-small", img_size=56, adapters=tmp_path / "adapters.safetensors")
    maps = gate_maps(twin, x[:1])
    assert maps.shape == (12, 1, 4, 4)
    assert gate_sheet(x[:1], {"accuracy": maps}).width > 12 * 72
    assert (tmp_path / "adapters.safetensors").stat().st_size < 30e6
