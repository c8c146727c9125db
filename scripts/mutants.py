"""Does every defence have a test that fails without it?

    python scripts/mutants.py              # all of tests/safety/mutants.yaml
    python scripts/mutants.py --from 40    # from the one of that number on

Each defence is taken out in a copy of src/, and the tests named for it run against that copy: at least one of
them must fail, or hang, which counts as noticed. The exit code is 1 if a defence can go unnoticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "tests" / "safety" / "mutants.yaml"
PYTEST = ["-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
SECONDS = 120  # after which a test that waits for what never comes is ended


@dataclass(frozen=True)
class Mutant:
    """A defence and how it is taken out: in `file`, below src/robvit, `old` becomes `new`."""

    what: str
    file: str
    old: str
    new: str
    tests: list[str]

    def noticed(self, copy: Path) -> str:
        """ "failed" or "hung" if its tests notice that it is gone from the copy, else what happened."""
        path = copy / "robvit" / self.file
        text = path.read_text("utf-8")
        if self.old not in text:
            return "NOT FOUND"
        path.write_text(text.replace(self.old, self.new), "utf-8")
        command = [sys.executable, *PYTEST, *self.tests]
        places = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | places, capture_output=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "hung"
        finally:
            path.write_text(text, "utf-8")
        return {0: "UNNOTICED", 1: "failed"}.get(done.returncode, f"NOT RUN, exit code {done.returncode}")


def mutants() -> list[Mutant]:
    return [Mutant(**entry) for entry in yaml.safe_load(MUTANTS.read_text("utf-8"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--from", dest="first", type=int, default=0, help="the number of the first")
    first, wrong = parser.parse_args().first, 0
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "src"
        shutil.copytree(ROOT / "src", copy)
        for number, mutant in list(enumerate(mutants()))[first:]:
            start = time.monotonic()
            found = mutant.noticed(copy)
            wrong += found not in ("failed", "hung")
            print(f"{number:3} {found:10} {time.monotonic() - start:5.0f} s  {mutant.what}", flush=True)
    print(f"{wrong} can go unnoticed" if wrong else "every defence has a test that notices")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
