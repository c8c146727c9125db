"""Attacks, losses and datasets of other people: by module:function, and by entry points."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import robvit
from robvit import plugins
from robvit.attacks import ATTACKS
from robvit.cli import app
from robvit.errors import BrokenAttack, InputError, UnknownName
from robvit.record import Record

ATTACK = """
import torch

def nudge(model, x, y, threat, *, share: float = 1.0, seed: int = 0):
    return threat.project(x, x + share * threat.eps)

def leap(model, x, y, threat):
    return (x + 0.5).clamp(0, 1)

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of somebody's in the working folder; its name."""
    name = f"own_attacks_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(ATTACK)
    monkeypatch.chdir(tmp_path)
    return name


def test_an_attack_of_somebodys_runs_from_the_command_line(mine: str, tmp_path: Path) -> None:
    words = ["--attack", f"{mine}:nudge", "--set", "share=0.5", "--limit", "2", "--out", "runs"]
    done = CliRunner().invoke(app, ["attack", "robvit-mini", "sample", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    (trial,) = [t for t in Record.load(tmp_path / "runs" / "record.json").trials if t.kind == "attack"]
    assert trial.attack == f"{mine}:nudge"
    assert trial.settings["share"] == 0.5
    assert max(trial.distance) <= 8 / 255 + 1e-6


def test_an_attack_of_somebodys_is_certified_too(mine: str) -> None:
    x = torch.rand(2, 3, 32, 32)
    model = robvit.load("robvit-mini")
    with pytest.raises(BrokenAttack):
        robvit.attacks.run(
            f"{mine}:leap", model, x, torch.tensor([0, 1]), robvit.Threat("linf", 8 / 255), victim=model
        )


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nowhere_at_all:nudge", InputError, "No module named"),
        ("{mine}:nothing", InputError, "has no nothing"),
        ("{mine}:number", InputError, "must be a function to be a attack|must be a function"),
        ("pgdd", UnknownName, "did you mean pgd"),
    ],
)
def test_what_is_not_there_is_refused(mine: str, name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ATTACKS.entry(name.format(mine=mine))


def test_a_package_offers_an_attack_by_an_entry_point(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    offered = EntryPoints([EntryPoint("shove", f"{mine}:nudge", "robvit.attacks")])
    monkeypatch.setattr(plugins, "entry_points", lambda **which: offered.select(**which))
    assert CliRunner().invoke(app, ["attack", "robvit-mini", "--attack", "shov"]).exception is not None
    adv = robvit.attacks.run(
        "shove", robvit.load("robvit-mini"), torch.rand(2, 3, 32, 32), None, robvit.Threat("linf", 2 / 255)
    ).adv
    assert adv.shape == (2, 3, 32, 32)
    assert ATTACKS.info("shove").defaults == {"share": 1.0, "seed": 0}
