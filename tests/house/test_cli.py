"""Commands as a person would use them: heads, tokens, robustify, models."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import robvit
from robvit.backbones.families import family_of
from robvit.backbones.heads import load_head
from robvit.cli import app, main
from robvit.cli.models import FAMILIES
from robvit.cli.shell import command_line, typed
from robvit.defenses.tokens import RobustTokens
from robvit.record import Record
from robvit.studies.xcit.variants import Variant


def robvit_(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.slow
@pytest.mark.parametrize("row", FAMILIES, ids=lambda row: row.family)
def test_the_table_of_families_tells_the_truth(row: Any) -> None:
    with torch.device("meta"):  # the architecture without its weights
        net = timm.create_model(row.example)
    assert family_of(net).takes_extra == row.tokens
    assert family_of(net).name != "plain"


def test_models_lists_names_families_and_timms_own() -> None:
    listed = robvit_("models").output
    assert "dinov2-small" in listed
    assert "robvit-mini-robust" in listed
    assert "vit_small_patch16_dinov3" in robvit_("models", "dinov3").output


def test_a_segmentation_head_from_a_folder_of_masks(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind in ("images", "masks"):
            (tmp_path / "set" / split / kind).mkdir(parents=True)
        for i in range(6):
            bright = Image.new("L", (32, 32), 40)
            bright.paste(220, (0, 0, 16, 32) if i % 2 else (16, 0, 32, 32))
            bright.convert("RGB").save(tmp_path / "set" / split / "images" / f"{i}.png")
            mask = bright.point(lambda v: int(v > 128))
            mask.save(tmp_path / "set" / split / "masks" / f"{i}.png")
    out = tmp_path / "head.safetensors"
    done = robvit_(
        "train", "head", "robvit-mini", f"masks:{tmp_path / 'set'}", "--kind", "segmentation", "--out", out
    )
    assert done.exit_code == 0, done.output
    assert "mIoU" in done.output
    assert load_head(out).kind == "segmentation"


def test_commands_that_are_kept_or_offered_are_quoted_for_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["robvit", "attack", "my net.pt", "a;b", "--set", "factors=[1, 0.1]"]
    monkeypatch.setattr(sys, "argv", words)
    assert shlex.split(typed()) == words
    offered = command_line("report", Path("my runs"), head=Path("it's.safetensors"), img_size=None)
    assert shlex.split(offered) == ["robvit", "report", "my runs", "--head", "it's.safetensors"]
    row = Variant("row", "my net.pt", changes={"augment.sizes": [1, 2]})
    assert shlex.split(row.command())[4:] == ["my net.pt", "--data", row.on, "--set", "augment.sizes=[1, 2]"]


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    out = tmp_path / "head.safetensors"
    out.write_text("mine")
    arguments = ("train", "head", "robvit-mini", "sample", "--limit", "20", "--kind", "knn", "--out", out)
    refused = robvit_(*arguments)
    assert "already there" in str(refused.exception)
    assert out.read_text() == "mine"
    assert robvit_(*arguments, "--force").exit_code == 0
    assert load_head(out).kind == "knn"


@pytest.mark.slow
def test_robustify_writes_a_secret_and_shows_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    arguments = ("robustify", "robvit-mini", "sample", "--limit", 16, "--steps", 3, "--attack-steps", 2)
    done = robvit_(*arguments, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    tokens = RobustTokens.load(tmp_path / "tokens.safetensors")
    tokens.check(robvit.load("robvit-mini"))
    assert (tmp_path / "tokens.safetensors").stat().st_mode & 0o077 == 0
    record = Record.load(tmp_path / "record.json")
    assert record.curves == []  # of so few steps nothing is told
    shown = robvit_("tokens", "show", tmp_path / "tokens.safetensors").output
    secret = [f"{value:.4f}"[1:] for value in tokens.values.flatten()[:50].abs().tolist()]
    for text in (done.output, shown, (tmp_path / "record.json").read_text()):
        assert tokens.key_id in text
        assert not any(f"0{digits}" in text for digits in secret if len(set(digits)) > 4)


def test_published_tokens_are_imported_by_command(tmp_path: Path) -> None:
    torch.save({"rtokens": torch.nn.Parameter(torch.randn(1, 10, 128))}, tmp_path / "small.pt")
    out = tmp_path / "small.safetensors"
    done = robvit_("tokens", "import", tmp_path / "small.pt", "--model", "robvit-mini", "--out", out)
    assert done.exit_code == 0, done.output
    RobustTokens.load(out).check(robvit.load("robvit-mini"))


def test_ctrl_c_ends_with_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(kind: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("robvit.cli.attack.facts", interrupted)
    monkeypatch.setattr(sys, "argv", ["robvit", "attacks"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert "interrupted; run the same command again to resume" in capsys.readouterr().err


def told_by_help(*command: str) -> str:
    """A command's help as running text."""
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "120"}).output
    return " ".join(shown.replace("│", " ").split())


def test_programs_are_offered_only_where_they_are_taken(tmp_path: Path) -> None:
    for command in ("curve", "challenge"):
        assert "ONNX" not in told_by_help(command)
    (tmp_path / "net.onnx").write_bytes(b"any")
    refused = str(robvit_("curve", tmp_path / "net.onnx", "sample").exception)
    for command in re.findall(r"`(\w+)`", refused):
        assert "ONNX" in told_by_help(command) or command == "verify"  # which takes what was judged
    assert "`check`" in refused


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (("train", "recipe"), "four fifths"),
        (("train", "head"), "four fifths"),
        (("robustify",), "all"),
        (("tokens", "rotate"), "all"),
    ],
)
def test_help_says_which_part_of_a_folder_is_learned_from(command: tuple[str, ...], part: str) -> None:
    assert f"{part} of a folder without splits" in told_by_help(*command)


@pytest.mark.slow
def test_help_flows_in_narrow_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = robvit_("evaluate", "--help").output
    about = text.partition("╭")[0].strip().split("\n")
    paragraph = [line.strip() for line in about[about.index(next(a for a in about if "forecast" in a)) :]]
    assert all(len(line) > 60 for line in paragraph[:-1]), paragraph
