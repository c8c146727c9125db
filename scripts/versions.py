"""Test robvit with the oldest versions of its dependencies that pyproject.toml allows, or with the newest.

    python scripts/versions.py oldest        # make oldest
    python scripts/versions.py newest        # make newest

An environment of its own is made in .venv-oldest or .venv-newest (several gigabytes, torch is one of them),
and the tests run that touch every dependency once: loading, attacks, tokens, training, records, reports,
images, files and the command line.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = (
    "backbones/test_loading",
    "attacks/test_contract",
    "defenses/test_tokens",
    "backbones/test_heads",
    "backbones/test_hub_files",
    "data/test_decode",
    "data/test_decoder",
    "report/test_report",
    "evaluation/test_evaluate",
    "defenses/test_robustify",
    "training/test_training",
    "safety/test_hostile",
    "house/test_cli",
)
TOOLS = ("pytest", "hypothesis")


def wanted(which: str) -> list[str]:
    """The dependencies as pip takes them: pinned to their lower bounds, or free."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras["track"]]
    named += [line for line in extras["dev"] if re.split(r"[<>=~! ]", line)[0] in TOOLS]
    return (
        [line.replace(">=", "==") for line in named]
        if which == "oldest"
        else [re.split(r"[<>=~! ]", line)[0] for line in named]
    )


def environment(which: str) -> Path:
    """The Python of an environment with these versions; one that is there is brought to them."""
    place = ROOT / f".venv-{which}"
    python, finished, names = place / "bin/python", place / "finished", wanted(which)
    if not finished.exists() or finished.read_text() != "\n".join(names):
        venv.create(place, with_pip=True)
        install = [python, "-m", "pip", "install", "--disable-pip-version-check", "-q", "hatchling"]
        subprocess.run([*install, *names], check=True)
        subprocess.run([*install, "--no-deps", "-e", ROOT], check=True)
        finished.write_text("\n".join(names))
    return python


def main(which: str) -> int:
    """Run the tests with these versions, and say which they are."""
    python = environment(which)
    subprocess.run([python, "-m", "pip", "list", "--disable-pip-version-check"], check=True)
    files = [str(ROOT / "tests" / f"{name}.py") for name in TESTS]
    # Old versions warn of what newer ones have mended; a warning is no failure here.
    options = ["-q", "-m", "not slow and not weights and not browser", "-W", "default"]
    return subprocess.run([python, "-m", "pytest", *options, *files], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("which", choices=("oldest", "newest"))
    sys.exit(main(parser.parse_args().which))
