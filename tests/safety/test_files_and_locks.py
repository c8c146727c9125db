"""Small promises under attack: locks and links, umask, remains of secrets, odd YAML, labels, token files."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import robvit
from robvit import files
from robvit.attacks import run
from robvit.cli import app
from robvit.data import open_data
from robvit.defenses.tokens import RobustTokens
from robvit.errors import CannotWrite, InputError
from robvit.evaluation.protocol import find
from robvit.files import parse_yaml, written_whole
from robvit.locks import alone_in
from robvit.record import Record, Trial
from robvit.tensor_files import FORMATS
from robvit.threat import Threat


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="the system has no such flag")
def test_a_lock_follows_no_link_and_empties_nothing(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("precious")
    out.mkdir()
    (out / ".run.lock").symlink_to(victim)
    with pytest.raises(CannotWrite), alone_in(out):
        pass
    assert victim.read_text() == "precious"
    (out / ".run.lock").unlink()
    os.link(victim, out / ".run.lock")
    with alone_in(out):
        pass
    assert victim.read_text() == "precious"


def test_the_users_umask_is_kept(tmp_path: Path) -> None:
    for umask, mode in ((0o077, 0o600), (0o022, 0o644), (0o000, 0o644)):
        before = os.umask(umask)
        try:
            with written_whole(tmp_path / "file") as aside:
                aside.write_text("x")
            with written_whole(tmp_path / "secret", mode=0o600) as aside:
                aside.write_text("x")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
        assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_what_a_killed_save_left_of_a_secret_goes_with_the_next(tmp_path: Path) -> None:
    dead = tmp_path / f".tokens.safetensors.{files._OURS}99999999-abc.part"
    other = tmp_path / f".other.{files._OURS}99999999-abc.part"
    for room in (dead, other):
        room.mkdir(mode=0o700)
        (room / "tokens.safetensors").write_text("secret")
    RobustTokens(torch.zeros(1, 1, 4)).save(tmp_path / "tokens.safetensors")
    assert not dead.exists()
    assert other.exists()  # may be of another process's run, which looks for itself


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nb: 2\na: 3", "'a' stands twice"),
        ("a: {b: 1, b: 2}", "'b' stands twice"),
        ("a: [1, .nan]", ".nan"),
    ],
)
def test_yaml_that_means_two_things_or_none_is_refused(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        parse_yaml(text, "a file")
    assert parse_yaml("a: {b: 1}\nc: {b: 1}", "a file") == {"a": {"b": 1}, "c": {"b": 1}}


def test_decibels_that_no_image_keeps_are_refused(tmp_path: Path) -> None:
    for psnr in (-100000, float("nan"), 1e9):
        with pytest.raises(InputError, match="decibels"):
            Threat("linf", 0.1, psnr)
    rules = "name: a@1\nabout: b\nthreat: {norm: linf, eps: 1/255, psnr: -100000}\nattacks: [{attack: pgd}]"
    (tmp_path / "a.yaml").write_text(rules)
    with pytest.raises(InputError, match="decibels"):
        find(tmp_path / "a.yaml")


def test_labels_are_whole_numbers_and_batches_have_images() -> None:
    model, x = robvit.load("robvit-mini"), torch.rand(2, 3, 32, 32)
    for y in (torch.tensor([0.0, 1.0]), torch.tensor([True, False])):
        with pytest.raises(InputError, match="whole numbers"):
            run("pgd", model, x, y, Threat("linf", 0.1), steps=1)
    images = open_data("sample", limit=2)
    for wrong in (
        lambda: run("pgd", model, x, torch.tensor([0, 1]), Threat("linf", 0.1), batch=0),
        lambda: robvit.attack(model, images, batch=0),
        lambda: robvit.evaluate(model, images, batch=0),
        lambda: images.batches(0),
    ):
        with pytest.raises(InputError, match="batch must be 1 or more"):
            wrong()


def token_file(path: Path, values: torch.Tensor, **about: Any) -> Path:
    plain = {"fingerprint": "", "key_id": "k", "settings": {}, "layers": [0], "origin": "", "salt": ""}
    save_file(
        {"tokens": values}, path, {"format": FORMATS["tokens"].word, "about": json.dumps(plain | about)}
    )
    return path


def test_token_files_that_steer_a_terminal_or_hold_nothing(tmp_path: Path) -> None:
    path, escape = tmp_path / "t.safetensors", "\x1b]0;owned\x07"
    with pytest.raises(InputError, match="one or more"):
        RobustTokens.load(token_file(path, torch.zeros(1, 0, 4)))
    with pytest.raises(InputError, match="printable"):
        RobustTokens.load(token_file(path, torch.zeros(1, 1, 4), key_id=escape))
    token_file(path, torch.zeros(1, 1, 4), settings={escape: escape}, fingerprint=escape)
    shown = CliRunner().invoke(app, ["tokens", "show", str(path)])
    assert shown.exit_code == 0
    assert "\x1b" not in shown.output
    assert "\\x1b" in shown.output


HOSTILE: dict[str, dict[str, Any]] = {
    "no images": {
        "data": {"count": 0, "labels": []},
        "trials": [{"correct": [], "predicted": [], "distance": []}],
    },
    "a giant number": {"metrics": {"a": 10**400}},
    "a giant count": {"data": {"count": 10**400}},
    "labels of more images": {"data": {"labels": [1, 1]}},
    "half a character": {"command": "\ud800"},
    "half a character as a key": {"metrics": {"\ud800": 1.0}},
    "no norm": {"trials": [{"threat": {"norm": "l7", "eps": 0.1}}]},
    "no budget": {"trials": [{"threat": {"norm": "linf", "eps": -4.0}}]},
    "no decibels": {"trials": [{"threat": {"norm": "linf", "eps": 0.1, "psnr": -100000.0}}]},
    "a budget of words": {"trials": [{"threat": {"norm": "linf", "eps": "much"}}]},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_records_are_refused_in_words(what: str, tmp_path: Path) -> None:
    trial = Trial("pgd", Threat("linf", 0.1).budget, {}, [True], [1], [0.1])
    path = tmp_path / "record.json"
    Record("attack", {"name": "m"}, {"count": 1, "labels": [1]}, [trial]).save(path)
    Record.load(path)
    content = json.loads(path.read_text())
    for name, change in HOSTILE[what].items():
        if name == "trials":
            content["trials"][0].update(change[0])
        elif isinstance(change, dict):
            content[name].update(change)
        else:
            content[name] = change
    path.write_text(json.dumps(content))
    with pytest.raises(InputError):
        Record.load(path)
