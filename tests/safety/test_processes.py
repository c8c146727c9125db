"""Processes that are started together know of each other, also without GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
from pathlib import Path
from robvit.processes import processes
state = processes()
Path(__file__).with_name(f"{state.process_index}-of-{state.num_processes}").touch()
state.wait_for_everyone()
"""


@pytest.mark.slow
def test_two_processes_join(tmp_path: Path) -> None:
    script = tmp_path / "join.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run([*launch, str(script)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("*-of-*")} == {"0-of-2", "1-of-2"}
