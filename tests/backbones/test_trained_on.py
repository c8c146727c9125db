"""Sizes, fitting and class names in the file of every part: taken, or refused where another is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from typer.testing import CliRunner

import robvit
from helpers.lora import changed_lora
from robvit.backbones.heads import LinearHead, load_head
from robvit.backbones.trained_on import OtherSize, TrainedOn, fitting
from robvit.cli import app
from robvit.defenses.pool import TokenPool
from robvit.defenses.tokens import RobustTokens
from robvit.defenses.tora.io import fresh, load_adapters, save_adapters
from robvit.errors import InputError

SIDE = 48  # another size than the network's own 32
ON = TrainedOn((SIDE, SIDE), "crop")
NAMES = [f"class {i}" for i in range(10)]


def made(kind: str, path: Path) -> None:
    """The file of a part that was trained on cropped images of another size."""
    model = robvit.load("robvit-mini", img_size=SIDE)
    if kind == "head":
        head = LinearHead(2 * model.width, 10, model.fingerprint(), NAMES)
        head.trained_on = ON
        head.save(path)
    elif kind == "tokens":
        values = torch.zeros(1, 2, model.width)
        RobustTokens(values, model.fingerprint(), settings=ON.settings(), origin="seed").save(path)
    elif kind == "pool":
        values = torch.zeros(1, 2, model.width)
        one = RobustTokens(values, model.fingerprint(), settings=ON.settings(), origin="seed")
        two = RobustTokens(values.clone(), model.fingerprint(), settings=ON.settings(), origin="seed")
        TokenPool((one, two)).save(path)
    elif kind == "lora":
        lora = changed_lora(model)
        lora.settings.update(ON.settings())
        lora.save(path)
    else:
        adapters = fresh(model)
        adapters.trained_on, adapters.names = ON, list(NAMES)
        save_adapters(adapters, path)


KINDS = {"head": "head", "tokens": "tokens", "pool": "tokens", "lora": "lora", "adapters": "adapters"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_and_fitting_of_a_part_are_taken_or_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    made(kind, path)
    part: dict[str, Any] = {KINDS[kind]: path}
    model = robvit.load("robvit-mini", **part)
    assert model.input_size == (SIDE, SIDE)
    assert fitting(model, None) == "crop"
    if kind == "lora":  # its weights work with any images that are asked for; what was measured does not hold
        assert fitting(model, "squash") == "squash"
        with pytest.warns(OtherSize, match="the LoRA was trained on images of 48x48"):
            robvit.load("robvit-mini", img_size=32, **part)
    else:
        with pytest.raises(InputError, match="made square by crop, got squash"):
            fitting(model, "squash")
        with pytest.raises(InputError, match="trained on images of 48x48 pixels, robvit-mini takes 32x32"):
            robvit.load("robvit-mini", img_size=32, **part)


@pytest.mark.parametrize("kind", ["head", "adapters"])
def test_class_names_come_with_the_part(kind: str, tmp_path: Path) -> None:
    made(kind, tmp_path / "part.safetensors")
    model = robvit.load("robvit-mini", **{kind: tmp_path / "part.safetensors"})  # type: ignore[arg-type]
    assert model.class_names == NAMES


def test_parts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    made("tokens", tmp_path / "t.safetensors")
    model = robvit.load("robvit-mini")
    head = LinearHead(2 * model.width, 10, model.fingerprint())
    head.trained_on = TrainedOn((32, 32), "squash")
    with pytest.raises(InputError, match="images of different sizes: the head on 32x32, the tokens on 48x48"):
        robvit.load("robvit-mini", head=head, tokens=tmp_path / "t.safetensors")
    head.trained_on = TrainedOn(None, "squash")
    with pytest.raises(InputError, match="square differently: the head by squash, the tokens by crop"):
        robvit.load("robvit-mini", head=head, tokens=tmp_path / "t.safetensors")
    head.trained_on = TrainedOn(None, "crop")
    cropped = robvit.load("robvit-mini", head=head, tokens=tmp_path / "t.safetensors")
    assert cropped.replace(head=None).resize == "crop"  # of the tokens
    assert cropped.replace(head=None, tokens=None).resize == ""


@pytest.mark.parametrize(
    "settings", [{"img_size": [0, 0]}, {"img_size": "big"}, {"img_size": [32]}, {"resize": "melt"}]
)
def test_a_file_that_tells_nonsense_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="damaged"):
        RobustTokens(torch.zeros(1, 1, 4), settings=settings)
    model = robvit.load("robvit-mini")
    adapters = fresh(model)
    save_adapters(adapters, tmp_path / "a.safetensors")
    adapters.names = ["one"]
    save_adapters(adapters, tmp_path / "b.safetensors")
    with pytest.raises(InputError, match="must name all of its 10 classes"):
        load_adapters(tmp_path / "b.safetensors")


@pytest.mark.slow
def test_exported_files_tell_size_fitting_interpolation_and_classes(tmp_path: Path) -> None:
    made("head", tmp_path / "h.safetensors")
    model = robvit.load("robvit-mini", head=tmp_path / "h.safetensors")
    robvit.export(model, tmp_path / "m.onnx", "onnx", images=torch.rand(2, 3, SIDE, SIDE))
    told = {one.key: one.value for one in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert json.loads(told["img_size"]) == [SIDE, SIDE]
    assert (told["resize"], told["interpolation"]) == ("crop", "bilinear")
    assert json.loads(told["classes"]) == NAMES
    assert told["fingerprint"] == model.fingerprint()


def plain_folder(place: Path, names: list[str]) -> Path:
    """A folder of images without splits: five a class, dark to bright."""
    for i, name in enumerate(names):
        (place / name).mkdir(parents=True)
        for k in range(5):
            Image.new("RGB", (32, 32), (80 * i + 10 * k, 20 * k, 5)).save(place / name / f"{k}.png")
    return place


@pytest.mark.slow
def test_a_head_of_the_command_remembers_its_images_and_a_plain_folder_is_divided(tmp_path: Path) -> None:
    data, out = plain_folder(tmp_path / "data", ["ape", "bee", "cat"]), tmp_path / "h.safetensors"
    words = ["train", "head", "robvit-mini", str(data), "--resize", "crop", "--img-size", str(SIDE)]
    done = CliRunner().invoke(app, [*words, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "device: cpu" in done.stderr
    assert "on 3 images it did not learn from" in done.output
    assert "a fixed fifth of it (--split held-out) was kept apart" in done.output
    assert "--split held-out" in done.stdout.splitlines()[-1]
    head = load_head(out)
    assert (head.trained_on, head.names) == (ON, ["ape", "bee", "cat"])
    parts = [robvit.open_data(data, split=split) for split in ("learn", "held-out")]
    assert [len(part) for part in parts] == [12, 3]
    assert sorted(parts[1].labels) == [0, 1, 2]
    assert not {*parts[0].names} & {*parts[1].names}
    words = ["--split", "held-out", "--protocol", "clean@1", "--out", str(tmp_path / "run")]
    judged = CliRunner().invoke(
        app,
        ["evaluate", "robvit-mini", str(data), "--head", str(out), *words],
    )
    assert judged.exit_code == 0, judged.output
    record = robvit.Record.load(tmp_path / "run" / "record.json")
    assert (record.data["size"], record.data["resize"], record.data["count"]) == (SIDE, "crop", 3)


def test_training_accuracy_is_not_told_as_a_test(tmp_path: Path) -> None:
    words = ["train", "head", "robvit-mini", "sample", "--split", "train", "--test-split", "train"]
    done = CliRunner().invoke(app, [*words, "--limit", "20", "--out", str(tmp_path / "h.safetensors")])
    assert done.exit_code == 0, done.output
    assert "on 20 images of which it learned from 20" in done.output
    assert "warning: this is no test" in done.output
    assert "did not learn from" not in done.output


@pytest.mark.slow
def test_a_trained_network_keeps_the_names_of_its_classes(tmp_path: Path) -> None:
    data = plain_folder(tmp_path / "data", ["ape", "bee"])
    words = ["--set", "epochs=1", "--set", "batch=4", "--set", "validation=2"]
    done = CliRunner().invoke(
        app,
        ["train", "mini", "--data", str(data), "--out", str(tmp_path / "run"), *words],
    )
    assert done.exit_code == 0, done.output
    model = robvit.load(str(tmp_path / "run" / "model.safetensors"))
    assert model.class_names == ["ape", "bee"]
    other = plain_folder(tmp_path / "other", ["bee", "cow"])
    with pytest.raises(InputError, match="the images have 'cow'"):
        robvit.evaluate(model, other, protocol="clean@1")


def test_saved_heads_carry_what_they_were_trained_on_in_plain_json(tmp_path: Path) -> None:
    made("head", tmp_path / "h.safetensors")
    with safe_open(tmp_path / "h.safetensors", "pt") as file:
        told = json.loads(file.metadata()["head"])
    assert (told["img_size"], told["resize"]) == ([SIDE, SIDE], "crop")
