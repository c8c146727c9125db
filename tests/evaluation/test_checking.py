"""A first look at a model: vulnerability, speed, and which defences fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import robvit
from helpers.plain_vit import plain_vit
from robvit.checking import defences_table
from robvit.cli import app
from robvit.evaluation.classifiers import open_classifier


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
    assert record.notes[0] in done.output
    (table,) = record.tables
    tuning = next(row for row in table.rows if row[0] == "LoRA tuning")
    assert tuning[-1] == "robvit robustify robvit-mini sample --img-size 32 --method lora --minutes 15"
    assert f"\nLoRA tuning: {tuning[-1]}\n" in done.output  # whole, whatever the terminal's width
    assert "recorded" in table.note
    left = [t.accuracy for t in record.attacks()]
    assert left == sorted(left, reverse=True)  # what falls at 1/255 falls at 4/255


@pytest.mark.parametrize(
    ("model", "fits"),
    [
        (lambda: robvit.Model(plain_vit(), name="plain"), [True, True, True, True]),
        (lambda: robvit.load("robvit-mini"), [True, True, True, False]),
        (lambda: lambda x: torch.zeros(len(x), 10), [False] * 4),
    ],
)
def test_defences_that_do_not_fit_say_why(model, fits: list[bool]) -> None:
    rows = defences_table(open_classifier(model())).rows
    assert [row[-1].startswith("robvit ") for row in rows] == fits
