"""Two records on the same images, side by side: paired differences and exact tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from robvit.errors import InputError
from robvit.record import Record, Table
from robvit.statistics import holm, mcnemar, paired_interval


class Pair(NamedTuple):
    """One line: both accuracies, their difference (A minus B) with its 95 % interval, and the p-value."""

    what: str
    a: float
    b: float
    only_a: int
    only_b: int
    difference: float
    low: float
    high: float
    p: float


def open_record(path: str | Path) -> Record:
    """A record from its file, or from the folder that holds it."""
    place = Path(path)
    return Record.load(place / "record.json" if place.is_dir() else place)


def compare(a: Record, b: Record) -> list[Pair]:
    """Every trial that both records have, then the worst case; they must be of the same images."""
    check_same_images(a, b)
    first, second = (_trials(record) for record in (a, b))
    pairs = [_pair(key, first[key], second[key]) for key in first if key in second]
    if _comparable(a, b):
        pairs.append(_pair("worst case", a.still_correct(), b.still_correct()))
    if not pairs:
        raise InputError("the records have no attack in common; judge both models by the same protocol")
    return pairs


def check_same_images(a: Record, b: Record) -> None:
    """Refuse records of other images, or of the same in another order or with other pixels."""
    for name in ("names", "labels"):
        if not a.data.get(name) or a.data.get(name) != b.data.get(name):
            counts = f"{a.data.get('count')} and {b.data.get('count')}"
            raise InputError(
                f"both records must be of the same images in the same order, but data.{name} differ "
                f"({counts} images); judge both models on the same data with the same --limit"
            )
    pixels = [record.data.get("pixels") for record in (a, b)]
    if all(pixels) and pixels[0] != pixels[1]:
        raise InputError(
            "both records must be of the same pixels, but data.pixels differ: images of the same names were "
            "changed between the two; judge both models on the same files"
        )


class Contrast(NamedTuple):
    """Two of several records, by their numbers, on one line they share; `adjusted` is Holm's p-value."""

    first: int
    second: int
    pair: Pair
    adjusted: float


def compare_all(records: Sequence[Record]) -> list[Contrast]:
    """Every pair of records on every line they share; p-values are corrected for all of them together."""
    found = [(i, j, pair) for (i, a), (j, b) in combinations(enumerate(records), 2) for pair in compare(a, b)]
    adjusted = holm([pair.p for _, _, pair in found])
    return [Contrast(*one, p) for one, p in zip(found, adjusted, strict=True)]


def comparison_table(records: Sequence[Record]) -> Table:
    """What `compare_all` finds, for people; records are called A, B, C in their order."""
    several = len(records) > 2
    rows = []
    for contrast in compare_all(records):
        pair = contrast.pair
        names = f"{ascii_uppercase[contrast.first]}, {ascii_uppercase[contrast.second]}"
        rows.append(
            [
                pair.what,
                *([names] if several else []),
                f"{pair.a:.1%}",
                f"{pair.b:.1%}",
                pair.only_a,
                pair.only_b,
                f"{100 * pair.difference:+.1f}",
                f"{100 * pair.low:+.1f} to {100 * pair.high:+.1f}",
                f"{contrast.adjusted:.2g}",
            ]
        )
    columns = ["", *(["pair"] if several else []), "A", "B", "only A", "only B", "A - B"]
    which = ", corrected for all tests (Holm); A and B are the first and second of a pair" if several else ""
    return Table(
        "Paired comparison",
        [*columns, "95 % interval", "p"],
        rows,
        note="only A: images that A alone gets right; A - B in points; p: exact McNemar test, two-sided"
        + which,
    )


def differences(a: Record, b: Record) -> list[str]:
    """What else than the model differs, and so may explain a difference."""
    found = []
    first, second = (_trials(record) for record in (a, b))
    for name, mine, other in (("A", first, second), ("B", second, first)):
        if lone := [key for key in mine if key not in other]:
            found.append(f"only in {name}: {', '.join(lone)}")
    if not _comparable(a, b):
        found.append("the worst cases are of different attacks and are not compared")
    if any(trial.skipped for record in (a, b) for trial in record.trials):
        found.append("attacks ran on survivors, so a line counts what it and the attacks before it left")
    if not all(record.data.get("pixels") for record in (a, b)):
        found.append("not both records carry a digest of their pixels, so these may differ")
    for field in ("size", "resize"):
        if a.data.get(field) != b.data.get(field):
            found.append(f"images: {field} {a.data.get(field)} and {b.data.get(field)}")
    return found


def _trials(record: Record) -> dict[str, list[bool]]:
    """Outcomes by what makes trials the same: scenario, attack, threat, settings."""
    found: dict[str, list[bool]] = {}
    for trial in record.trials:
        settings = ", ".join(f"{k}={v}" for k, v in sorted(trial.settings.items()) if k != "seed" or v)
        inner = f"{trial.name} ({settings})" if settings else trial.name
        surrogate = f"on {trial.surrogate}" if trial.surrogate else ""
        strength = "" if trial.kind == "clean" else trial.strength
        found[" ".join(filter(None, (trial.scenario, inner, surrogate, strength)))] = trial.correct
    return found


def _comparable(a: Record, b: Record) -> bool:
    """Whether both worst cases are of the same attacks, and there is one."""
    return list(_trials(a)) == list(_trials(b)) and bool(a.attacks())


def _pair(what: str, a: list[bool], b: list[bool]) -> Pair:
    only_a = sum(x and not y for x, y in zip(a, b, strict=True))
    only_b = sum(y and not x for x, y in zip(a, b, strict=True))
    shares = sum(a) / len(a), sum(b) / len(b)
    return Pair(
        what, *shares, only_a, only_b, *paired_interval(only_a, only_b, len(a)), mcnemar(only_a, only_b)
    )
