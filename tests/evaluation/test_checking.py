"""A first look at a model: vulnerability, speed, and which defences fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.plain_vit import plain_vit
from robvit.budget import Budget
from robvit.checking import defences_table, vulnerability
from robvit.cli import app
from robvit.data import open_data
from robvit.evaluation.classifiers import open_classifier
from robvit.evaluation.trials import clean_trial


@pytest.mark.slow
def test_the_command_says_how_vulnerable_a_model_is_and_what_to_do(tmp_path: Path) -> None:
    words = ["--limit", "6", "--img-size", "32", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["check", "robvit-mini", "sample", *words])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "linf 4/255" in done.output
    assert "ms an image" in done.output
    assert "next: robvit review robvit-mini sample --img-size 32" in done.output
    record = robvit.Record.load(tmp_path / "record.json")
    assert record.metrics["seconds an image"] > 0
    assert record.notes[0].startswith("Vulnerable: at linf")
    assert len(record.notes) > 1
    assert all(note in done.output for note in record.notes)
    defences, measured = record.tables
    told = {row[0]: row for row in defences.rows}
    tuning = told["LoRA tuning"]
    assert tuning[-1] == "robvit robustify robvit-mini sample --img-size 32 --method lora --minutes 15"
    assert f"\nLoRA tuning: {tuning[-1]}\n" in done.output  # whole, whatever the terminal's width
    again = "robvit check robvit-mini sample --img-size 32 --lora runs/robustify/lora.safetensors"
    assert tuning[-2].endswith(again)
    left = [t.accuracy for t in record.attacks()]
    assert left == sorted(left, reverse=True)  # what falls at 1/255 falls at 4/255
    assert told["adversarial training"][-2] == "measured on these images"
    assert measured.title in done.output
    robust = robvit.Record.load(tmp_path / "robvit-mini-robust" / "record.json")
    assert robust.data["digest"] == record.data["digest"]
    shares = [(one.accuracy, other.accuracy) for one, other in zip(record.trials, robust.trials, strict=True)]
    for row, (without, with_it) in zip(measured.rows, shares, strict=True):
        assert row[:2] == ["adversarial training", "robvit-mini-robust"]
        assert [cell.split()[0] for cell in row[4:]] == [f"{without:.1%}", f"{with_it:.1%}"]


def test_what_judges_is_not_offered_to_learn_from() -> None:
    table = defences_table(open_classifier("robvit-mini"), data="IMAGES", split="held-out")
    told = {row[0]: row for row in table.rows}
    assert told["LoRA tuning"][-1].startswith("robvit robustify robvit-mini IMAGES --split learn ")
    assert " robvit check robvit-mini IMAGES --split held-out " in told["LoRA tuning"][-2]
    assert told["adversarial training"][-1].endswith("--data IMAGES --split learn")


def test_the_trainings_that_are_offered_open_the_same_network() -> None:
    options = "--head head.safetensors --img-size 48 --arch robvit_mini"
    table = defences_table(open_classifier("robvit-mini"), "mine.pt", "IMAGES", options)
    told = {row[0]: row for row in table.rows}
    own = "--model mine.pt --data IMAGES --arch robvit_mini --set img_size=48"
    assert told["adversarial training"][-1] == f"robvit train pgd-at {own}"
    assert told["TORA adapters"][-1] == f"robvit train tora {own}"
    opened = "robvit evaluate mine.pt IMAGES --arch robvit_mini --img-size 48 --adapters "
    assert opened in told["TORA adapters"][-2]


@pytest.mark.parametrize("hits", [0, 1])
def test_of_a_model_near_chance_nothing_is_said(hits: int) -> None:
    right = [True] * hits + [False] * (10 - hits)
    clean = clean_trial(right, [0] * 10)
    attacked = replace(clean, attack="pgd", threat=Budget("linf", 4 / 255))
    data = {"classes": [str(i) for i in range(10)], "labels": list(range(10))}
    said = vulnerability(robvit.Record("evaluation", {}, data, [clean, attacked]))
    assert said.startswith(f"Nothing can be said: clean accuracy {10 * hits}.0% is near chance")


@pytest.mark.slow
def test_a_certificate_is_measured_where_the_model_can_have_one() -> None:
    model, images = robvit.Model(plain_vit(), name="plain"), open_data("sample", limit=4)
    defences, measured = robvit.check(model, images).tables
    (row,) = measured.rows
    assert row[:5] == ["patch certificate", "plain", "any patch of 5x5 pixels", 4, "no proof"]
    side = robvit.certify(model, images, patch=5).trials[-1]
    assert row[5].startswith(f"{side.accuracy:.1%} (")
    figures = {row[0]: row[-2] for row in defences.rows}
    assert figures["patch certificate"] == "measured on these images"
    assert all("afterwards: robvit " in text for name, text in figures.items() if name != "patch certificate")


@pytest.mark.slow
def test_a_model_that_is_defended_already_is_not_compared_with_a_robust_one() -> None:
    images = open_data("sample", limit=2)
    tuned = robvit.load("robvit-mini").replace(original="0" * 64)
    assert [table.title for table in robvit.check(tuned, images).tables] == ["Defences that fit"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "fits"),
    [
        (lambda: robvit.Model(plain_vit(), name="plain"), [True] * 5),
        (lambda: robvit.load("robvit-mini"), [True, True, True, True, False]),
        (lambda: lambda x: torch.zeros(len(x), 10), [False] * 5),
    ],
)
def test_defences_that_do_not_fit_say_why(model, fits: list[bool]) -> None:
    rows = defences_table(open_classifier(model())).rows
    assert [row[-1].startswith("robvit ") for row in rows] == fits
