"""Processes that are started together know of each other, also without GPUs, and make what one makes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
from typer.testing import CliRunner

from helpers.protocols import SHORT_PROTOCOL
from robvit.cli import app
from robvit.record import Record
from robvit.tensor_files import read_tensors

# Without GPUs `accelerate launch` starts one process; torchrun starts what it would elsewhere.
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
SCRIPT = """
import json, sys
from pathlib import Path
from robvit.cli import app
from robvit.processes import processes
state = processes()
Path(__file__).with_name(f"{state.process_index}-of-{state.num_processes}").touch()
for words in json.loads(sys.argv[1]):
    state.wait_for_everyone()
    app(words, standalone_mode=False)
"""
RULES = {**SHORT_PROTOCOL, "survivors": True}
# SGD: Adam's first steps are signs, which turn rounding into whole steps.
CHANGES = {
    "pretrained": "false",
    "img_size": 32,
    "batch": 16,
    "validation": 8,
    "inner.steps": 1,
    "judge_steps": 1,
    "warmup": 0,
    "awp": 0.005,
    "accumulation": 2,
    "epochs": 1,
    "optimizer": "sgd",
    "lr": 0.05,
}
SET = [word for name, value in CHANGES.items() for word in ("--set", f"{name}={value}")]
TUNED = {"judge_steps": 1, "validations": 1, "held_out": 2, "precision": "no", "optimizer": "sgd"}
TUNE = [word for name, value in TUNED.items() for word in ("--set", f"{name}={value}")]
FEW = ["sample", "--limit", "12", "--batch", "4", "--precision", "fp32"]  # compared bit for bit


def commands(place: Path, rules: Path) -> list[list[str]]:
    """An attack, an evaluation, a tuning and a training, which parts them, each into a folder of its name."""
    return [
        ["attack", "robvit-mini", *FEW, "--set", "steps=2", "--out", f"{place}/attack"],
        ["evaluate", "robvit-mini-robust", *FEW, "--protocol", f"{rules}", "--out", f"{place}/evaluate"],
        [
            *("robustify", "robvit-mini", "sample", "--limit", "20", "--method", "lora", "--rank", "2"),
            *("--steps", "2", "--batch", "4", "--eps", "2/255", *TUNE, "--out", f"{place}/tune"),
        ],
        [
            *("train", "trades", "--model", "test_vit", "--data", "sample", "--limit", "88"),
            *(*SET, "--out", f"{place}/train"),
        ],
    ]


def lasting(path: Path) -> dict[str, Any]:
    """A record without what differs from run to run: the date, seconds, the command and the machine."""
    content: dict[str, Any] = json.loads(path.read_text())
    for trial in content["trials"]:
        trial.pop("seconds")
        trial.pop("shards_sha256", None)  # that of the seconds, too
    return {name: value for name, value in content.items() if name not in ("created", "command", "machine")}


@pytest.mark.slow
def test_two_processes_make_what_one_makes(tmp_path: Path) -> None:
    script, rules = tmp_path / "both.py", tmp_path / "short.yaml"
    script.write_text(SCRIPT)
    rules.write_text(json.dumps(RULES))  # JSON is YAML
    one, two = tmp_path / "one", tmp_path / "two"
    launch = [*LAUNCH, str(script), json.dumps(commands(two, rules))]
    done = subprocess.run(launch, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("*-of-*")} == {"0-of-2", "1-of-2"}
    for command in commands(one, rules):
        assert CliRunner().invoke(app, command).exit_code == 0
    for verb in ("attack", "evaluate"):
        assert lasting(one / verb / "record.json") == lasting(two / verb / "record.json")
    images = sorted(path.relative_to(one) for path in (one / "attack" / "images").rglob("*.png"))
    assert len(images) == 12
    assert all((one / path).read_bytes() == (two / path).read_bytes() for path in images)

    assert Record.load(two / "train" / "record.json").model["processes"] == 2
    ones, twos = (read_tensors(run / "train" / "state.safetensors", "")[0] for run in (one, two))
    start = timm.create_model("test_vit", img_size=32, num_classes=10).state_dict()
    moved = max(float((ones[f"model/net.{k}"] - v).abs().max()) for k, v in start.items())
    apart = max(float((ones[k] - twos[k]).abs().max()) for k in ones if k.startswith("model/"))
    assert moved > 1e-2
    assert apart < 1e-4

    assert Record.load(two / "tune" / "record.json").model["processes"] == 2
    ones, twos = (read_tensors(run / "tune/training/state.safetensors", "")[0] for run in (one, two))
    factors = [name for name in ones if name.startswith("model/") and name.endswith("up")]  # from zero
    moved = max(float(ones[name].abs().max()) for name in factors)
    assert moved > 0
    assert max(float((ones[name] - twos[name]).abs().max()) for name in factors) < 1e-2 * moved
