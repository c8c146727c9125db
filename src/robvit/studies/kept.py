"""Results that the project keeps: what the laboratory measured, and whether a smaller run agrees with it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robvit.errors import InputError
from robvit.record import Record, Table, Trial
from robvit.statistics import fisher, holm, mean_interval, welch
from robvit.studies.judging import with_interval

SURE = 0.05  # beyond this chance, all comparisons of a record together, two runs do not disagree
# How a command is told how many images to judge.
COUNTS = {"reproduce": "--images", "evaluate": "--limit", "certify": "--limit"}
LEFT = re.compile(r"\{lab\}/(?P<study>[\w.-]+)/(?P<file>[\w./-]+)")  # a file that another study left
LEAST = 16


@dataclass(frozen=True)
class KeptResult:
    """What a study left in a folder of results: its record, and how it was made."""

    name: str
    record: Record
    about: dict[str, Any]
    folder: Path

    @property
    def fewer(self) -> int:
        """How many images a run that checks it judges, unless told otherwise: a quarter."""
        return max(LEAST, int(self.record.data["count"]) // 4)

    def command(self, images: int, out: Path) -> list[str]:
        """The words after `robvit` that make a record of so many images in `out`.

        What other studies left is where the laboratory has it, or else among the kept results, as in a fresh
        clone. Data that cannot be fetched are where $ROBVIT_LAB_DATA says.
        """
        first, verb, *rest = shlex.split(self.about["command"])
        if first != "robvit" or verb not in COUNTS:
            raise InputError(
                f"{self.name} was made by `{first} {verb}`; only results of {', '.join(COUNTS)} can be "
                "checked with fewer images"
            )
        if "--pool" in rest:
            raise InputError(f"{self.name} is pooled from other records; check those, one by one")
        data = os.environ.get("ROBVIT_LAB_DATA", "")
        if "{data}" in self.about["command"] and not data:
            raise InputError(
                f"{self.name} was measured on data that cannot be fetched; set ROBVIT_LAB_DATA to its folder"
            )
        lab = Path(os.environ.get("ROBVIT_LAB") or "~/.cache/robvit/lab").expanduser()
        rest = [
            LEFT.sub(lambda left: str(self._left(lab, left["study"], left["file"])), word) for word in rest
        ]
        for short, place in (("{out}", str(out)), ("{lab}", str(lab)), ("{data}", data)):
            rest = [word.replace(short, place) for word in rest]
        count = COUNTS[verb]
        for flag in (count, "--part"):  # a part of so few images would be next to none
            if flag in rest:
                at = rest.index(flag)
                rest[at : at + 2] = []
        return [verb, *rest, count, str(images)]

    def _left(self, lab: Path, study: str, file: str) -> Path:
        """Where a file is that another study left."""
        here, kept = lab / study / file, self.folder / study / file
        return kept if kept.exists() and not here.exists() else here


def read_kept(name: str, folder: Path) -> KeptResult:
    """The result of that name in a folder of results."""
    packed, about = folder / name / "record.json.gz", folder / name / "about.json"
    if not packed.is_file() or not about.is_file():
        known = sorted(path.parent.name for path in folder.glob("*/about.json"))
        raise InputError(
            f"no result is called {name}: expected {packed}; there are {', '.join(known) or 'none'}, and "
            "`make lab` makes those of results/queue.yaml"
        )
    with tempfile.TemporaryDirectory() as aside:
        unpacked = Path(aside) / "record.json"
        unpacked.write_bytes(gzip.decompress(packed.read_bytes()))
        return KeptResult(name, Record.load(unpacked), json.loads(about.read_text("utf-8")), folder)


@dataclass(frozen=True)
class Agreement:
    """Two runs of the same study side by side, and what they disagree in beyond chance."""

    table: Table
    disagree: list[str]
    compared: int

    def __str__(self) -> str:
        if not self.compared:
            return (
                "Nothing was compared: neither record keeps what became of each image, so there are no "
                "intervals; make the kept record anew (`make lab`), or compare the figures above by eye."
            )
        if self.disagree:
            return f"They disagree in {len(self.disagree)} of {self.compared}: {'; '.join(self.disagree)}."
        return f"They agree within intervals in all {self.compared} comparisons."


def agreement(kept: Record, anew: Record) -> Agreement:
    """Every share of both records by Fisher's exact test, every mean by Welch's, corrected for all of it."""
    shares, means = list(_pairs(kept, anew)), list(_means(kept, anew))
    cells = [[what, with_interval(first), with_interval(second)] for what, first, second in shares]
    cells += [[what, _mean_cell(first), _mean_cell(second)] for what, first, second in means]
    chances = [fisher(sum(a), len(a), sum(b), len(b)) for _, a, b in shares]
    chances = holm([*chances, *(welch(a, b)[-1] for _, a, b in means)])
    verdicts = ["no" if p < SURE else "yes" for p in chances]
    found = zip(cells, chances, verdicts, strict=True)
    rows: list[list[Any]] = [[*row, f"{p:.2g}", verdict] for row, p, verdict in found]
    disagree = [row[0] for row in rows if row[-1] == "no"]
    rows += [[what, Table.cell(a), Table.cell(b), None, "–"] for what, a, b in _metrics(kept, anew)]
    columns = ["what", f"kept, {kept.data['count']} images", f"anew, {anew.data['count']}", "p", "agrees"]
    note = (
        "Shares in per cent and means in points, with 95 % intervals; p is Fisher's or Welch's, after Holm's "
        "correction."
    )
    return Agreement(Table("The kept record and one made anew", columns, rows, note), disagree, len(cells))


def _mean_cell(values: Sequence[float]) -> str:
    mean, _, low, high = mean_interval(values)
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def _means(kept: Record, anew: Record) -> Iterator[tuple[str, list[float], list[float]]]:
    """Each image's differences of the claims on means that both records have."""
    others = {claim.text: claim for claim in anew.claims}
    for claim in kept.claims:
        first, second = claim.differences(), others[claim.text].differences() if claim.text in others else []
        if min(len(first), len(second)) > 1:  # a single value has no spread
            yield claim.text, first, second


def _pairs(kept: Record, anew: Record) -> Iterator[tuple[str, list[bool], list[bool]]]:
    """The outcomes of each trial that both records have."""
    others = {_key(trial): trial for trial in anew.trials}
    for trial in kept.trials:
        if (other := others.get(_key(trial))) is not None:
            what = ", ".join(filter(None, (trial.scenario, trial.title, trial.strength)))
            yield what, trial.correct, other.correct


def _key(trial: Trial) -> tuple[Any, ...]:
    return trial.scenario, trial.name, trial.surrogate, trial.severity, trial.strength, trial.control


def _metrics(kept: Record, anew: Record) -> Iterator[tuple[str, float, float]]:
    """The measured numbers in tables of records that judge nothing image by image."""
    if kept.trials:
        return
    others = {table.title: table for table in anew.tables}
    for table in kept.tables:
        rows = {str(row[0]): row for row in others[table.title].rows} if table.title in others else {}
        for row in table.rows:
            for column, first, second in zip(
                table.columns, row, rows.get(str(row[0]), row[:1]), strict=False
            ):
                if isinstance(first, float) and isinstance(second, float):
                    yield f"{row[0]}, {column}", first, second
