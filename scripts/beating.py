"""Kill robvit's long commands at random points, again and again, and compare what they end with.

    python scripts/beating.py --kills 50          # a few minutes on two cores
    python scripts/beating.py --kills 500 --seed 7

Each command runs once in peace. Then it is started in an empty folder with an empty cache and killed with
SIGKILL, first right after certain files are written (MOMENTS), then half of the time at a random moment,
half of the time while it writes a file, and started again, until it ends; what it leaves must be what the
peaceful run left, bit for bit, and nothing else. Left out of the comparison are the hour and the seconds a
trial took, which differ between any two runs, and the report, which is drawn from the record. The exit
code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process with threads cannot be forked

# Imported here, once, so that a run starts within a moment and is killed at its work, not at its start.
from robvit.cli import main
from robvit.defenses import robustify as robustify
from robvit.evaluation import evaluate as evaluate
from robvit.report import html as html
from robvit.tensor_files import read_tensors, tensors_sha256
from robvit.training import finetune as finetune
from robvit.training import train as train

PROTOCOL = """
name: beating@1
about: two quick attacks, the second on what the first leaves
threat: {norm: linf, eps: 4/255}
attacks: [{attack: pgd, settings: {steps: 2}}, {attack: apgd_ce, settings: {steps: 3}}]
survivors: true
"""
SMALL = ["robvit-mini", "sample", "--limit", "10", "--batch", "2"]
TOKENS = ["--steps", "12", "--count", "2", "--attack-steps", "2", "--seed", "3"]
FULL = ["--precision", "fp32"]  # not what a probe finds fastest: results are compared bit for bit
ADAPTIVE = ["--adaptive", "--inner-steps", "1"]
SETTINGS = (
    "pretrained=false",
    "img_size=32",
    "batch=16",
    "validation=4",
    "inner.steps=1",
    "judge_steps=1",
    "warmup=0",
    "epochs=2",
    "awp=0.005",
    "ema=0.9",
    "save_seconds=0",
    "track=[]",
)
SET = [word for setting in SETTINGS for word in ("--set", setting)]
TUNED = ("judge_steps=1", "validations=2", "held_out=2", "save_seconds=0", "precision=no")
TUNE = ["--method", "lora", "--rank", "2", "--steps", "6", "--eps", "2/255", "--seed", "3"]
TUNE += [word for setting in TUNED for word in ("--set", setting)]
COMMANDS = {
    "robustify": ["robustify", *SMALL, *TOKENS],
    "pool": [
        "robustify",
        *SMALL,
        *TOKENS,
        "--adaptive",
        "--inner-steps",
        "1",
        "--layers",
        "all",
        "--pool",
        "2",
    ],
    "lora": ["robustify", *SMALL, *TUNE],
    "attack": ["attack", *SMALL, *FULL, "--set", "steps=4"],
    "evaluate": ["evaluate", *SMALL, *FULL, "--protocol", "beating.yaml"],
    "train": ["train", "trades", "--model", "test_vit", "--data", "sample", "--limit", "36", *SET],
}
# A command is killed as soon as one of these is written, in this order, before it is killed at random.
MOMENTS = {
    "robustify": ("cache/attacked/*/shard-*", "run/state-*", "run/tokens.safetensors"),
    "pool": ("run/state-*",),
    "lora": ("run/training/state.safetensors", "run/lora.safetensors"),
    "attack": ("run/shards/shard-*",),
    "evaluate": ("run/shards/01-*/shard-*",),
    "train": ("run/state.safetensors", "run/state.safetensors"),
}


# What differs between any two runs; the checksum of shards is also that of the seconds they took.
PASSING = ("created", "seconds", "processor seconds", "machine", "shards_sha256")


@dataclass
class Beaten:
    """What became of one command."""

    command: str
    kills: int = 0
    writing: int = 0  # of them with a file half written
    runs: int = 0  # that were killed at least once and came to their end
    seconds: float = 0.0  # of the peaceful run
    wrong: str = ""


def start(command: str, place: Path) -> int:
    """Run a command in a process of its own, in a folder of its own; the process's number."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.chdir(place)
        os.environ["ROBVIT_CACHE"] = str(place / "cache")
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["robvit", *COMMANDS[command], "--out", "run"]
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> int | None:
    """The exit code of a process, or nothing while it runs."""
    done, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def unfinished(place: Path) -> list[Path]:
    return list(place.rglob(".*.part"))


def kill(child: int, place: Path, seconds: float, while_writing: bool) -> bool:
    """Kill a process at that moment, or at the next file it writes; whether it was still there."""
    deadline = time.monotonic() + seconds
    before = set(unfinished(place))
    while (code := ended(child)) is None:
        late = time.monotonic() >= deadline
        if late and (not while_writing or set(unfinished(place)) - before):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.0005 if late else min(0.005, seconds))
    if code:
        raise RuntimeError(f"exit code {code}: {(place / 'log').read_text()[-600:]}")
    return False


def kill_after(child: int, place: Path, pattern: str) -> bool:
    """Kill a process as soon as it has written such a file; whether it was still there."""

    def written() -> set[tuple[Path, int]]:
        return {(path, path.stat().st_mtime_ns) for path in place.glob(pattern)}

    before = written()
    while ended(child) is None:
        if written() - before:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(0.0005)
    return False


def fresh(folder: Path, name: str) -> Path:
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / "beating.yaml").write_text(PROTOCOL)
    return place


def contents(place: Path) -> dict[str, Any]:
    """All that a run and its cache hold, by name, without the hour and the seconds."""
    files = (p for part in ("run", "cache") for p in (place / part).rglob("*") if p.is_file())
    told = ("report.html", "seconds.txt")
    return {str(p.relative_to(place)): content(p) for p in files if p.name not in told}


def content(path: Path) -> Any:
    if path.suffix == ".safetensors":  # the order of its facts is chance
        tensors, facts = read_tensors(path, "a result")
        told = {name: timeless(json.loads(text)) if text[:1] == "{" else text for name, text in facts.items()}
        if "facts" in facts:  # a shard's checksum is also that of the seconds it took
            told.pop("sha256", None)
        return tensors_sha256(tensors), told, oct(path.stat().st_mode)
    if path.suffix == ".json":
        return timeless(json.loads(path.read_text()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: timeless(v) for name, v in value.items() if name not in PASSING}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def difference(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The first file that is not the same in both."""
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            return f"{name} is only in {'the first' if name in one else 'the killed run'}"
        if one[name] != other[name]:
            return f"{name} differs"
    return ""


def beat(command: str, kills: int, folder: Path, draw: random.Random) -> Beaten:
    """Kill a command at its moments, then so many times at random, over as many runs as that takes."""
    found = Beaten(command)
    begin = time.monotonic()
    kill(start(command, place := fresh(folder, f"{command}-whole")), place, float("inf"), False)
    found.seconds = time.monotonic() - begin
    whole = contents(place)
    place = fresh(folder, f"{command}-killed")
    for pattern in MOMENTS[command]:
        if not kill_after(start(command, place), place, pattern):
            found.wrong = f"it ended before {pattern} was seen"
            return found
        found.kills += 1
    wanted = found.kills + kills
    while True:
        before = found.kills
        while kill(
            start(command, place),
            place,
            draw.uniform(0, found.seconds) if found.kills < wanted else float("inf"),
            found.kills < wanted and draw.random() < 0.5,
        ):
            found.kills += 1
            found.writing += bool(unfinished(place))
        if found.kills > before or not found.runs:
            found.runs += 1
            found.wrong = difference(whole, contents(place))
        if found.wrong or found.kills >= wanted:
            return found
        place = fresh(folder, f"{command}-killed")


def run(kills: int, seed: int, folder: Path, commands: list[str]) -> list[Beaten]:
    """Beat the commands in turn and tell of each."""
    draw = random.Random(seed)
    results = []
    print(f"{'command':<12}{'kills':>6}{'writing':>9}{'runs':>6}   result", flush=True)
    for number, command in enumerate(commands):
        share = kills * (number + 1) // len(commands) - kills * number // len(commands)
        results.append(found := beat(command, share, folder, draw))
        verdict = found.wrong or "the same bits as undisturbed"
        print(f"{command:<12}{found.kills:>6}{found.writing:>9}{found.runs:>6}   {verdict}", flush=True)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="at random, over all commands together")
    parser.add_argument("--seed", type=int, default=0, help="decides when")
    parser.add_argument("--only", choices=COMMANDS, action="append", help="only this command")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="robvit-beating-") as scratch:
        beaten = run(given.kills, given.seed, Path(scratch), given.only or list(COMMANDS))
    total = sum(found.kills for found in beaten)
    print(f"{total} kills, {sum(found.writing for found in beaten)} of them in the middle of a file")
    sys.exit(any(found.wrong for found in beaten))
