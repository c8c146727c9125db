"""Accuracy against eps: exact on linear models, never rising, the same after an interruption."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import robvit
from helpers.attack_cases import DUAL
from robvit.cli import app
from robvit.errors import InputError
from robvit.evaluation.curve import Falls, min_of
from robvit.evaluation.trials import clean_trial
from robvit.record import Record

EPS = {"linf": [0.002, 0.006, 0.02, 0.06], "l2": [0.02, 0.06, 0.2, 0.6], "l1": [0.1, 0.3, 1.0, 3.0]}


def linear_case(norm: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A linear model of two classes, grey images, one of them misclassified, labels and distances (B,)."""
    generator = torch.Generator().manual_seed(3)
    levels = torch.randint(110, 146, (9, 3, 4, 4), generator=generator, dtype=torch.uint8)
    layer = nn.Linear(48, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(2, 48, generator=generator))
        layer.bias.copy_(-layer.weight.sum(1) / 2)
    model = nn.Sequential(nn.Flatten(), layer).requires_grad_(False)
    output = model(levels / 255)
    gap = (output[:, 0] - output[:, 1]).abs()
    labels = output.argmax(1)
    labels[4] = 1 - labels[4]
    distance = gap / (layer.weight[0] - layer.weight[1]).norm(p=DUAL[norm])
    distance[4] = 0
    return model, levels, labels, distance


@pytest.mark.slow
@pytest.mark.parametrize("norm", list(EPS))
def test_on_a_linear_model_the_curve_is_the_distances(norm: str, tmp_path: Path) -> None:
    model, levels, labels, distance = linear_case(norm)
    budgets = sorted([*(0.9 * distance[distance > 0]).tolist(), *(1.1 * distance[distance > 0]).tolist()])
    record = robvit.curve(model, (levels, labels), norm=norm, eps=budgets, out=tmp_path, batch=4)
    clear = [t for t in record.attacks() if bool(((distance / t.threat.eps - 1).abs() > 0.06).all())]
    assert len(clear) > 3
    for trial in clear:
        assert trial.correct == [bool(d > trial.threat.eps) for d in distance], trial.threat
    with (tmp_path / "smallest_eps.csv").open() as file:
        found = [float(row["smallest eps"]) for row in csv.DictReader(file)]
    assert found == pytest.approx(distance.tolist(), rel=0.05)
    assert all(near >= (1 - 1e-4) * best for near, best in zip(found, distance.tolist(), strict=True))
    assert record.attacks()[0].distance == pytest.approx(found)
    shares = [trial.accuracy for trial in record.attacks()]
    assert shares == sorted(shares), "from the largest eps to the smallest"
    assert record.trials[0].accuracy == pytest.approx(8 / 9)
    assert Record.load(tmp_path / "record.json").trials == record.trials
    with Image.open(tmp_path / "curve.png") as chart:
        assert chart.width > 400


def test_what_falls_at_none_of_the_budgets_stays_correct() -> None:
    model, levels, labels, distance = linear_case("l2")
    rising = distance.sort().values[1:]
    place = int((rising[1:] / rising[:-1]).argmax())  # the widest gap between two distances
    middle = float((rising[place] * rising[place + 1]).sqrt())
    record = robvit.curve(model, (levels, labels), norm="l2", eps=[middle])
    assert record.attacks()[0].correct == [bool(d > middle) for d in distance]
    assert record.notes[0].startswith(f"{place + 1} images fall at some eps, {7 - place} at none up to")


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_other_settings_are_refused(tmp_path: Path) -> None:
    model, levels, labels, _ = linear_case("linf")
    last = levels[-1] / 255

    class Stops(nn.Module):
        """The same model, which is interrupted when it first meets the last image."""

        def __init__(self, armed: bool) -> None:
            super().__init__()
            self.net, self.armed = model, armed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.armed and any(torch.allclose(one, last) for one in x):
                raise KeyboardInterrupt
            return self.net(x)

    options = {"eps": EPS["linf"], "out": tmp_path, "batch": 3}
    with pytest.raises(KeyboardInterrupt):
        robvit.curve(Stops(armed=True), (levels, labels), **options)
    assert len(list((tmp_path / "shards" / "pgd_min").glob("*.safetensors"))) == 2
    resumed = robvit.curve(Stops(armed=False), (levels, labels), **options)
    whole = robvit.curve(model, (levels, labels), **(options | {"out": None}))
    assert [t.correct for t in resumed.trials] == [t.correct for t in whole.trials]
    with pytest.raises(InputError, match="settings"):
        robvit.curve(Stops(armed=False), (levels, labels), **options, settings={"pgd_min": {"steps": 3}})


def test_of_several_attacks_the_nearest_fall_counts() -> None:
    clean = clean_trial([True, True, False], [0, 1, 0])
    first = Falls(clean, [0.3, math.inf, 0.0], [1, 1, 0], 3, 2, 1.0, ["b"])
    second = Falls(clean, [0.2, 0.5, 0.0], [2, 0, 0], 5, 4, 1.0, ["a"])
    both = min_of([first, second])
    assert both.eps == [0.2, 0.5, 0.0]
    assert both.predicted == [2, 0, 0]
    assert (both.forward, both.backward, both.warnings) == (8, 6, ["a", "b"])


def test_bad_wishes_are_named() -> None:
    model, levels, labels, _ = linear_case("linf")
    for wish, message in (
        ({"attacks": ["pgd"]}, "smallest perturbation in linf: .*pgd_min"),
        ({"attacks": ["cw_l2"]}, "smallest perturbation in linf"),
        ({"eps": []}, "at least one eps"),
        ({"eps": ["8"]}, "8/255"),
    ):
        with pytest.raises(InputError, match=message):
            robvit.curve(model, (levels, labels), **wish)


@pytest.mark.slow
def test_the_command_writes_record_report_chart_and_table(tmp_path: Path) -> None:
    words = ["curve", "robvit-mini", "sample", "--limit", "3", "--eps", "1/255,8/255", "--set", "steps=2"]
    words += ["--set", "rounds=2", "--attack", "pgd_min", "--attack", "fab", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "3 of 1,000 images are judged; for all of them: --limit 1000" in done.output
    assert "Accuracy in per cent by eps, linf" in done.output
    record = Record.load(tmp_path / "record.json")
    assert [str(trial.threat) for trial in record.attacks()] == ["linf 8/255", "linf 1/255"]
    assert record.attacks()[0].attack == "pgd_min+fab"
    assert record.protocol["attacks"]["fab"]["steps"] == 2
    assert "Accuracy by budget, linf" in (tmp_path / "report.html").read_text()
