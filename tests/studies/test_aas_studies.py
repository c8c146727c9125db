"""The studies of attention scaling run, and put honest figures beside the paper's."""

from __future__ import annotations

import pytest

import robvit.studies.aas.common as shared
from robvit.studies import STUDIES, reproduce

QUICK = {
    "aas-table1": {"steps": 1},
    "aas-fig2": {"model": "robvit-mini-robust"},
    "aas-fig3": {"steps": 1},
    "aas-fig4": {"counts": (1, 2)},
    "aas-fig5": {"levels": (0, 100), "steps": 2},
}


SLOW = ("aas-fig3", "aas-fig4")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in QUICK])
def test_a_study_runs_and_tells_its_judgement(name, tmp_path, monkeypatch):
    monkeypatch.setattr(shared, "FACTORS", (1.0, 0.1))
    record = reproduce(name, images=4, out=tmp_path, **QUICK[name])
    record.save(tmp_path / "record.json")
    assert type(record).load(tmp_path / "record.json").tables == record.tables
    if name == "aas-fig2":
        assert len(record.curves) == 4
        assert "one-hot" in record.notes[1]
        return
    assert any("paper's effect appears in" in note for note in record.notes)
    judged = next(t for t in record.tables if t.title.startswith("Plain and scaled"))
    assert len(judged.rows) == len(record.scenarios())
    for trial in record.trials:
        assert len(trial.correct) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aas-table2", "aas-table3"])
def test_the_long_tables_run(name, tmp_path):
    record = reproduce(name, images=4, out=tmp_path, steps=1)
    assert record.tables[0].columns[-1].startswith("paper")


@pytest.mark.slow
def test_a_training_with_scales_is_judged_beside_one_without(tmp_path):
    small = {"learn": 40, "epochs": 3, "inner_steps": 1, "steps": 2, "queries": 2}
    record = reproduce("aas-table5", images=4, out=tmp_path, methods=["pgd-at"], **small)
    assert [row[0] for row in record.tables[0].rows] == ["pgd-at", "aas-pgd-at"]
    for row in record.tables[0].rows:
        clean, pgd, aas, autoattack = row[1:5]
        assert clean >= pgd >= aas >= autoattack
    assert "ships with scales" in record.notes[-1]


def test_no_budget_breaks_nothing_and_scale_one_changes_nothing(tmp_path):
    record = reproduce("aas-fig5", images=4, out=tmp_path, levels=(0,), steps=1)
    clean, *attacked = record.trials
    assert all(trial.correct == clean.correct for trial in attacked)


def test_every_table_and_figure_has_a_study():
    names = {entry.name for entry in STUDIES}
    assert {f"aas-table{n}" for n in (1, 2, 3, 4, 5)} | {f"aas-fig{n}" for n in (2, 3, 4, 5)} <= names
