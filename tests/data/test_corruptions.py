"""The fifteen corruptions: repeatable, in range, stronger with the severity, and a door to any set."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from robvit.cli.data import app
from robvit.data import CORRUPTIONS, SEVERITIES, corrupt, open_data
from robvit.data.corruptions import defocus_blur, parse_corruption
from robvit.data.filters import convolve
from robvit.errors import InputError, UnknownName

NAMES = [entry.name for entry in CORRUPTIONS]
CERTAIN = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}


@pytest.fixture(scope="module")
def small() -> torch.Tensor:
    return open_data("sample", limit=24).tensors()[0]


@pytest.fixture(scope="module")
def large() -> torch.Tensor:
    return open_data("shapes", limit=3, size=160).tensors()[0]


def test_they_are_the_fifteen() -> None:
    assert len(NAMES) == 15
    groups = [entry.info.group for entry in CORRUPTIONS]
    assert [groups.count(group) for group in ("noise", "blur", "weather", "digital")] == [3, 4, 4, 4]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_corruption(name: str, small: torch.Tensor) -> None:
    before = small.clone()
    distances = []
    for severity in SEVERITIES:
        changed = corrupt(small, name, severity, seed=5)
        assert changed.shape == small.shape
        assert changed.dtype == small.dtype
        assert 0 <= changed.min() <= changed.max() <= 1
        assert torch.equal(changed, (changed * 255).round() / 255)
        distances.append(float((changed - small).square().mean().sqrt()))
    assert torch.equal(small, before)
    assert distances[0] > 0.005
    assert distances == sorted(distances)
    assert distances[-1] > 1.4 * distances[0]


@pytest.mark.parametrize("name", NAMES)
def test_large_images(name: str, large: torch.Tensor) -> None:
    first, last = (corrupt(large, name, severity) for severity in (1, 5))
    assert first.shape == large.shape
    assert 0 <= last.min() <= last.max() <= 1
    near, far = ((changed - large).square().mean() for changed in (first, last))
    assert 0 < near < far


@pytest.mark.parametrize("name", NAMES)
def test_a_image_depends_on_its_seed_alone(name: str, small: torch.Tensor) -> None:
    batch = corrupt(small[:3], name, 3, seed=7)
    assert torch.equal(batch, corrupt(small[:3], name, 3, seed=7))
    for i in range(3):
        assert torch.equal(batch[i], corrupt(small[i], name, 3, seed=7 + i))
    other = corrupt(small[:3], name, 3, seed=70)
    assert torch.equal(batch, other) == (name in CERTAIN)


def test_closed_forms() -> None:
    grey = torch.full((3, 32, 32), 0.5)
    for name in (
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "contrast",
        "elastic_transform",
        "pixelate",
    ):
        assert torch.allclose(corrupt(grey, name, 5), grey, atol=1 / 255), name  # nothing to blur or bend
    assert torch.allclose(corrupt(grey, "brightness", 2), torch.tensor(0.6), atol=1 / 255)
    noise = corrupt(grey.repeat(1, 4, 4), "gaussian_noise", 1) - 0.5
    assert float(noise.std()) == pytest.approx(0.08, rel=0.05)
    salted = corrupt(grey.repeat(1, 4, 4), "impulse_noise", 5)
    assert float((salted != salted[0, 0, 0]).float().mean()) < 1
    assert float(((salted == 0) | (salted == 1)).float().mean()) == pytest.approx(0.27, abs=0.01)
    counts = corrupt(grey.repeat(1, 4, 4), "shot_noise", 1) - 0.5
    assert float(counts.std()) == pytest.approx((0.5 / 60) ** 0.5, rel=0.05)


def test_blur_keeps_the_light_and_moves_nothing() -> None:
    """A point spreads into a disc around it; the mirror keeps light inside at the edges."""
    point = torch.zeros(3, 224, 224)
    point[:, 100, 60] = 1
    spread = defocus_blur(point, (6, 0.5), 1.0, torch.Generator())
    rows, columns = torch.meshgrid(torch.arange(224.0), torch.arange(224.0), indexing="ij")
    assert float(spread[0].sum()) == pytest.approx(1, abs=1e-4)
    assert float((spread[0] * rows).sum()) == pytest.approx(100, abs=1e-2)
    assert float((spread[0] * columns).sum()) == pytest.approx(60, abs=1e-2)
    white = torch.ones(3, 9, 13)
    assert torch.allclose(convolve(white, torch.rand(31, 31)), white, atol=1e-5)


def test_any_set_can_be_corrupted(tmp_path: Path) -> None:
    clean = open_data("sample", limit=6, size=48)
    foggy = open_data("sample", limit=6, size=48, corruption="fog:3")
    assert foggy.names == clean.names
    assert foggy.labels == clean.labels
    assert foggy.digest() != clean.digest()
    assert foggy.digest() != clean.corrupted("fog:4").digest()
    assert foggy.corrupted("").digest() == clean.digest()
    assert not torch.equal(foggy[0][0], clean[0][0])
    assert torch.equal(foggy.take([4])[0][0], foggy[4][0])  # neither order nor neighbours matter
    spec = open_data("sample?corruption=fog:3", limit=6, size=48)
    assert torch.equal(spec.tensors()[0], foggy.tensors()[0])
    Image.new("RGB", (40, 30), (90, 50, 20)).save(tmp_path / "a.png")
    assert open_data(f"folder:{tmp_path}?corruption=snow:5")[0][0].shape == (3, 30, 40)
    x, mask = open_data("shapes", limit=1, size=64, corruption="contrast:5")[0]
    assert x.std((1, 2)).max() < 0.1
    assert torch.equal(torch.as_tensor(mask), torch.as_tensor(open_data("shapes", limit=1, size=64)[0][1]))


def test_wrong_requests_say_what_is_right(small: torch.Tensor) -> None:
    assert parse_corruption("frost:2") == ("frost", 2)
    for text in ("fog", "fog:0", "fog:6", "fog:x"):
        with pytest.raises(InputError, match=r"as fog:3, with a severity of 1 to 5"):
            open_data("sample", corruption=text)
    with pytest.raises(UnknownName, match="did you mean fog"):
        open_data("sample", corruption="frog:3")
    with pytest.raises(InputError, match="severity must be one of"):
        corrupt(small, "fog", 6)
    with pytest.raises(InputError, match="must lie in"):
        corrupt(small * 255, "fog", 1)


def test_the_sheet(tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    arguments = ["show", "sample", "--limit", "15", "--corruptions", "--out", str(out)]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0
    assert "15 corruptions at 5 severities" in result.output
    with Image.open(out) as page:
        width, height = page.size  # six columns, fifteen rows
        assert 2 < height / width < 3.5
        assert width > 6 * 100
    text = CliRunner().invoke(app, ["show", "sample", "--corruption", "fog:3"], env={"COLUMNS": "200"}).output
    assert "fog:3" in text


@pytest.mark.slow
def test_accuracy_falls_with_the_severity() -> None:
    from robvit.evaluation.clean import clean_score
    from robvit.loading import load

    model = load("robvit-mini")
    images = open_data("sample", limit=60)

    def mean(severity: int) -> float:
        scores = [clean_score(model, images.corrupted(f"{name}:{severity}")).value for name in NAMES]
        return sum(scores) / len(scores)

    clean, light, heavy = clean_score(model, images).value, mean(1), mean(5)
    assert clean > light > heavy
    assert clean - heavy > 0.1
