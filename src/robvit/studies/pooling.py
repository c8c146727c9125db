"""Runs of one study that differ only in the seeds of their trainings, taken together as one result.

Seeds can so be trained apart, on several machines or days, and the claims are still tested over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robvit.errors import InputError
from robvit.locks import kept_in
from robvit.record import Record, Table, Trial
from robvit.studies.claims import HOLM, ONE_TRAINING, claims_table
from robvit.studies.judging import attack_title, over_seeds_cell
from robvit.verdict import claim_of_parts

OWN = {"seeds", "training"}  # settings in which the parts may differ


def pool(records: Sequence[Record], *, out: str | Path | None = None, command: str = "") -> Record:
    """The record of all seeds together: accuracies, and every claim anew, over seeds and images.

    Args:
        records: runs of one study with the same settings on the same images, each of other seeds.
        out: a folder for the record.
        command: what the record is to say about how it was made.
    """
    _check(records)
    first, seeds = records[0], [_seed(record) for record in records]
    claims = [claim_of_parts(parts) for parts in zip(*(record.claims for record in records), strict=True)]
    pooled = Record("study", first.model, first.data, trials=_trials(records), claims=claims)
    together = any(HOLM in table.columns for table in first.tables)
    pooled.tables = [_accuracies(records), *([claims_table(claims, together=together)] if claims else [])]
    # That one seed decides no default is no longer true, and the claims over all seeds are in the table.
    findings = [finding for record in records for finding in record.findings]
    pooled.findings = [finding for finding in findings if ONE_TRAINING not in finding.evidence]
    runs = f"Trained with seeds {', '.join(map(str, seeds))}, each run apart."
    pooled.notes = [*first.notes[:1], runs, *first.notes[1:]]
    pooled.protocol = {**first.protocol, "seeds": seeds}
    pooled.command = command
    if out is not None:
        with kept_in(out) as folder:
            pooled.save(folder / "record.json")
    return pooled


def _seed(record: Record) -> int:
    """The seed of a run's trainings."""
    seeds = record.protocol["settings"].get("seeds") or [record.protocol["seed"]]
    if len(seeds) > 1:
        raise InputError(f"each record must be of one seed, got {', '.join(map(str, seeds))} in one")
    return int(seeds[0])


def _check(records: Sequence[Record]) -> None:
    """Refuse what is not one study on the same images, or has a seed twice."""
    if len(records) < 2:
        raise InputError(f"pooling takes two records or more, each of another seed, got {len(records)}")
    for record in records:
        if not {"study", "seed", "settings"} <= record.protocol.keys():
            raise InputError(f"only records of `robvit reproduce` can be pooled, got one of {record.kind!r}")
    first = _facts(records[0])
    for record in records[1:]:
        other = _facts(record)
        if differing := sorted(key for key in first | other if first.get(key) != other.get(key)):
            raise InputError(f"the records differ in {', '.join(differing)}; only their seeds may")
    seeds = [_seed(record) for record in records]
    if len(set(seeds)) < len(seeds):
        raise InputError(f"every record must be of another seed, got {', '.join(map(str, seeds))}")


def _facts(record: Record) -> dict[str, Any]:
    """All that must be equal."""
    settings = {key: value for key, value in record.protocol["settings"].items() if key not in OWN}
    return {
        "study": record.protocol["study"],
        "model": record.model.get("name"),
        "images": [record.data.get(key) for key in ("digest", "pixels", "count", "size", "resize")],
        "claims": [(claim.text, claim.paper) for claim in record.claims],
        "attacks": [_line(trial) for trial in record.trials],
        **settings,
    }


def _line(trial: Trial) -> list[str]:
    """What was judged, and how."""
    title = ", ".join(filter(None, (attack_title(trial.attack, trial.settings), trial.variant)))
    return [trial.scenario, title, trial.strength]


def _trials(records: Sequence[Record]) -> list[Trial]:
    """Every run's trials by their seeds; the first run's are quoted, the others are controls."""
    return [
        replace(
            trial,
            scenario=f"{trial.scenario}, seed {_seed(record)}",
            control=trial.control or record is not records[0],
        )
        for record in records
        for trial in record.trials
    ]


def _accuracies(records: Sequence[Record]) -> Table:
    """The mean over seeds of every trial, with its interval over seeds and images."""
    rows: list[list[Any]] = [
        [*_line(trials[0]), over_seeds_cell([trial.correct for trial in trials])]
        for trials in zip(*(record.trials for record in records), strict=True)
    ]
    columns = ["", "attack", "threat", "accuracy, % (95 % interval)"]
    return Table(f"Accuracy over {len(records)} seeds", columns, rows)
