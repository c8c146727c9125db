"""Runs of a study with other seeds are taken together, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robvit.errors import InputError
from robvit.record import Record, Trial
from robvit.studies import pool
from robvit.studies.claims import HOLM, claims_table
from robvit.studies.judging import over_seeds_cell
from robvit.verdict import claim_over_seeds

FIRST = [[True] * 30, [True] * 28 + [False] * 2, [True] * 29 + [False]]
SECOND = [[True] * 20 + [False] * 10, [True] * 21 + [False] * 9, [True] * 19 + [False] * 11]


def part(seed: int, **settings: Any) -> Record:
    """What a run of a study with one seed leaves: two rows, and the claim that the first is ahead."""
    trials = [
        Trial("pgd", None, {}, rows[seed], [-1] * 30, [0.0] * 30, scenario=name, control=name == "b")
        for name, rows in (("a", FIRST), ("b", SECOND))
    ]
    claims = [claim_over_seeds("a over b", [FIRST[seed]], [SECOND[seed]], 20.0)]
    record = Record("study", {"name": "m"}, {"digest": "d", "count": 30}, trials, claims=claims)
    record.protocol = {"study": "s", "seed": 0, "settings": {"seeds": [seed], "steps": 5, **settings}}
    record.notes = ["A table."]
    return record


def test_variants_of_an_attack_are_taken_together_each_with_its_own() -> None:
    parts = [part(seed) for seed in range(3)]
    for record in parts:
        record.trials = [replace(t, attack="aas") for t in record.trials] + [
            replace(t, variant="same cost", control=True) for t in record.trials
        ]
    titles = [row[1] for row in pool(parts).tables[0].rows]
    assert titles == ["AAS", "AAS", "PGD, same cost", "PGD, same cost"]


def test_attacks_of_a_studys_own_and_claims_decided_together_stay_so() -> None:
    parts = [part(seed) for seed in range(3)]
    for record in parts:
        record.trials = [replace(t, attack="gate-aware", settings={"steps": 9}) for t in record.trials]
        record.tables = [claims_table(record.claims, together=True)]
    accuracies, claims = pool(parts).tables
    assert [row[1] for row in accuracies.rows] == ["gate-aware-9"] * 2
    assert claims.columns[-1] == HOLM


def test_a_claim_over_parts_is_the_claim_over_all_seeds(tmp_path: Path) -> None:
    pooled = pool([part(seed) for seed in range(3)], out=tmp_path)
    assert pooled.claims == [claim_over_seeds("a over b", FIRST, SECOND, 20.0)]
    assert pooled.tables[0].rows[0] == ["a", "PGD", "none", over_seeds_cell(FIRST)]
    assert pooled.scenarios() == [f"{name}, seed {seed}" for seed in range(3) for name in "ab"]
    assert [trial.scenario for trial in pooled.attacks()] == ["a, seed 0"]
    assert pooled.protocol["seeds"] == [0, 1, 2]
    assert Record.load(tmp_path / "record.json") == pooled


def test_what_is_not_the_same_study_of_other_seeds_is_refused() -> None:
    with pytest.raises(InputError, match="another seed, got 1, 1"):
        pool([part(1), part(1)])
    with pytest.raises(InputError, match="differ in steps"):
        pool([part(0), part(1, steps=6)])
    other = part(1)
    other.data = {"digest": "e", "count": 30}
    with pytest.raises(InputError, match="differ in images"):
        pool([part(0), other])
    for key, value in (("pixels", "other"), ("size", 64), ("resize", "crop")):
        other.data = {"digest": "d", "count": 30, key: value}
        with pytest.raises(InputError, match="differ in images"):
            pool([part(0), other])
    with pytest.raises(InputError, match="differ in model"):
        pool([part(0), replace(part(1), model={"name": "another"})])
    with pytest.raises(InputError, match="two records or more"):
        pool([part(0)])
    with pytest.raises(InputError, match="one seed, got 0, 1"):
        pool([part(0, seeds=[0, 1]), part(2)])
    with pytest.raises(InputError, match="only records of `robvit reproduce`"):
        pool([part(0), replace(part(1), protocol={})])
