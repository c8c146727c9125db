"""Where the modules that only Unix has are missing, as on Windows: the library works all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Imports of such modules fail, whoever asks: robvit or what it uses.
SCRIPT = """
import sys

for name in ("fcntl", "grp", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None

import robvit
import robvit.cli

images = robvit.open_data("sample", limit=4)
model = robvit.load("robvit-mini")
out = sys.argv[1]
judged = robvit.evaluate(model, images, protocol="smoke.yaml", out=out + "/judged", log=print)
attacked = robvit.attack(model, images, settings={"steps": 2}, out=out + "/attacked")
assert len(judged.trials) and len(attacked.trials)
from robvit.data.decoder import Decoder

decoder = Decoder(max_pixels=10**6)
import io
from PIL import Image
held = io.BytesIO()
Image.new("RGB", (9, 9)).save(held, "PNG")
assert decoder.decode(held.getvalue(), 4, "squash").shape == (4, 4, 3)
decoder.close()
print("done")
"""
PROTOCOL = """
name: smoke@1
about: one quick attack
threat: {norm: linf, eps: 4/255}
attacks: [{attack: pgd, settings: {steps: 2}}]
"""


@pytest.mark.slow
def test_load_attack_and_evaluate_without_what_only_unix_has(tmp_path: Path) -> None:
    (tmp_path / "smoke.yaml").write_text(PROTOCOL)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "done"
