"""Two published test-time defences, rebuilt small, look strong to who does not know them and are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

import robvit
from robvit.attacks import losses
from robvit.attacks.core import Model, gradient
from robvit.attacks.eot import bpda_moved
from robvit.attacks.precision import fused_layers, plain_attention
from robvit.challenging import challenge as verb
from robvit.challenging.attackers import ATTACKERS, Defence
from robvit.challenging.challenge import challenge
from robvit.cli import app
from robvit.diagnosis.doctor import doctor
from robvit.errors import InputError
from robvit.threat import Threat

SMALL = {"limit": 8, "steps": 6, "samples": 3, "queries": 10}


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
    """Steps at test time that make the model surer of its own answer (after 2103.14347).

    They follow the slope and not its signs, which hardly any change of the image changes: nothing to unroll.
    """

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
                    length = slope.flatten(1).norm(dim=1).clamp_min(1e-12).view(-1, 1, 1, 1)
                    point = (point + 3 * slope / length).clamp(0, 1)
                    point = point if differentiable else point.detach().requires_grad_()
                return model(point)

    return Defended()


def rounded_by_numpy(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Few grey levels (1704.01155), by a library that knows no gradients."""
    return lambda x: model(torch.from_numpy(np.round(x.numpy() * 15) / 15))


# Who does not know the defence: on its own model, for one draw of it, or as if its steps were fixed.
IGNORANT = {
    resized_and_padded: ["transfer", "gradient"],
    anti_adversary: ["transfer", "BPDA, moved"],
    rounded_by_numpy: [],  # its gradient is none, and images made without it are good ones
}


@pytest.mark.filterwarnings("ignore::robvit.attacks.AttackWarning")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("defence", "levels"), [(resized_and_padded, 4), (anti_adversary, 1), (rounded_by_numpy, 4)]
)
def test_a_defence_ends_with_the_honest_figure(
    defence: Defence, levels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "doctor", partial(doctor, steps=5))  # its own steps have tests elsewhere
    before = torch.get_rng_state()
    record = challenge(
        "robvit-mini", "sample", defence, threat=Threat("linf", levels / 255), out=tmp_path, seed=0, **SMALL
    )
    assert torch.equal(torch.get_rng_state(), before)
    figures = record.metrics
    assert figures["clean accuracy, defended"] > 0.5
    assert figures["accuracy under all attackers"] < 0.5 * figures["clean accuracy, defended"]
    rows = {row[0]: row[2:] for row in record.tables[0].rows}
    left = 100 * figures["accuracy under all attackers"]
    assert left <= rows["transfer"][0]
    if ignorant := IGNORANT[defence]:
        assert max(rows[name][0] for name in ignorant) > left, "to know the defence must pay"
    assert set(rows) == set(ATTACKERS)
    assert (rows["gradient, EOT"][0] is None) == (defence is not resized_and_padded)
    assert ("no gradient at all" in rows["gradient"][1]) == (defence is rounded_by_numpy)
    assert record.model["randomised"] == (defence is resized_and_padded)
    reds = {finding.check for finding in record.findings if finding.status == "red"}
    assert reds, "the doctor must find what it hides"
    assert robvit.Record.load(tmp_path / "record.json").metrics == figures


class Bowl(nn.Module):
    """Class 0 near to grey, class 1 far from it."""

    def __init__(self) -> None:
        super().__init__()
        self.border = nn.Parameter(torch.tensor(0.0135))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        distance = (x - 0.5).square().flatten(1).mean(1)
        return torch.stack([self.border.expand(len(x)), distance], dim=1)


class BlindBowl(Bowl):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


def across_grey(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """A purification without a gradient that takes images to the other side of grey."""
    return lambda x: model((x + 0.2).detach())


GREYS = torch.tensor([0.4, 0.4, 0.4, 0.0]).view(4, 1, 1, 1).expand(4, 3, 8, 8), torch.tensor([0, 0, 0, 1])


@pytest.mark.filterwarnings("ignore::robvit.attacks.AttackWarning")
def test_where_an_image_is_moved_the_gradient_counts_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "CHECKS", ("randomness",))

    def left(model: nn.Module, defence: Defence) -> dict[str, list[object]]:
        record = challenge(model, GREYS, defence, steps=5, queries=1)
        return {row[0]: row[2:] for row in record.tables[0].rows}

    rows = left(Bowl(), across_grey)
    assert [rows[name][0] for name in ("transfer", "BPDA", "BPDA, moved")] == [100, 100, 25]
    assert "no other image" in str(left(Bowl(), lambda model: model)["BPDA, moved"][1])
    blind = left(BlindBowl(), across_grey)
    assert all("no gradient at all" in str(blind[name][1]) for name in ("transfer", "BPDA", "BPDA, moved"))


@pytest.mark.slow
def test_unrolled_steps_have_a_gradient_of_their_own() -> None:
    model = robvit.load("robvit-mini").eval()
    x, y = robvit.open_data("sample", limit=4).tensors()

    def slope(defended: Model) -> torch.Tensor:
        return gradient(defended, x, lambda output: losses.margin(output, y))[2].flatten(1)

    with plain_attention(fused_layers(model)):
        unrolled = slope(anti_adversary(model, differentiable=True))
        fixed = slope(bpda_moved(anti_adversary(model), model))
    assert (F.cosine_similarity(unrolled, fixed) < 0.9).all()


def test_it_is_done_on_the_device_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def telling(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        def defended(x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(f"images on {x.device}, model on {next(model.parameters()).device}")

        return defended

    monkeypatch.setattr(verb, "processes", lambda: SimpleNamespace(device=torch.device("meta")))
    with pytest.raises(InputError, match="images on meta, model on meta"):
        challenge(Bowl(), GREYS, telling)


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


def test_the_seed_reaches_the_doctor_and_nobody_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def examined(*_: object, seed: int, **__: object) -> SimpleNamespace:
        seen.append(seed)
        return SimpleNamespace(findings=[])

    monkeypatch.setattr(verb, "doctor", examined)
    cannot = SimpleNamespace(why_not=lambda _: "it has no gradient", about="tries", attack="pgd")
    monkeypatch.setattr(verb, "ATTACKERS", {"nobody": cannot})
    with pytest.raises(InputError, match="no attacker could run; nobody: it has no gradient"):
        challenge("robvit-mini", "sample", lambda model: model, seed=7, **SMALL)
    assert seen == [7]
