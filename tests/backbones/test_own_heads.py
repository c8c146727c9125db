"""Heads that people bring: a linear layer as a file, and classes by their names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import robvit
from helpers.networks import small_net
from robvit.backbones.heads import LinearHead, import_linear, load_head
from robvit.cli import app
from robvit.errors import InputError


@pytest.fixture(scope="module")
def mini() -> robvit.Model:
    return robvit.load("robvit-mini")


@pytest.mark.parametrize("on", ["class", "mean", "both"])
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_a_saved_linear_layer_becomes_a_head(
    mini: robvit.Model, on: str, ending: str, tmp_path: Path
) -> None:
    layer = nn.Linear((1 + (on == "both")) * mini.width, 4)
    file = tmp_path / f"mine.{ending}"
    save_file(layer.state_dict(), file) if ending == "safetensors" else torch.save(layer.state_dict(), file)
    head = import_linear(file, mini, on=on, names=["a", "b", "c", "d"])
    head.save(tmp_path / "head.safetensors")
    again = load_head(tmp_path / "head.safetensors")
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        features = mini.features(x)
        seen = {"class": features[:, 0], "mean": features[:, 1:].mean(1)}
        seen["both"] = torch.cat((seen["class"], seen["mean"]), dim=1)
        torch.testing.assert_close(mini.replace(head=again)(x), layer(seen[on]))
    assert again.names == ["a", "b", "c", "d"]


def test_what_a_layer_sees_is_told_by_its_width(mini: robvit.Model, tmp_path: Path) -> None:
    for width, kind in ((mini.width, "linear-class"), (2 * mini.width, "linear")):
        torch.save({"module.fc.weight": torch.zeros(3, width)}, tmp_path / "mine.pt")
        head = import_linear(tmp_path / "mine.pt", mini)
        assert head.kind == kind
        assert not head.linear.bias.any()


def test_a_layer_on_a_network_without_a_class_token_sees_the_mean_patch(tmp_path: Path) -> None:
    model, layer, x = (
        robvit.Model(small_net("siglip"), name="sig"),
        nn.Linear(48, 3),
        torch.rand(2, 3, 32, 32),
    )
    torch.save(layer.state_dict(), tmp_path / "mine.pt")
    head = import_linear(tmp_path / "mine.pt", model)
    with torch.no_grad():
        torch.testing.assert_close(model.replace(head=head)(x), layer(model.features(x).mean(1)))
    for on in ("class", "both"):
        with pytest.raises(InputError, match=f"sig has no class token, got on='{on}'; .*--on mean"):
            import_linear(tmp_path / "mine.pt", model, on=on)
    torch.save({"weight": torch.zeros(3, 96)}, tmp_path / "wide.pt")
    with pytest.raises(InputError, match="takes 96 features; sig has 48 for mean"):
        import_linear(tmp_path / "wide.pt", model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": torch.zeros(3, 77)}, "takes 77 features"),
        ({"a.weight": torch.zeros(3, 128), "b.weight": torch.zeros(3, 128)}, "got 2 matrices"),
        ({"weight": torch.zeros(3, 128), "bias": torch.zeros(4)}, r"the bias must be \(3,\)"),
        ([torch.zeros(3, 128)], "got list"),
    ],
)
def test_what_is_no_linear_layer_is_refused(
    mini: robvit.Model, content: object, message: str, tmp_path: Path
) -> None:
    torch.save(content, tmp_path / "mine.pt")
    with pytest.raises(InputError, match=message):
        import_linear(tmp_path / "mine.pt", mini)


def test_the_command_brings_in_a_head(tmp_path: Path) -> None:
    torch.save(nn.Linear(128, 2).state_dict(), tmp_path / "mine.pt")
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    words = [str(tmp_path / "mine.pt"), "--names", str(tmp_path / "names.txt")]
    done = CliRunner().invoke(
        app, ["heads", "import", "robvit-mini", *words, "--out", str(tmp_path / "h.safetensors")]
    )
    assert done.exit_code == 0, done.output
    assert "linear-class head for 2 classes" in done.output
    assert load_head(tmp_path / "h.safetensors").names == ["cat", "dog"]


def folder_of(place: Path, names: list[str]) -> Path:
    """A folder of images, one class a name: dark, middle and bright."""
    for i, name in enumerate(names):
        (place / name).mkdir(parents=True)
        for k in range(4):
            Image.new("RGB", (32, 32), (80 * i + 10 * k,) * 3).save(place / name / f"{k}.png")
    return place


@pytest.mark.slow
def test_classes_are_matched_by_name_or_refused(mini: robvit.Model, tmp_path: Path) -> None:
    first = robvit.open_data(folder_of(tmp_path / "first", ["ape", "bird", "cat"]))
    head = LinearHead.fit(mini, first.batches(12), 3, names=first.classes)
    model = mini.replace(head=head)
    renamed = folder_of(tmp_path / "second", ["ape", "bird", "cat"])
    head.names[:] = ["cat", "ape", "bird"]  # another order than the folder's
    with torch.no_grad():  # the same rows in that order
        order = torch.tensor([2, 0, 1])
        head.linear.weight.copy_(head.linear.weight[order].clone())
        head.linear.bias.copy_(head.linear.bias[order].clone())
    record = robvit.evaluate(model, renamed, protocol="clean@1")
    assert record.trials[0].accuracy == 1
    assert record.data["classes"] == ["cat", "ape", "bird"]
    other = folder_of(tmp_path / "third", ["ape", "bird", "zebra"])
    with pytest.raises(InputError, match="the images have 'zebra'"):
        robvit.evaluate(model, other, protocol="clean@1")
