"""The studies of TORA: that they run, and that what they print follows from what they measured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import robvit
from helpers.studies import check_tables
from robvit.data import open_data
from robvit.data.corruptions import CORRUPTIONS
from robvit.defenses.tora.attack import gates
from robvit.defenses.tora.io import adapted, fresh
from robvit.errors import InputError
from robvit.evaluation.corruptions import ALEXNET_ERRORS, mean_corruption_error
from robvit.explanation.figures.gates import gate_maps, gate_sheet
from robvit.studies import StudyContext
from robvit.studies.tora import common
from robvit.studies.tora.common import PUBLISHED, AdapterBench, AdapterEffort
from robvit.studies.tora.instead import between
from robvit.studies.tora.maps import _objects
from robvit.studies.tora.tables import _trades_off
from robvit.studies.tora.variants import ImageNetVariants, others
from robvit.training.recipe import load_recipe
from robvit.training.splits import Splits

QUICK: dict[str, Any] = {"data": "sample", "images": 4, "learn": 20, "epochs": 0.5, "fusion_epochs": 0.5}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where adapters are kept: one study takes up what another one has trained."""
    return tmp_path_factory.mktemp("training")


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two corruptions, and inner attacks of one step."""
    monkeypatch.setattr(common, "CORRUPTIONS", list(CORRUPTIONS)[:2])
    monkeypatch.setattr(common, "load_recipe", partial(load_recipe, **{"inner.steps": 1}))


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tora-table1", {"trades": (0.1, 0.9), "steps": 2, "targets": 2, "queries": 5}),
        ("tora-table2", {"trades": (0.1, 0.9)}),
        ("tora-table3", {"trades": (0.9,), "steps": 2}),
        ("tora-fig-attention", {"trades": (0.1, 0.9), "masks": "shapes"}),
        ("tora-instead", {"trades": (0.1, 0.9), "shares": (0.5,), "steps": 2}),
        ("tora-fig-softmax", {"trades": (0.9,), "steps": 2, "choices": ["one fusion in phase 1"]}),
        ("tora-knob", {"trades": (0.1, 0.9), "places": (0.1, 0.5), "steps": 2}),
        ("tora-composed", {"steps": 2, "token_steps": 2, "token_learn": 8}),
    ],
)
def test_each_study_of_tora_runs_on_the_bundled_model(
    name: str, settings: dict[str, Any], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    record = robvit.reproduce(name, out=tmp_path / "out", training=str(trained), **QUICK, **settings)
    check_tables(record, tmp_path)
    if name == "tora-fig-attention":
        assert (tmp_path / "out" / "gates.png").is_file()
    if name == "tora-table1":
        row = next(row for row in record.tables[0].rows if row[0] == "TORA, 0.9")
        known = [
            t.correct for t in record.trials if t.scenario == "TORA, 0.9" and str(t.threat) == "linf 4/255"
        ]
        assert row[7] == 100 * sum(all(each) for each in zip(*known, strict=True)) / 4
        assert row[6] <= row[5]  # what fools within 4/255 fools within 8/255
        assert row[11] == 80.3  # the slides'
        assert len(record.tables[0].rows) == 3 + 27  # ours, the slides' 0.5 and every quoted baseline


def test_the_slides_figures_agree_where_tables_overlap() -> None:
    first, heads, tunings = (PUBLISHED[name] for name in ("table1", "table2", "table3"))
    for trade in ("0.1", "0.5", "0.9"):
        row, joint = first.rows[f"TORA, {trade}"], heads.rows[f"{trade}, joint"]
        # Table 1 gives 46.5 on ImageNet-A where Table 2 gives 46.73: the slides', not ours.
        for name, one, other in zip(first.columns, row, joint, strict=True):
            assert one == pytest.approx(other, abs=0.25 if name == "A" else 0.06), name
        if trade != "0.5":
            assert tunings.rows[f"{trade}, tora"] == row


def test_gates_on_objects_are_told_from_those_behind_them() -> None:
    y = torch.full((2, 8, 8), 1)
    y[:, :, :4] = 0  # the left half is the object
    y[:, :, 3:5] = 255
    gate = torch.full((1, 2, 4, 4), 0.5)
    gate[:, :, :, 0] = 0.2
    gate[:, 1, :, 0] = 0.198  # two images must nearly agree for Student's interval to tell
    (row,) = _objects({0.9: gate}, y, behind=1).rows
    assert row[:2] == ["0.9", 1]
    assert row[2] == pytest.approx(0.199)
    assert row[3] == pytest.approx(0.5)
    assert row[-1] == "context"


def test_weights_between_two_networks() -> None:
    standard, robust = (robvit.load(name) for name in ("robvit-mini", "robvit-mini-robust"))
    ends = (between(standard, robust, share) for share in (0.0, 1.0))
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        for made, known in zip(ends, (standard, robust), strict=True):
            torch.testing.assert_close(made(x), known(x), rtol=1e-4, atol=1e-4)
    assert robust.identity() == robvit.load("robvit-mini-robust").identity()  # a copy was changed


def imagenet_folders(root: Path) -> dict[str, str]:
    """Small folders in the layouts of ImageNet-A, -R and -C."""
    picture = Image.new("RGB", (32, 32), (90, 120, 60))
    for name, wordnet in (("a", "n01498041"), ("r", "n01443537")):
        (root / name / wordnet).mkdir(parents=True)
        picture.save(root / name / wordnet / "one.png")
    for corruption, severity in product(ALEXNET_ERRORS, range(1, 6)):
        place = root / "c" / corruption / str(severity) / "n01440764"
        place.mkdir(parents=True)
        picture.save(place / "one.png")
    return {f"imagenet_{name}": str(root / name) for name in "arc"}


@pytest.mark.slow
def test_imagenets_variants_are_measured_on_folders_of_their_layouts(tmp_path: Path) -> None:
    folders = imagenet_folders(tmp_path)
    torch.manual_seed(0)
    model = robvit.load("robvit-mini", pretrained=False, num_classes=1000)
    images = open_data("sample", limit=1)
    context = StudyContext(out=tmp_path / "out")
    at = AdapterBench(context, AdapterEffort(), model, Splits(images, images), images)
    found = ImageNetVariants(**{name[-1]: place for name, place in folders.items()}).measure(at, model)
    assert found.a in (0.0, 100.0)
    assert found.r in (0.0, 100.0)
    with torch.no_grad():
        picture = open_data(f"imagenet-c:{folders['imagenet_c']}", split="fog/1").tensors()[0]
        error = float(model(picture).argmax(1) != 0)
    assert found.mce == pytest.approx(100 * error * mean_corruption_error({n: [1.0] for n in ALEXNET_ERRORS}))
    few = replace(images, listing=replace(images.listing, classes=["a", "b", "c"]))
    with pytest.raises(InputError, match="robvit-mini has 10 classes, the judged images 3"):
        list(others(replace(at, judged=few), ["robvit-mini"]))


def test_a_finding_says_whether_the_trade_off_trades() -> None:
    def row(clean: float, robust: float) -> list[object]:
        return ["", clean, 0.0, 0.0, 0.0, 0.0, 0.0, robust]

    assert _trades_off([row(80, 10), row(70, 20)]).status == "green"
    assert _trades_off([row(80, 10), row(81, 20)]).status == "amber"
    assert _trades_off([row(80, 10), row(70, 5)]).status == "amber"


@pytest.mark.slow
def test_maps_show_the_gates_of_patches_in_their_places(tmp_path: Path) -> None:
    model = robvit.load("robvit-mini")
    adapters = fresh(model)
    with torch.no_grad():
        for parameter in adapters.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    twin = adapted(model, adapters)
    x = torch.rand(2, 3, 32, 32)
    maps = gate_maps(twin, x)
    assert maps.shape == (4, 2, 8, 8)
    with torch.no_grad():
        gate = gates(twin, x)[2]  # (B T)
    torch.testing.assert_close(maps[2, 1, 3, 5], gate[1, 1 + 3 * 8 + 5])
    assert gate_sheet(x, {"accuracy": maps}).width > 4 * 72
