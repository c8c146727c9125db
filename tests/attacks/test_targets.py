"""Targeted attacks: which class they aim at, and what counts as their success."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.attack_cases import images, tiny
from robvit.attacks import choose_targets, run
from robvit.cli import app
from robvit.errors import InputError, UnknownName
from robvit.record import Record
from robvit.threat import Threat


def judged(count: int = 8) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A model, images, labels of which some are wrong, and the model's logits."""
    model, x = tiny(5).eval(), images(count)
    output = model(x).detach()
    y = output.argmax(1)
    y[0] = (y[0] + 1) % 5
    return model, x, y, output


def test_rules_choose_wrong_classes_by_likelihood_or_by_the_seed_and_the_image() -> None:
    _, x, y, output = judged()
    rest = output.scatter(1, y[:, None], -torch.inf)
    assert torch.equal(choose_targets("most-likely", output, y, x), rest.argmax(1))
    assert torch.equal(
        choose_targets("least-likely", output, y, x), (-output).scatter(1, y[:, None], -99).argmax(1)
    )
    drawn = [choose_targets("random", output, y, x, seed) for seed in range(60)]
    assert all(bool((one != y).all()) for one in drawn)
    assert {int(one[3]) for one in drawn} == set(range(5)) - {int(y[3])}
    assert torch.equal(drawn[0][2:3], choose_targets("random", output[2:3], y[2:3], x[2:3], 0))
    assert choose_targets(3, output, y, x).tolist() == [3] * len(x)
    given = torch.arange(len(x)) % 5
    assert torch.equal(choose_targets(given, output, y, x), given)


@pytest.mark.parametrize("target", ["nearest", 5, -1, torch.full((8,), 9), torch.zeros(3).long()])
def test_what_is_no_target_is_refused(target: object) -> None:
    _, x, y, output = judged()
    with pytest.raises(InputError):
        choose_targets(target, output, y, x)
    with pytest.raises(InputError, match="needs labels"):
        choose_targets("random", output, None, x)


@pytest.mark.parametrize("name", ["pgd", "pgd_margin", "apgd", "transfer"])
@pytest.mark.parametrize("target", ["least-likely", 2])
def test_success_is_that_the_target_is_predicted(name: str, target: str | int) -> None:
    model, x, y, output = judged()
    outcome = run(name, model, x, y, Threat("linf", 0.06), target=target, steps=5, batch=3)
    aim = choose_targets(target, output, y, x)
    assert torch.equal(outcome.targets, aim)
    pred = model(outcome.adv).argmax(1)
    assert torch.equal(outcome.success, (pred == aim) & ((aim != y) | (output.argmax(1) == aim)))
    assert torch.equal(outcome.correct, pred == y)
    assert torch.equal(outcome.clean_correct, output.argmax(1) == y)
    own = aim == y
    assert torch.equal(outcome.adv[own], x[own]), "an image of the target's own class is nothing to attack"


def test_a_large_budget_reaches_every_target_and_a_transfer_is_judged_by_the_victim() -> None:
    model, x, y, _ = judged()
    assert bool(run("pgd", model, x, y, Threat("linf", 0.9), target="least-likely", steps=40).success.all())
    victim = tiny(5, seed=1).eval()
    outcome = run("pgd", model, x, y, Threat("linf", 0.3), victim=victim, target="random", steps=5)
    assert torch.equal(outcome.success, victim(outcome.adv).argmax(1) == outcome.targets)
    aim = choose_targets("random", victim(x), y, x)
    assert torch.equal(outcome.targets, aim)


@pytest.mark.slow
def test_the_record_says_what_was_aimed_at_and_how_often_it_was_reached(tmp_path: Path) -> None:
    words = ["attack", "robvit-mini", "sample", "--limit", "10", "--set", "steps=5", "--eps", "4/255"]
    done = CliRunner().invoke(app, [*words, "--target", "cat", "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, (done.output, done.exception)
    record = Record.load(tmp_path / "a" / "record.json")
    trial, labels = record.attacks()[0], record.data["labels"]
    assert trial.targets == [3] * 10
    assert trial.settings["target"] == 3
    assert trial.title == "pgd to 3"
    hits = [predicted == 3 for predicted, label in zip(trial.predicted, labels, strict=True) if label != 3]
    assert len(hits) == 9
    (row,) = record.tables[0].rows
    assert row[:4] == ["pgd", "cat", 9, pytest.approx(100 * sum(hits) / 9)]
    assert trial.correct == [a == b for a, b in zip(trial.predicted, labels, strict=True)]
    assert "predicted as the target" in done.output
    job = json.loads((tmp_path / "a" / "shards" / "job.json").read_text())
    assert job["facts"]["target"] == 3


def test_other_attacks_and_classes_are_refused() -> None:
    with pytest.raises(InputError, match=r"square aims at no class; these attacks do: pgd"):
        robvit.attack("robvit-mini", "sample", attack="square", target="random", limit=2)
    with pytest.raises(UnknownName, match="no target is called 'catt'; did you mean cat"):
        robvit.attack("robvit-mini", "sample", target="catt", limit=2)
    with pytest.raises(InputError, match="--target"):
        robvit.attack("robvit-mini", "sample", settings={"targeted": True}, limit=2)
