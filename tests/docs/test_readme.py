"""The README's first commands, and the demo; test_docs.py runs the rest of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from robvit.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAKE = re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)


def test_the_first_commands_are_demo_and_test_and_make_knows_them() -> None:
    assert MAKE == ["demo", "test"]
    for target in MAKE:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, check=False, capture_output=True)
        assert done.returncode == 0


def test_every_command_explains_itself() -> None:
    runner = CliRunner()
    verbs = [["--help"]]
    listed = runner.invoke(app, ["--help"]).output
    verbs += [[name, "--help"] for name in re.findall(r"^│ (\w+) ", listed, flags=re.MULTILINE)]
    assert len(verbs) > 8
    for arguments in verbs:
        done = runner.invoke(app, arguments)
        assert done.exit_code == 0
        assert len(done.output) > 200, arguments


@pytest.mark.slow
@pytest.mark.weights
def test_the_demo_runs_on_the_real_backbone(tmp_path: Path) -> None:
    small = ["--head", "40", "--learn", "16", "--judge", "8", "--steps", "2", "--attack-steps", "2"]
    command = [sys.executable, "-m", "robvit", "demo", *small, "--out", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "dinov2-small" in done.stdout
    for name in ("record.json", "sheet.png", "report.html", "tokens.safetensors", "head.safetensors"):
        assert (tmp_path / name).stat().st_size > 1000
