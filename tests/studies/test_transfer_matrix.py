"""The transfer matrix: every cell counted from its trials, models and attack as they were asked for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

import robvit
from robvit.errors import InputError
from robvit.studies import transfer_matrix as matrix


@pytest.mark.slow
def test_every_cell_is_counted_from_its_trials(tmp_path: Path) -> None:
    names = ["robvit-mini", "robvit-mini-robust"]
    record = robvit.reproduce(
        "transfer-matrix", images=6, steps=2, switches="diversity=0.5,pna=true", out=tmp_path
    )
    shares, counts = record.tables
    assert shares.columns == ["made on", *names]
    clean = {trial.scenario: trial for trial in record.trials if trial.kind == "clean"}
    assert list(clean) == names
    assert len(record.attacks()) == 4
    for trial, row in zip(record.attacks(), counts.rows, strict=True):
        assert row[:2] == [trial.surrogate or trial.scenario, trial.scenario]
        assert trial.settings["pna"] is True
        pairs = list(zip(clean[trial.scenario].correct, trial.correct, strict=True))
        right, lost = sum(before for before, _ in pairs), sum(before and not after for before, after in pairs)
        assert row[2:4] == [right, pytest.approx(100 * lost / right)]
        assert row[4] <= row[3] <= row[5]
        cell = shares.rows[names.index(row[0])][1 + names.index(row[1])]
        assert cell == pytest.approx(row[3])
    with Image.open(tmp_path / "matrix.png") as drawn:
        assert drawn.width > 400
    again = robvit.reproduce(
        "transfer-matrix", images=6, steps=2, switches="diversity=0.5,pna=true", out=tmp_path
    )
    assert again.tables == record.tables


def test_one_model_and_models_of_different_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"two models or more .* got robvit-mini \(32 pixels\)"):
        robvit.reproduce("transfer-matrix", models="robvit-mini,robvit-mini", images=2)
    sizes = {"small": 16, "large": 32}
    monkeypatch.setattr(
        matrix, "load", lambda name, img_size: SimpleNamespace(input_size=(sizes[name], sizes[name]))
    )
    with pytest.raises(InputError, match=r"one size, got small \(16 pixels\), large \(32 pixels\)"):
        robvit.reproduce("transfer-matrix", models="small,large", images=2)
