"""Trainings with several seeds: mean, deviation and interval over them, and two settings compared."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from robvit.budget import Budget
from robvit.cli import app
from robvit.errors import InputError
from robvit.evaluation.seeds import compare_seeds, over_seeds
from robvit.evaluation.tables import formatted
from robvit.record import Record, Trial
from robvit.statistics import mean_interval, student_quantile, student_tail, welch

LABELS = [0] * 10


def of_seed(name: str, clean: int, robust: int, **settings: object) -> Record:
    """A record in which so many of ten images are correct."""

    def trial(attack: str, threat: Budget | None, right: int) -> Trial:
        correct = [i < right for i in range(10)]
        return Trial(attack, threat, dict(settings), correct, [int(not c) for c in correct], [0.0] * 10)

    trials = [trial("clean", None, clean), trial("pgd", Budget("linf", 8 / 255), robust)]
    data = {"count": 10, "spec": "sample", "names": list("abcdefghij"), "labels": LABELS}
    return Record("evaluate", {"name": name, "identity": name}, data, trials)


def test_tails_of_student_are_those_of_the_closed_forms() -> None:
    for value in (0.0, 1e-9, 0.3, 1.0, 2.5, 40.0, 1e6):
        assert student_tail(value, 1) == pytest.approx(1 - 2 / math.pi * math.atan(value), abs=1e-14)
        assert student_tail(value, 2) == pytest.approx(1 - value / math.sqrt(2 + value**2), abs=1e-14)
    assert student_tail(40, 300) == pytest.approx(2.85e-122, rel=1e-2)  # where one minus a share would be 0


def test_quantiles_of_student_are_those_of_the_tables() -> None:
    for freedom, value in ((1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423), (200, 1.9719)):
        assert student_quantile(0.05, freedom) == pytest.approx(value, abs=1e-4)


def test_mean_deviation_and_interval() -> None:
    mean, deviation, low, high = mean_interval([0.5, 0.6, 0.7])
    assert (mean, deviation) == (pytest.approx(0.6), pytest.approx(0.1))
    assert high - mean == pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert low == pytest.approx(2 * mean - high)


@pytest.mark.slow
def test_welch_is_as_it_is_in_the_books() -> None:
    """By hand: variances 1 and 4 over 4 and 6 values, so 1/4 + 4/6 of variance and 7.7 of freedom."""
    first = [1 - 1.5**0.5 / 2**0.5, 1 - 1.5**0.5 / 2**0.5, 1 + 1.5**0.5 / 2**0.5, 1 + 1.5**0.5 / 2**0.5]
    second = [3.0 + d * (10 / 3) ** 0.5 for d in (-1, -1, -1, 1, 1, 1)]
    difference, low, high, p = welch(first, second)
    assert difference == pytest.approx(-2)
    assert (low + high) / 2 == pytest.approx(-2)
    error = (1 / 4 + 4 / 6) ** 0.5
    freedom = (1 / 4 + 4 / 6) ** 2 / ((1 / 4) ** 2 / 3 + (4 / 6) ** 2 / 5)
    assert (high - low) / 2 == pytest.approx(student_quantile(0.05, freedom) * error)
    assert p == pytest.approx(0.07168, abs=1e-5)  # as scipy has it
    assert welch([1.0, 1.0], [1.0, 1.0])[3] == 1
    assert welch([1.0, 1.0], [2.0, 2.0])[3] == 0


@pytest.mark.slow
def test_a_table_over_seeds() -> None:
    records = [of_seed(str(i), 9, robust, seed=i) for i, robust in enumerate((4, 5, 6))]
    clean, pgd = over_seeds(records)
    assert (clean.mean, clean.deviation) == (pytest.approx(0.9), 0)
    assert (pgd.mean, pgd.deviation) == (pytest.approx(0.5), pytest.approx(0.1))
    text = formatted(records, "csv", seeds=True).splitlines()
    assert text[0] == "data,images,attack,threat,seeds,mean,deviation,low,high"
    *line, mean, deviation, _, _ = text[2].split(",")
    assert line == ["sample", "10", "pgd", "linf 8/255", "3"]
    assert (float(mean), float(deviation)) == (pytest.approx(50), pytest.approx(10))
    assert formatted(records, "latex", seeds=True).startswith("\\begin{tabular}{lrllrrrrr}")


def test_other_settings_the_same_weights_and_other_images_are_refused() -> None:
    with pytest.raises(InputError, match="the same weights"):
        over_seeds([of_seed("a", 9, 4), of_seed("a", 9, 5)])
    with pytest.raises(InputError, match=r"different settings: .*pgd"):
        over_seeds([of_seed("a", 9, 4, steps=5), of_seed("b", 9, 5, steps=9)])
    other = of_seed("b", 9, 5)
    other.data["names"] = list("klmnopqrst")
    with pytest.raises(InputError, match="same images"):
        over_seeds([of_seed("a", 9, 4), other])
    trained = [of_seed("a", 9, 4), of_seed("b", 9, 4)]
    for record, rate in zip(trained, (1e-3, 2e-3), strict=True):
        record.model["recipe"] = {"lr": rate, "seed": rate}
    with pytest.raises(InputError, match=r"recipe\.lr differ"):
        over_seeds(trained)


@pytest.mark.slow
def test_two_settings_are_compared_over_their_seeds(tmp_path: Path) -> None:
    first = [of_seed(f"a{i}", 9, robust) for i, robust in enumerate((6, 7, 8))]
    second = [of_seed(f"b{i}", 9, robust) for i, robust in enumerate((2, 3, 1))]
    clean, pgd = compare_seeds(first, second)
    assert clean.difference == 0
    assert pgd.difference == pytest.approx(0.5)
    assert pgd.low > 0
    assert pgd.adjusted == pytest.approx(min(1.0, 2 * pgd.p))
    with pytest.raises(InputError, match="two seeds or more"):
        compare_seeds(first, second[:1])
    for record in (*first, *second):
        record.save(tmp_path / record.model["name"] / "record.json")
    places = [str(tmp_path / record.model["name"]) for record in (*first, *second)]
    against = [word for place in places[3:] for word in ("--against", place)]
    done = CliRunner().invoke(app, ["compare", *places[:3], *against])
    assert done.exit_code == 0, (done.output, done.exception)
    assert "70.0 ± 10.0" in done.output
    assert "+50.0" in done.output
    shown = CliRunner().invoke(app, ["table", *places[:3], "--seeds", "--format", "markdown"])
    assert "| 3 | 70.0 | 10.0 |" in shown.output
