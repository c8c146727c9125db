"""Every command and every line of Python in the README works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from robvit.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    robvit (.+)$", README, flags=re.MULTILINE)
MAKE = re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)


def test_the_python_lines_run() -> None:
    (code,) = re.findall(r"```python\n(.+?)```", README, flags=re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102  our own README


def test_the_commands_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    assert len(COMMANDS) > 6
    for command in COMMANDS:
        done = CliRunner().invoke(app, shlex.split(command))
        assert done.exit_code == 0, (command, done.output)
    assert (tmp_path / "runs" / "attack" / "report.html").exists()


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
