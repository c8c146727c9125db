"""The README's first commands, and the demo; test_docs.py runs the rest of it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from helpers.docs_blocks import found_command
from helpers.lora import changed_lora
from robvit import demo
from robvit.backbones import download, zoo
from robvit.cli import app
from robvit.data import open_data
from robvit.demo import Scale
from robvit.drawing.sheet import Pair, attack_sheet
from robvit.loading import load
from robvit.record import Record

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
MAKE = re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)


def test_the_first_commands_are_demo_and_test_and_make_knows_them() -> None:
    assert MAKE == ["demo", "test"]
    for target in MAKE:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, check=False, capture_output=True)
        assert done.returncode == 0


@pytest.mark.slow
@pytest.mark.weights
def test_the_demo_runs_on_the_real_backbone(tmp_path: Path) -> None:
    small = ["--head", "20", "--learn", "16", "--judge", "2", "--steps", "1", "--attack-steps", "1"]
    command = [sys.executable, "-m", "robvit", "demo", *small, "--out", str(tmp_path)]
    # In a process of its own: on top of what other tests have loaded it would take the memory of two.
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dinov2-small" in done.stdout
    for name in ("record.json", "sheet.png", "report.html", "tokens.safetensors", "head.safetensors"):
        assert (tmp_path / name).stat().st_size > 1000


def test_the_demo_and_its_command_do_the_same() -> None:
    options = {parameter.name: parameter.default for parameter in found_command(["demo"])[1].params}
    scale = asdict(Scale())
    assert {name: options[name] for name in scale} == scale


@pytest.mark.slow
def test_the_demo_leads_with_what_each_defence_buys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = zoo.Known("mini-tuned", "robvit_mini", "mini", "MIT", 0.8, tuned_from="robvit-mini")
    monkeypatch.setitem(zoo.ALIASES, "mini-tuned", tuned)
    lora = tmp_path / "mini-tuned.lora.safetensors"
    changed_lora(load("robvit-mini")).save(lora)
    place = download.bundled_path
    monkeypatch.setattr(download, "bundled_path", lambda known: lora if known is tuned else place(known))
    small = ["--head", "40", "--learn", "16", "--judge", "2", "--steps", "1", "--attack-steps", "1"]
    drawn: list[Pair] = []

    def watched(pairs: list[Pair], *, title: str) -> Image.Image:
        drawn.extend(pairs)
        return attack_sheet(pairs, title=title)

    monkeypatch.setattr(demo, "attack_sheet", watched)
    done = CliRunner().invoke(app, ["demo", "--model", "robvit-mini", *small, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "What each defence buys" in done.output
    record = Record.load(tmp_path / "out" / "record.json")
    assert record.scenarios()[-2:] == ["tuned weights, transfer", "tuned weights, white box"]
    judged = {trial.scenario for trial in record.trials if not trial.control}
    assert judged == {"tuned weights, transfer", "tuned weights, white box"}
    (table,) = record.tables
    assert [row[0] for row in table.rows] == ["no defence", "secret tokens", "tuned weights"]
    attacked = {t.scenario: f"{t.accuracy:.0%}" for t in record.trials if t.attack == "pgd"}
    assert table.rows[0][2:] == [attacked["no defence"]] * 2
    seen = {t.scenario: t for t in record.trials if t.attack == "pgd"}["tuned weights, transfer"]
    classes = open_data("sample", split="test").classes
    views = [re.fullmatch(r"bare: \w+, tokens: \w+, tuned: (\w+)", pair.after) for pair in drawn]
    assert [view and view[1] for view in views] == [classes[one] for one in seen.predicted]
    assert [pair.correct for pair in drawn] == seen.correct
    assert table.rows[2][2:] == [attacked[name] for name in record.scenarios()[-2:]]
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.index("What each defence buys") < page.index("What may be claimed")
