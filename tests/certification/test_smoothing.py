"""Smoothing against closed forms: a linear classifier, whose true distance is known."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch

import robvit
from helpers.devices import Stopped, seen_devices
from robvit.certification.smoothed_certificate import SmoothedCertificate
from robvit.certification.smoothing import Smoothing, certify_embedding, certify_label, shifted
from robvit.errors import InputError
from robvit.record import Record
from robvit.report.html import write_report
from robvit.statistics import lowest_share


def test_the_exact_bound_of_a_share() -> None:
    assert lowest_share(100, 100, 0.001) == pytest.approx(0.001**0.01)
    assert lowest_share(0, 10, 0.05) == 0
    assert lowest_share(1, 10, 0.05) == pytest.approx(1 - 0.95**0.1)
    assert lowest_share(900, 1000, 0.001) == pytest.approx(0.86745, abs=2e-4)


@pytest.mark.parametrize("margin", [0.05, 0.3])
def test_the_radius_of_a_linear_classifier_is_just_below_its_distance(margin: float) -> None:
    normal = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1))
    normal = normal / normal.norm()
    x = torch.full((3, 4, 4), 0.5)

    def model(images: torch.Tensor) -> torch.Tensor:
        score = ((images - x) * normal).flatten(1).sum(1) + margin
        return torch.stack((score, -score), 1)

    rules = Smoothing(sigma=0.25, samples=20_000, batch=5000)
    label, radius = certify_label(model, x, rules, torch.Generator().manual_seed(2))
    assert label == 0
    assert 0.85 * margin < radius < margin if margin > 0.1 else 0 < radius < margin


def test_a_label_that_noise_decides_is_not_certified() -> None:
    def coin(images: torch.Tensor) -> torch.Tensor:
        return torch.stack((images[:, 0, 0, 0], -images[:, 0, 0, 0]), 1)

    label, radius = certify_label(coin, torch.zeros(3, 2, 2), Smoothing(), torch.Generator().manual_seed(0))
    assert label in (0, 1)
    assert radius == 0


def test_an_embedding_turns_no_further_than_the_bound() -> None:
    weight = torch.randn(8, 3 * 16, generator=torch.Generator().manual_seed(3))

    def embed(images: torch.Tensor) -> torch.Tensor:
        return torch.tanh(images.flatten(1) @ weight.T)

    rules, radius = Smoothing(sigma=0.3, samples=4000, batch=4000), 0.1
    x = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(4))
    clean, least = certify_embedding(embed, x, radius, rules, torch.Generator().manual_seed(5))
    assert 0 < least < clean <= 1

    def mean(image: torch.Tensor) -> torch.Tensor:
        draws = torch.Generator().manual_seed(6)
        some = torch.cat(list(rules.noisy(image, 40_000, draws)))
        return torch.nn.functional.normalize(embed(some), dim=-1).mean(0)

    here = mean(x)
    for seed in range(10):
        step = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(seed))
        there = mean(x + radius * step / step.norm())
        assert torch.cosine_similarity(here, there, dim=0) > least


def test_an_embedding_without_a_direction_has_no_bound() -> None:
    """The mean of what points everywhere is short: its cosine may be anything, however small the product."""
    draws = torch.Generator().manual_seed(7)

    def embed(images: torch.Tensor) -> torch.Tensor:
        return torch.randn(len(images), 8, generator=draws)

    x = torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(4))
    assert certify_embedding(embed, x, 0.1, Smoothing(), torch.Generator().manual_seed(5))[1] == -1


def test_the_shift_follows_the_normal_distribution() -> None:
    normal = NormalDist()
    assert shifted(0.0, 1.0) == pytest.approx(2 * normal.cdf(-1) - 1)
    assert shifted(0.9, 0.0) == pytest.approx(0.9)
    assert shifted(-1.0, 0.5) == -1
    assert shifted(1.0, 1.0) < 1


@pytest.mark.slow
def test_a_record_holds_what_was_certified_and_a_table_of_it(tmp_path: Path) -> None:
    asked = dict[str, Any](l2=0.05, samples=100, limit=4)
    record = robvit.certify("robvit-mini", "sample", **asked, out=tmp_path / "label")
    smoothed, certificate = record.trials[1:]
    share = sum(certificate.correct) / 4
    assert record.metrics["certified accuracy"] == share <= sum(smoothed.correct) / 4
    (table,) = Record.load(tmp_path / "label" / "record.json").tables
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["radius, L2"], row["samples"], row["images"]) == (0.05, 100, 4)
    assert row["from"] < row["certified accuracy, %"] == 100 * share <= row["to"]

    record = robvit.certify("robvit-mini", "sample", **asked, embedding=True)
    row = dict(zip(record.tables[0].columns, record.tables[0].rows[0], strict=True))
    assert row["images"] == 4
    assert row["mean certified cosine"] == record.metrics["mean certified cosine"] <= 1
    assert row["images with a bound, %"] == 100 * record.metrics["images with a bound"]
    assert record.protocol["radius"] == 0.05
    (curve,) = record.curves
    for name, line in curve.lines.items():
        values = [value for _, value in line]
        assert len(values) == 4
        assert row[f"mean {name}"] == pytest.approx(sum(values) / 4)
        assert -1 <= row[f"{name}, from"] <= row[f"mean {name}"] <= row[f"{name}, to"] <= 1
    assert "that of the mean over 100 sampled noisy copies of the clean image" in record.notes[0]
    write_report(record, tmp_path / "report.html")


def test_one_image_has_a_mean_and_no_interval() -> None:
    asked = dict[str, Any](l2=0.05, samples=2, limit=1, embedding=True)
    record = robvit.certify("robvit-mini", "sample", **asked)
    assert "mean certified cosine" in record.metrics
    assert not any("from" in name for name in record.metrics)


@pytest.mark.parametrize("embedding", [False, True])
def test_noise_is_laid_on_images_where_the_model_is(embedding: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    where = seen_devices(monkeypatch)
    images = robvit.open_data("sample", limit=1)
    model = robvit.load("robvit-mini").to("meta")
    rules = Smoothing(samples=2)
    with pytest.raises(Stopped):
        SmoothedCertificate(model, 0.1, rules, embedding=embedding).outcomes(images)
    assert where == ["meta"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sigma": 0}, "sigma"),
        ({"sigma": math.nan}, "sigma"),
        ({"alpha": 1}, "alpha"),
        ({"samples": 1}, "samples"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Smoothing(**settings)
