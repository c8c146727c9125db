"""Progress of long work: a live bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from robvit.texts import printable

QUIET_SECONDS = 10.0  # between two lines where nobody watches live
ALMOST = 0.99  # of a batch is all that passes may show before it is done

Log = Callable[[str], None]  # takes a line of text for people: `log=` everywhere


class Advance(Protocol):
    """Takes how much of a work was just done and a word on it: `progress=` everywhere."""

    def __call__(self, amount: float = 1, note: str = "") -> None: ...


def silent(*_: object, **__: object) -> None:
    """A `Log` or `Advance` that tells nobody."""


def part_of(progress: Advance, share: float, label: str = "") -> Advance:
    """The progress of a part: so much of it as a `share` of the whole, with the part's name in every note."""

    def advance(amount: float = 1, note: str = "") -> None:
        progress(amount * share, note=" ".join(filter(None, (label, note))))

    return advance


@dataclass
class Whole:
    """The progress of one whole, and how much of it is `done`."""

    progress: Advance = silent
    done: float = 0.0

    def __call__(self, amount: float = 1, note: str = "") -> None:
        self.done += amount
        self.progress(amount, note=note)

    def extended(self, more: float) -> float:
        """Plan so much `more` in place of what is not done yet: a bar goes back; what one unit now counts."""
        unit = 1 / (self.done + more)
        self(self.done * (unit - 1))
        return unit


@contextmanager
def whole(progress: Advance) -> Iterator[Whole]:
    """The progress of one whole: whatever was planned and not needed is told as done at the end."""
    told = Whole(progress)
    yield told
    if told.done < 1:
        progress(1 - told.done)


@dataclass
class BatchProgress:
    """The progress of a batch of `images`, pass by pass where the `passes` of an image are known.

    They are those of an image that stays correct; when others leave early, the end makes up for it.
    """

    progress: Advance
    images: int
    passes: int = 0
    shown: float = 0.0

    def each_pass(self, count: int) -> None:
        """A pass over so many images was made."""
        part = min(count / self.passes, ALMOST * self.images - self.shown) if self.passes else 0.0
        if part > 0:
            self.shown += part
            self.progress(part)

    def finish(self, note: str) -> None:
        """The batch is done."""
        self.progress(self.images - self.shown, note=note)
        self.shown = float(self.images)


@contextmanager
def progress(label: str, total: float | None = None, unit: str = "") -> Iterator[Advance]:
    """Yield `advance(amount=1, note="")`; everything is written to standard error.

    The time left is what the work so far predicts, so none is shown before something is done.
    """
    if sys.stderr.isatty():
        with _live(label, total, unit) as advance:
            yield advance
    else:
        yield _lines(label, total, unit)


@contextmanager
def _live(label: str, total: float | None, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%" if total else "{task.completed:g} " + unit),
        TimeElapsedColumn(),
        *([TextColumn("left"), TimeRemainingColumn()] if total else []),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, note="")

        def advance(amount: float = 1, note: str = "") -> None:
            bar.update(task, advance=amount)
            if note:
                bar.update(task, note=printable(note))

        yield advance


def _lines(label: str, total: float | None, unit: str) -> Advance:
    start = last = time.monotonic()
    done = 0.0

    def advance(amount: float = 1, note: str = "") -> None:
        nonlocal done, last
        done += amount
        now = time.monotonic()
        finished = total is not None and done >= total
        if now - last < QUIET_SECONDS and not (finished and now - start >= QUIET_SECONDS):
            return
        last = now
        share = f"{done / total:4.0%}" if total else f"{done:g} {unit}".rstrip()
        left = f", {(now - start) * max(0.0, total - done) / done:.0f} s left" if total and done else ""
        print(printable(f"{label}: {share}{left} {note}".rstrip()), file=sys.stderr, flush=True)

    return advance
