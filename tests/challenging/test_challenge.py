"""Two published test-time defences, rebuilt small, look strong to who does not know them and are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import robvit
from robvit.challenging import challenge as verb
from robvit.challenging.attackers import ATTACKERS
from robvit.challenging.challenge import challenge
from robvit.cli import app
from robvit.diagnosis.doctor import doctor
from robvit.errors import InputError
from robvit.threat import Threat

SMALL = {"limit": 8, "steps": 6, "samples": 3, "queries": 10, "threat": Threat("linf", 4 / 255)}


def resized_and_padded(model: nn.Module) -> nn.Module:
    """Random resizing and padding (1711.01991)."""

    class Defended(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            side = int(torch.randint(26, x.shape[-1] + 1, ()))
            top, left = (int(torch.randint(x.shape[-1] - side + 1, ())) for _ in range(2))
            room = x.shape[-1] - side
            small = F.interpolate(x, (side, side), mode="bilinear", antialias=True)
            return model(F.pad(small, (left, room - left, top, room - top)))

    return Defended()


def anti_adversary(model: nn.Module, differentiable: bool = False) -> nn.Module:
    """Steps at test time that make the model surer of its own answer (2103.14347)."""

    class Defended(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                leaf = x if x.requires_grad else x.detach().requires_grad_()
                label, point = model(leaf).argmax(1).detach(), leaf
                for _ in range(2):
                    surer = -F.cross_entropy(model(point), label, reduction="sum")
                    (slope,) = torch.autograd.grad(
                        surer, point, create_graph=differentiable, retain_graph=True
                    )
                    point = (point + 8 / 255 * slope.sign()).clamp(0, 1)
                    point = point if differentiable else point.detach().requires_grad_()
                return model(point)

    return Defended()


def rounded_by_numpy(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Few grey levels (1704.01155), by a library that knows no gradients."""
    return lambda x: model(torch.from_numpy(np.round(x.numpy() * 15) / 15))


@pytest.mark.filterwarnings("ignore::robvit.attacks.AttackWarning")
@pytest.mark.slow
@pytest.mark.parametrize("defence", [resized_and_padded, anti_adversary, rounded_by_numpy])
def test_a_defence_ends_with_the_honest_figure(
    defence: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(defence)
    monkeypatch.setattr(verb, "doctor", partial(doctor, steps=5))  # its own steps have tests elsewhere
    before = torch.get_rng_state()
    record = challenge("robvit-mini", "sample", defence, out=tmp_path, **SMALL)
    assert torch.equal(torch.get_rng_state(), before)
    figures = record.metrics
    assert figures["clean accuracy, defended"] > 0.5
    assert figures["accuracy under all attackers"] < 0.5 * figures["clean accuracy, defended"]
    assert figures["accuracy under all attackers"] <= figures["accuracy under transfer"]
    rows = {row[0]: row[2:] for row in record.tables[0].rows}
    assert set(rows) == set(ATTACKERS)
    assert (rows["gradient, EOT"][0] is None) == (defence is not resized_and_padded)
    assert ("no gradient at all" in rows["gradient"][1]) == (defence is rounded_by_numpy)
    assert record.model["randomised"] == (defence is resized_and_padded)
    reds = {finding.check for finding in record.findings if finding.status == "red"}
    assert reds, "the doctor must find what it hides"
    assert robvit.Record.load(tmp_path / "record.json").metrics == figures


@pytest.mark.slow
def test_what_is_no_defence_is_refused() -> None:
    with pytest.raises(InputError, match="must return a callable from images to logits, got int"):
        challenge("robvit-mini", "sample", lambda model: 3, **SMALL)  # type: ignore[arg-type,return-value]
    with pytest.raises(
        InputError, match=r"must return logits \(8, 10\) as its model does, got \(8, 3, 32, 32\)"
    ):
        challenge("robvit-mini", "sample", lambda model: lambda x: x, **SMALL)
    with pytest.raises(InputError, match="got KeyError"):
        challenge("robvit-mini", "sample", lambda model: lambda x: {}[0], **SMALL)
    with pytest.raises(InputError, match="samples must be 1 or more"):
        challenge("robvit-mini", "sample", anti_adversary, samples=0)
    refused = CliRunner().invoke(app, ["challenge", "robvit-mini", "sample", "--defence", "nonsense"])
    assert refused.exit_code == 2
    assert "module:function" in refused.output
