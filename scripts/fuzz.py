"""Feed damaged files, arguments and requests to everything of robvit that reads what others wrote.

    python scripts/fuzz.py --seconds 3600 --seed 7        # make fuzz

Every try must end in a result or in an error of ours, within seconds and within the memory there is. What
does not is written to --out with its traceback, and the exit status is 1. A table says how often each target
was tried and how often it read what it got. The same seed makes the same tries, up to where time ends.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.fuzz_targets import Finding, Target, targets
from robvit.errors import RobvitError

TRY_SECONDS = 120  # of a machine that may be busy with other things
NUMBERS = (0, 1, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**63, -(2**70), 10**30, 10**400, 0.5, -0.0, 1e308, float("nan")),
    *(float("inf"), "", " ", "nan", "inf", "1e999", "\0", "\ud800", "\x1b[2J", "../../x", "é" * 300, "<b>"),
    *([], {}, [[]], {"": None}, ["a"] * 50, [0] * 50, "x" * 10_000),
)


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes with a few wounds: flipped, cut, doubled, or numbers put in their place."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        span = rng.randint(1, 1 + min(64, len(data) // 4))
        wound = rng.randrange(6)
        if wound == 0 and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        elif wound == 1:
            data = data[:at] + data[at + span :]
        elif wound == 2:
            data = data[:at] + data[at : at + span] * rng.choice((2, 3, 100)) + data[at + span :]
        elif wound == 3:
            data = data[:at] + rng.randbytes(rng.randint(1, 8)) + data[at + rng.randrange(9) :]
        elif wound == 4:
            put = struct.pack(rng.choice("<>") + "Q", rng.choice(NUMBERS))[: rng.choice((1, 2, 4, 8))]
            data = data[:at] + put + data[at + len(put) :]
        else:
            data = data[:at] if rng.random() < 0.3 else data
    return data


def changed(rng: random.Random, content: Any, depth: int = 0) -> Any:
    """Values with one of them replaced, removed, doubled, or renamed."""
    if not isinstance(content, dict | list) or not content or (depth and rng.random() < 0.15):
        return rng.choice(STRANGE)
    if isinstance(content, list):
        at = rng.randrange(len(content))
        choice = rng.random()
        if choice < 0.1:
            return content[:at] + content[at + 1 :]
        if choice < 0.2:
            return content + content[at : at + 1]
        return [*content[:at], changed(rng, content[at], depth + 1), *content[at + 1 :]]
    key = rng.choice(list(content))
    rest = {name: value for name, value in content.items() if name != key}
    choice = rng.random()
    if choice < 0.1:
        return rest
    if choice < 0.2:
        return {**rest, str(rng.choice(STRANGE)): content[key]}
    return {**content, key: changed(rng, content[key], depth + 1)}


def hostile_header(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file whose header says something else, and whose facts in it do."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    facts = header.get("__metadata__", {})
    if facts and rng.random() < 0.6:
        name = rng.choice(list(facts))
        try:
            facts[name] = json.dumps(changed(rng, json.loads(facts[name])))
        except ValueError:
            facts[name] = str(rng.choice(STRANGE))
    else:
        header = changed(rng, header)
    text = json.dumps(header).encode()
    claimed = len(text) if rng.random() < 0.9 else rng.choice(NUMBERS)
    return claimed.to_bytes(8, "little") + text + data[8 + length :]


MUTATE: dict[str, Callable[[random.Random, Any], Any]] = {
    "bytes": damaged,
    "values": changed,
    "header": hostile_header,
}


def limit_memory(most: int) -> None:
    """A try that takes gigabytes fails, rather than the machine."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def too_slow(*_: object) -> None:
    raise Finding(f"took more than {TRY_SECONDS} seconds")


def one_try(target: Target, rng: random.Random) -> tuple[str, Any, str]:
    """How one try ended (read, refused, found), what was tried, and the traceback of what was found."""
    kind = rng.choice(target.damage)
    content = MUTATE[kind](rng, target.good(kind, rng))
    signal.alarm(TRY_SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target.feed(content)
        return "read", content, ""
    except RobvitError as error:
        str(error).encode("utf-8", "backslashreplace")
        return "refused", content, ""
    except BaseException as error:  # also what ends a program: nothing read from a file may
        signal.alarm(0)
        if isinstance(error, KeyboardInterrupt):
            raise
        return "found", content, traceback.format_exc()
    finally:
        signal.alarm(0)


def keep(out: Path, name: str, content: Any, trace: str) -> None:
    """Write what was found, once for every place it came from."""
    places = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    mark = hashlib.sha256("".join(places).encode()).hexdigest()[:10]
    out.mkdir(parents=True, exist_ok=True)
    place = out / f"{name.replace(' ', '-')}-{mark}"
    if not place.with_suffix(".txt").exists():
        place.with_suffix(".txt").write_text(trace, "utf-8", "backslashreplace")
        data = content if isinstance(content, bytes) else repr(content).encode("utf-8", "backslashreplace")
        place.with_suffix(".input").write_bytes(data)
        print(f"found: {place}.txt", flush=True)


def table(counts: dict[str, Counter[str]]) -> str:
    rows = [f"{'target':22}{'tries':>9}{'read':>9}{'refused':>9}{'found':>9}"]
    for name, counted in counts.items():
        row = (sum(counted.values()), counted["read"], counted["refused"], counted["found"])
        rows.append(f"{name:22}" + "".join(f"{number:9}" for number in row))
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("FUZZ_SECONDS", 600)))
    parser.add_argument("--seed", type=int, default=None, help="another one every day by default")
    parser.add_argument("--only", action="append", help="the name of a target; repeat it")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="where findings go")
    given = parser.parse_args()
    given.out = given.out.resolve()
    seed = int(time.strftime("%Y%m%d")) if given.seed is None else given.seed
    rng = random.Random(seed)
    faulthandler.enable()
    signal.signal(signal.SIGALRM, too_slow)
    print(f"seed {seed}, {given.seconds:g} seconds", flush=True)
    counts: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = targets(Path(folder))
        limit_memory(16 * 2**30)
        chosen = [one for one in found if not given.only or one.name in given.only]
        if not chosen:
            parser.error(f"--only must be among {', '.join(one.name for one in found)}")
        end, told = time.monotonic() + given.seconds, time.monotonic()
        while time.monotonic() < end:
            for target in chosen:
                how, content, trace = one_try(target, rng)
                counts.setdefault(target.name, Counter())[how] += 1
                if how == "found":
                    keep(given.out, target.name, content, trace)
            if time.monotonic() - told > 60:
                told = time.monotonic()
                print(f"{sum(sum(one.values()) for one in counts.values())} tries", flush=True)
        for target in found:
            target.close()
        os.chdir("/")
    print(table(counts))
    return int(any(one["found"] for one in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
