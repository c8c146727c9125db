"""The laboratory: every study at its stated size, one after the other, kept in results/.

    python scripts/lab.py            # go on with the queue, from wherever it stopped
    python scripts/lab.py --status   # what is done, running and left, and how long the rest should take
    python scripts/lab.py --only rob-table2
    python scripts/lab.py --first rob-table2   # this one now, then the whole queue
    python scripts/lab.py --jobs 2   # two studies beside each other, each with its share of the cores
    python scripts/lab.py --minutes 90   # only those that should end by then

results/queue.yaml holds the studies in their order: a name, the command, of robvit or a benchmark, and an
estimate of its minutes on two cores. Each runs in a copy of the last commit, so that work on the tree goes
on beside it. Commands resume by themselves, so the laboratory may be killed at any moment. What a study
leaves is a folder of results/ with its record, packed, the files that it `keeps`, and about.json: command,
commit, versions, seconds, threads, machine and date. A study whose command has changed since its result is
run again, and so is one whose files another needs that is left, if they are neither here nor kept.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from statistics import median
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
# Outside the tree, which may be laid anew between two visits.
WORK = Path(os.environ.get("ROBVIT_LAB") or "~/.cache/robvit/lab").expanduser()

DATA = os.environ.get("ROBVIT_LAB_DATA", "")


@dataclass(frozen=True)
class Study:
    """One line of the queue; `{out}` in its command stands for the folder that the laboratory gives it.

    `{lab}` stands for the laboratory's own: what the study NAME left is in {lab}/NAME. `{data}` stands for
    the folder $ROBVIT_LAB_DATA of datasets that cannot be fetched; without it such studies wait. Without a
    `record` it only prepares what later ones need, such as a head. The files that it `keeps`, small ones that
    others start from, are put beside the record, and taken from there on another machine. It got to its
    end if it exits with one of `codes`: a doctor that finds something exits with 1. Those it comes `after`
    make what it takes from a folder that they share, such as trainings; without them it makes that itself.
    """

    name: str
    command: str
    minutes: float
    record: bool = True
    keeps: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=lambda: [0])
    after: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return WORK / self.name

    @property
    def result(self) -> Path:
        return RESULTS / self.name

    @property
    def tree(self) -> Path:
        """A note of the copy of the code that it began with."""
        return WORK / f"{self.name}.tree"

    @property
    def clock(self) -> Path:
        return WORK / f"{self.name}.seconds"

    def seconds(self) -> tuple[float, float]:
        """What it has taken so far, all runs together: on the clock, and of processor time."""
        if not self.clock.exists():
            return 0.0, 0.0
        wall, cpu = self.clock.read_text("ascii").split()
        return float(wall), float(cpu)

    def is_done(self) -> bool:
        """Whether results/ holds what this very command gave."""
        about = self.result / "about.json"
        return about.exists() and json.loads(about.read_text("utf-8"))["command"] == self.command

    def words(self) -> list[str]:
        """The command as a process takes it."""
        first, *rest = shlex.split(self.command)
        ours = first == "robvit" or (first == "python" and rest[0].startswith("benchmarks/"))
        if not ours or "{out}" not in self.command:
            raise SystemExit(f"{self.name}: a command must be robvit's and write to {{out}}: {self.command}")
        places = {"{out}": str(self.out), "{lab}": str(WORK), "{data}": DATA}
        for name, place in places.items():
            rest = [word.replace(name, place) for word in rest]
        return [sys.executable, *(["-m", "robvit"] if first == "robvit" else []), *rest]

    def lacks_data(self) -> bool:
        """Whether it takes datasets that are not there."""
        return "{data}" in self.command and not DATA

    def needs(self, other: Study) -> bool:
        """Whether its command takes files that the other study leaves."""
        return bool(other.files_for(self))

    def waits_for(self, other: Study) -> bool:
        """Whether it cannot begin before the other study, if that one is to run, has ended."""
        return other.name in self.after or self.needs(other)

    def files_for(self, other: Study) -> list[str]:
        """The files of this study that the other's command takes."""
        return re.findall(rf"\{{lab\}}/{re.escape(self.name)}/([^\s\"',\]]+)", other.command)


Fits = Callable[[Study, int], bool]  # whether there is time for a study on so many threads


def queue() -> list[Study]:
    """The studies in their order."""
    return [Study(**line) for line in yaml.safe_load((RESULTS / "queue.yaml").read_text("utf-8"))]


def left(studies: list[Study]) -> list[Study]:
    """The studies that are to be run: not done yet, or done elsewhere and needed here by one that is not."""
    wanted = [study for study in studies if not study.is_done()]
    gone = [study for study in studies if study not in wanted and not study.out.exists()]
    while more := [s for s in gone if s not in wanted and any(one.needs(s) for one in wanted)]:
        wanted += more
    return [study for study in studies if study in wanted and not study.lacks_data()]


def put_first(names: list[str], studies: list[Study]) -> list[Study]:
    """The studies with those of these names first, in this order and each after what it waits for."""
    front = list[Study]()

    def put(study: Study) -> None:
        for other in studies:
            if other is not study and study.waits_for(other):
                put(other)
        if study not in front:
            front.append(study)

    for name in names:
        for study in studies:
            if study.name == name:
                put(study)
    return [*front, *(study for study in studies if study not in front)]


def restore(studies: list[Study]) -> None:
    """Lay kept files and records of done studies where later ones look for them, if that is all they need."""
    for study in studies:
        kept = [study.result / name for name in study.keeps]
        wanted = {name for other in studies for name in study.files_for(other)}
        there = {*study.keeps, *(["record.json"] if study.record else [])}
        if study.is_done() and wanted and wanted <= there and not study.out.exists():
            study.out.mkdir(parents=True)
            for path in kept:
                shutil.copyfile(path, study.out / path.name)
            if study.record:
                packed = (study.result / "record.json.gz").read_bytes()
                (study.out / "record.json").write_bytes(gzip.decompress(packed))


def status(studies: list[Study]) -> str:
    """A line a study, and what is left in all."""
    busy, factor = running_now(), usual_factor(studies)
    wide = max(len(study.name) for study in studies) + 2
    lines, minutes = [f"{'study':<{wide}}{'state':<10}{'minutes':>9}   estimate"], 0.0
    for study in studies:
        spent, done = study.seconds()[0] / 60, study.is_done()
        begun = "running" if study.name in busy else "begun" if spent else ""
        state = "done" if done else begun or ("no data" if study.lacks_data() else "left")
        minutes += 0 if done else minutes_left(study, factor)
        lines.append(f"{study.name:<{wide}}{state:<10}{spent:>9.1f}   {study.minutes:g}")
    done = sum(study.is_done() for study in studies)
    left = (
        f"about {minutes / 60:.1f} processor hours left, at {factor:.1f} times the estimates as usual so far"
    )
    return "\n".join([*lines, f"{done} of {len(studies)} done, {left}"])


def usual_factor(studies: list[Study]) -> float:
    """How many processor minutes done studies took for each minute of their estimates: the median, or 1."""
    taken = [
        json.loads((study.result / "about.json").read_text("utf-8"))["cpu_seconds"] / 60 / study.minutes
        for study in studies
        if study.is_done()
    ]
    return median(taken) if taken else 1.0


def minutes_left(study: Study, factor: float) -> float:
    """The processor minutes that a study should still take.

    While it runs, its processor time is not known yet; it is the clock's at least.
    """
    return max(factor * study.minutes - max(study.seconds()) / 60, 1)


def fits_into(minutes: float, studies: list[Study]) -> Fits:
    """Whether a study on so many threads should end within so many minutes from now."""
    end, factor = time.monotonic() + 60 * minutes, usual_factor(studies)
    return lambda study, threads: time.monotonic() + 60 * minutes_left(study, factor) / threads <= end


def running_now() -> set[str]:
    """The studies at work, as the laboratory noted them that holds the lock; none if nobody holds it."""
    if not (WORK / ".running").exists():
        return set()
    with (WORK / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return set((WORK / ".running").read_text("utf-8").split())
    return set()


def copy_of_the_tree() -> tuple[Path, str]:
    """The last commit unpacked in a folder of its own, and its hash."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    commit = commit[:12]
    place = WORK / "trees" / commit
    if not place.exists():
        packed = subprocess.run(
            ["git", "archive", commit, "src", "benchmarks"], cwd=ROOT, check=True, capture_output=True
        ).stdout
        aside = place.with_suffix(".part")
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(aside, filter="data")
        aside.rename(place)
    return place, commit


class Running:
    """A study at work in a process of its own."""

    def __init__(self, study: Study, threads: int) -> None:
        self.study, self.threads = study, threads
        tree, self.commit = _tree_of(study)
        count = str(threads)
        places = {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
        self.wall, self.cpu = study.seconds()
        self.start = time.monotonic()
        with (WORK / f"{study.name}.log").open("ab") as log:
            self.child = subprocess.Popen(
                study.words(), cwd=tree, env=os.environ | places, stdout=log, stderr=log
            )

    def end(self) -> None:
        """Ask it to stop, and wait until it has."""
        self.child.terminate()
        while not self.has_ended():
            time.sleep(0.1)

    def has_ended(self) -> bool:
        """Whether it is over; its seconds are kept either way. Its processor time is known at its end."""
        pid, code, spent = os.wait4(self.child.pid, os.WNOHANG)
        if pid:
            self.child.returncode = os.waitstatus_to_exitcode(code)
            self.cpu += spent.ru_utime + spent.ru_stime
        wall = self.wall + time.monotonic() - self.start
        aside = self.study.clock.with_suffix(".part")  # a kill in between leaves the old file
        aside.write_text(f"{wall:.1f} {self.cpu:.1f}\n", "ascii")
        aside.replace(self.study.clock)
        return bool(pid)

    def kept(self) -> bool:
        """Keep the result of a study that got to its end; whether it did."""
        if self.child.returncode not in self.study.codes:
            print(f"{self.study.name}: exit code {self.child.returncode}; see {WORK / self.study.name}.log")
            return False
        keep(self.study, self.commit, self.threads)
        if _pages_show(self.study):
            subprocess.run([sys.executable, ROOT / "scripts" / "fill_docs.py"], check=False)
        return True


def run(studies: list[Study], jobs: int, fits: Fits = lambda *_: True) -> list[str]:
    """Run studies in their order, so many at a time and none before what it waits for; the names that failed.

    Those that do not fit into the time are passed over, and with them those that wait for them.
    """
    threads = max(1, (os.cpu_count() or 1) // jobs)
    waiting, running, failed = list(studies), list[Running](), list[str]()
    with _ended_together(running):
        while True:
            for one in [one for one in running if one.has_ended()]:
                running.remove(one)
                if not one.kept():
                    failed.append(one.study.name)
            free = jobs - len(running)
            for study in [s for s in _ready(waiting, running) if fits(s, threads)][:free] if free else []:
                waiting.remove(study)
                print(f"{datetime.now(UTC):%H:%M} {study.name}: {study.command}", flush=True)
                running.append(Running(study, threads))
            (WORK / ".running").write_text("\n".join(one.study.name for one in running), "utf-8")
            if not running:
                return failed
            time.sleep(1)


def _ready(waiting: list[Study], running: list[Running]) -> list[Study]:
    """The studies that wait for nothing which is still to come."""
    to_come = [*waiting, *(one.study for one in running)]
    return [s for s in waiting if not any(s.waits_for(other) for other in to_come if other is not s)]


def _tree_of(study: Study) -> tuple[Path, str]:
    """The copy that a study began with, so that it ends with the code it began with; or a new one."""
    note = study.tree
    if note.exists() and (place := Path(note.read_text("utf-8"))).exists():
        return place, place.name
    place, commit = copy_of_the_tree()
    note.write_text(str(place), "utf-8")
    study.clock.unlink(missing_ok=True)  # what an earlier run took is no part of this one
    return place, commit


def keep(study: Study, commit: str, threads: int) -> None:
    """Pack the records of a study into results/, with what a reader has to know of them."""
    records = sorted(study.out.rglob("record.json")) if study.record else []
    if study.record and not records:
        raise SystemExit(f"{study.name} ended and left no record.json below {study.out}")
    study.result.mkdir(parents=True, exist_ok=True)
    for path in records:
        name = "-".join(path.relative_to(study.out).parts)
        packed = gzip.compress(_without_places(study, path.read_text("utf-8")).encode(), mtime=0)
        (study.result / f"{name}.gz").write_bytes(packed)
    for name in study.keeps:
        shutil.copyfile(study.out / name, study.result / name)
    wall, cpu = study.seconds()
    about: dict[str, Any] = {
        "command": study.command,
        "commit": commit,
        "versions": json.loads(records[0].read_text("utf-8"))["versions"] if records else {},
        "seconds": round(wall),
        "cpu_seconds": round(cpu),
        "threads": threads,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
    }
    (study.result / "about.json").write_text(json.dumps(about, indent=2) + "\n", "utf-8")
    study.tree.unlink(missing_ok=True)  # if it is run once more, then with the code of that day


def _without_places(study: Study, text: str) -> str:
    """A record as it is kept: where this machine had its folders is nobody's business."""
    places = {str(study.out): "{out}", str(WORK): "{lab}", DATA or "{data}": "{data}", str(Path.home()): "~"}
    for place, name in places.items():
        text = text.replace(place, name)
    return text


def _pages_show(study: Study) -> bool:
    """Whether a page of the documentation has figures of this study, which are then written anew."""
    name = re.compile(rf"(?<![\w-]){re.escape(study.name)}(?![\w-])")  # not that of a study it begins
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.md")]
    return any(name.search(page.read_text("utf-8")) for page in pages)


@contextmanager
def _ended_together(running: list[Running]) -> Iterator[None]:
    """Whoever ends the laboratory ends the studies that run."""

    def end(*_: object) -> None:
        for one in running:
            one.end()
        raise SystemExit(130)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _alone() -> Iterator[None]:
    """One laboratory at a time: it knows how many jobs the cores can bear."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit("the laboratory is running already; see --status") from None
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--status", action="store_true", help="only say what is done, running and left")
    parser.add_argument("--only", action="append", help="only this study")
    parser.add_argument("--first", action="append", default=[], help="this study before the others")
    parser.add_argument("--minutes", type=float, help="start none that should end later, by its estimate")
    parser.add_argument("--jobs", type=int, default=1, help="studies at a time, which share the cores")
    asked = parser.parse_args()
    studies = [study for study in queue() if not asked.only or study.name in asked.only]
    if unknown := set(asked.first) - {study.name for study in studies}:
        raise SystemExit(f"--first must name studies of the queue, got {', '.join(sorted(unknown))}")
    print(status(studies), flush=True)
    if asked.status:
        return 0
    limit = [] if asked.minutes is None else [fits_into(asked.minutes, queue())]
    with _alone():
        restore(queue())
        failed = run(put_first(asked.first, left(studies)), max(1, asked.jobs), *limit)
    print(status(studies))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
