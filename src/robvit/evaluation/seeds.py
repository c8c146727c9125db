"""Several trainings of one setting that differ in their seed: mean, deviation and interval over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from robvit.errors import InputError
from robvit.record import Record
from robvit.statistics import holm, mean_interval, welch

Line = tuple[str, str, str]  # scenario, attack, threat


class OverSeeds(NamedTuple):
    """One line of a table over trainings: shares with their mean, deviation and 95 % interval of the mean."""

    line: Line
    shares: list[float]
    mean: float
    deviation: float
    low: float
    high: float


class SeedContrast(NamedTuple):
    """Two settings on one line: both over their seeds, Welch's difference (A minus B) and p, and Holm's."""

    a: OverSeeds
    b: OverSeeds
    difference: float
    low: float
    high: float
    p: float
    adjusted: float


def over_seeds(records: Sequence[Record]) -> list[OverSeeds]:
    """Every line that all records share; they must be of one setting, and of different weights."""
    _check(records)
    shares = [{row[:3]: row.share for row in record.rows()} for record in records]
    lines = [line for line in shares[0] if all(line in other for other in shares)]
    if not lines:
        raise InputError("the records have no attack in common; judge all by the same protocol")
    found = []
    for line in lines:
        values = [own[line] for own in shares]
        found.append(OverSeeds(line, values, *mean_interval(values)))
    return found


def compare_seeds(a: Sequence[Record], b: Sequence[Record]) -> list[SeedContrast]:
    """Two settings, each trained with several seeds, on every line that they share."""
    for records in (a, b):
        if len(records) < 2:
            raise InputError(f"a deviation needs two seeds or more of each setting, got {len(records)}")
    _check_images([*a, *b])
    second = {row.line: row for row in over_seeds(b)}
    pairs = [(row, second[row.line]) for row in over_seeds(a) if row.line in second]
    if not pairs:
        raise InputError("the settings have no attack in common; judge both by the same protocol")
    tests = [welch(one.shares, other.shares) for one, other in pairs]
    adjusted = holm([test[3] for test in tests])
    return [SeedContrast(*pair, *test, p) for pair, test, p in zip(pairs, tests, adjusted, strict=True)]


def _check(records: Sequence[Record]) -> None:
    """Refuse what is not one setting: other images, attacks, recipes, or the same weights twice."""
    names = [str(record.model.get("identity") or id(record)) for record in records]
    if len(set(names)) < len(names):
        raise InputError(
            "two of the records are of the same weights; give one record for each training, of other seeds"
        )
    _check_images(records)
    first = _setting(records[0])
    for record in records[1:]:
        other = _setting(record)
        if differing := sorted(key for key in first | other if first.get(key) != other.get(key)):
            raise InputError(
                f"the records are of different settings: {', '.join(differing)} differ; give those of one "
                "setting, whose trainings differ in nothing but their seed"
            )


def _check_images(records: Sequence[Record]) -> None:
    if any(record.kind == "train" for record in records):
        return  # a training holds out other images for every seed
    if any(r.data.get(key) != records[0].data.get(key) for r in records for key in ("names", "labels")):
        raise InputError("all records must be of the same images; judge all models with the same --limit")


def _setting(record: Record) -> dict[str, Any]:
    """What must agree: the recipe where it is known, and the settings of the attacks, seeds aside."""
    recipe = record.model.get("recipe")
    found = {f"recipe.{key}": value for key, value in (recipe or {}).items() if key != "seed"}
    for trial in record.trials:
        own = {key: value for key, value in trial.settings.items() if key != "seed"}
        found[f"{trial.scenario} {trial.name} {trial.strength}".strip()] = own
    return found
