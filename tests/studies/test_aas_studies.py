"""The studies of attention scaling run, and put honest figures beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import robvit.studies.aas.common as shared
from robvit.studies import STUDIES, reproduce
from robvit.studies.aas.training import AasTrainingEffort
from robvit.training.recipe import load_recipe
from robvit.verdict import Verdict

QUICK: dict[str, dict[str, Any]] = {
    "aas-table1": {"steps": 1},
    "aas-table2": {"steps": 1},
    "aas-fig2": {"model": "robvit-mini-robust"},
    "aas-fig3": {"steps": 1},
    "aas-fig4": {"counts": (1, 2)},
    "aas-fig5": {"levels": (0, 100), "steps": 2},
}


SLOW = ("aas-table2", "aas-fig3", "aas-fig4")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in QUICK])
def test_a_study_runs_and_tells_its_judgement(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "FACTORS", (1.0, 0.1))
    monkeypatch.setattr(shared, "LEARN", 2)
    record = reproduce(name, images=4, out=tmp_path, **QUICK[name])
    record.save(tmp_path / "record.json")
    assert type(record).load(tmp_path / "record.json").tables == record.tables
    if name == "aas-fig2":
        assert len(record.curves) == 4
        assert "one-hot" in record.notes[1]
        return
    assert any("paper's effect is seen in" in note for note in record.notes)
    scenarios = [
        name for name in record.scenarios() if (name != "1" or record.tables[0].columns[0] != "factor")
    ]
    assert [claim.text for claim in record.claims] == scenarios  # a factor of one tests nothing
    assert {claim.verdict for claim in record.claims} == {Verdict.INCONCLUSIVE}  # four images tell nothing
    claims = next(t for t in record.tables if t.title.startswith("Does scaling break more"))
    assert [row[0] for row in claims.rows] == scenarios
    for trial in record.trials:
        assert len(trial.correct) == 4


@pytest.mark.slow
def test_a_training_with_scales_is_judged_beside_one_without(tmp_path: Path) -> None:
    small: dict[str, Any] = {"learn": 40, "epochs": 3, "inner_steps": 1, "steps": 2, "queries": 2}
    record = reproduce("aas-table5", images=4, out=tmp_path, methods=["pgd-at"], **small)
    assert [row[0] for row in record.tables[0].rows] == ["pgd-at", "aas-pgd-at"]
    for row in record.tables[0].rows:
        clean, pgd, aas, autoattack = row[1:5]
        assert clean >= pgd >= aas >= autoattack
    assert "ships with scales" in record.notes[-1]
    assert [claim.text for claim in record.claims] == ["aas-pgd-at over pgd-at, AutoAttack"]
    assert record.claims[0].paper == 3.47
    assert record.scenarios() == ["pgd-at", "aas-pgd-at"]
    assert record.model["name"] == "robvit-mini, aas-pgd-at"  # not where its weights lay
    assert record.tables[0].columns[1:5] == ["clean %", "PGD-2 %", "and AAS %", "AutoAttack (2 queries) %"]


def test_a_recipe_that_keeps_its_length_keeps_its_start_warm_up_and_validation() -> None:
    own = load_recipe("pgd-at")
    changed = load_recipe(
        "pgd-at", **AasTrainingEffort(learn=0, epochs=0, inner_steps=0).changes("pgd-at", 2, 0)
    )
    assert (own.pretrained, own.warmup, own.validation) == (False, 1, 2000)
    assert changed.digest() == own.digest()
    short = load_recipe("aas-pgd-at", **AasTrainingEffort(epochs=8).changes("aas-pgd-at", 2, 0))
    assert (short.pretrained, short.warmup, short.validation, short.epochs) == (True, 1, 0.1, 8)
    assert (short.loss_settings["every"], short.inner.steps) == (2, 2)
    papers = AasTrainingEffort(steps=0, queries=0)
    assert papers.columns() == ["clean %", "PGD-100 %", "and AAS %", "AutoAttack %"]


def test_a_shortened_attack_is_named_by_its_length_beside_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "FACTORS", (1.0, 0.1))
    monkeypatch.setattr(shared, "LEARN", 2)
    record = reproduce("aas-table3", images=2, out=tmp_path, steps=1)
    rows = [(row[0], row[6], row[7]) for row in record.tables[0].rows]
    assert rows[:3] == [("FGSM", "FGSM", 66.48), ("PGD-1", "PGD-20", 63.14), ("PGD-1", "PGD-100", 61.10)]
    assert [row[0] for row in rows[3:]] == ["CW-1", "DLR-1", "GAMA-1"]
    assert record.tables[0].columns[6] == "paper's attack"
    assert [claim.text for claim in record.claims] == ["FGSM", "PGD-1", "CW-1", "DLR-1", "GAMA-1"]
    assert [claim.paper for claim in record.claims[:2]] == [5.44, 4.93]


def test_no_budget_breaks_nothing_and_scale_one_changes_nothing(tmp_path: Path) -> None:
    record = reproduce("aas-fig5", images=4, out=tmp_path, levels=(0,), steps=1)
    clean, *attacked = record.trials
    assert all(trial.correct == clean.correct for trial in attacked)


def test_every_table_and_figure_has_a_study() -> None:
    names = {entry.name for entry in STUDIES}
    assert {f"aas-table{n}" for n in (1, 2, 3, 4, 5)} | {f"aas-fig{n}" for n in (2, 3, 4, 5)} <= names
