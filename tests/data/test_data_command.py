"""`robvit data` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from robvit.cli.data import app
from robvit.data import cifar, open_data
from robvit.data.sheet import contact_sheet


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_list_names_every_data_set_and_the_next_command() -> None:
    text = run("list")
    for name in ("sample", "cifar10", "imagenet-c:PATH", "masks:PATH?void=11", "pip install 'robvit[data]'"):
        assert name in text
    assert "next: robvit data show" in text


def test_help_of_every_command() -> None:
    assert "cifar100" in run("--help")
    for command in ("list", "cifar10", "cifar100", "show"):
        assert len(run(command, "--help")) > 200


@pytest.mark.slow
def test_show_counts_and_draws(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    text = run("show", "sample", "--split", "train", "--limit", "20", "--out", str(sheet))
    for part in ("20", "10 of 10; images a class: 2", "airplane, automobile", "32 x 32 (20)", str(sheet)):
        assert part in text
    with Image.open(sheet) as page:
        assert page.size == (8 * (140 + 8) + 8, 3 * (140 + 20 + 8) + 8)
        assert len(page.getcolors(1 << 20) or []) > 1000
    assert "--out sheet.png" in run("show", "sample", "--limit", "3")


def test_show_names_what_was_skipped(tmp_path: Path) -> None:
    Image.new("L", (5, 4), 9).save(tmp_path / "good.png")
    (tmp_path / "bad[1].png").write_bytes(b"junk")
    (tmp_path / "phone.heic").write_bytes(b"any")
    text = run("show", str(tmp_path))
    assert "skipped bad[1].png: not an image" in text
    assert "skipped phone.heic: .heic is not read" in text
    assert "5 x 4 (1)" in text


def test_a_sheet_of_masks(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
        Image.new("L", (40, 30), 0).save(tmp_path / folder / "a.png")
    assert contact_sheet(open_data(f"masks:{tmp_path}"), tmp_path / "sheet.png") == 1
    with Image.open(tmp_path / "sheet.png") as page:
        colour = page.getpixel((60, 60))
    assert isinstance(colour, tuple)
    red, green, blue = colour
    assert red > 3 * max(green, blue)  # class 0, laid over black


def test_cifar_ends_with_where_it_is_and_what_is_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for fetched, state in ((True, "complete, counts"), (False, "already complete")):
        monkeypatch.setattr(cifar, "fetch", lambda name, out, done=fetched: (tmp_path, done))
        text = run("cifar10", "--out", str(tmp_path))
        assert state in text
        assert f"robvit data show cifar10:{tmp_path}" in text
    assert "next: robvit data show cifar100 --out" in run("cifar100")
