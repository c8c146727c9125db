"""What the benchmarks share: both clocks, the machine, and the record that is kept of a run."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robvit.cli.tables import show_table
from robvit.record import Record, Table

SIDE = 512  # of the matrices whose products tell what low precision costs


class Spent(NamedTuple):
    """Seconds of the processor, on which other work does not count, and seconds of the clock."""

    cpu: float
    seconds: float

    def __add__(self, other: tuple[Any, ...]) -> Spent:
        return Spent(self.cpu + other[0], self.seconds + other[1])


NOTHING = Spent(0.0, 0.0)


class Watch:
    """Both clocks, from its making on."""

    def __init__(self) -> None:
        self.start = self._now()

    def read(self) -> Spent:
        """What was spent since."""
        return Spent(*(now - then for now, then in zip(self._now(), self.start, strict=True)))

    @staticmethod
    def _now() -> tuple[float, float]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.process_time(), time.perf_counter()


def quickest(call: Callable[[], object], runs: int) -> Spent:
    """What the quickest run took by the clock, after one that warms up."""
    found = []
    for _ in range(runs + 1):
        watch = Watch()
        call()
        found.append(watch.read())
    return min(found[1:], key=lambda spent: spent.seconds)


def bf16_note() -> str:
    """Whether low precision can pay on this processor, which it does where hardware has it."""
    a = torch.ones(SIDE, SIDE)
    b = a.bfloat16()
    times = quickest(lambda: b @ b, 3).seconds / quickest(lambda: a @ a, 3).seconds
    return f"A matrix product in bf16 takes {times:.1f} times as long as in fp32 on this processor."


def add_out(parser: argparse.ArgumentParser) -> None:
    """The option of every benchmark that can leave a record."""
    parser.add_argument("--out", type=Path, help="folder for record.json; nothing is kept if left out")


def finish(
    out: Path | None,
    tables: Sequence[Table],
    *,
    model: dict[str, Any],
    data: dict[str, Any],
    notes: Sequence[str] = (),
    **fields: Any,
) -> Record:
    """Print the tables and the notes, and keep them in a folder if one is given."""
    record = Record("benchmark", model, data, [], tables=list(tables), notes=list(notes), **fields)
    record.command = " ".join(["python", *sys.argv])
    record.machine = {
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "load": os.getloadavg()[0],  # an idle machine has the benchmark's own threads
    }
    for table in record.tables:
        show_table(table)
    print("\n".join(record.notes))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        record.save(out / "record.json")
    return record
