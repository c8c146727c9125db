"""Hostile files: each ends in an error of ours, soon, in little memory, and nothing is run or written."""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from helpers.commands import exit_code
from helpers.hostile_files import CASES
from helpers.report_samples import rich_record
from robvit.errors import RobvitError
from robvit.record import Record
from robvit.report.adversarial_images import shard_folders

SECONDS = 30  # far more than any takes; a hang ends here
MEGABYTES = 300  # more than a case may take beside what is there already
ROOM = 6 * 2**30  # of addresses, so that a mistake ends this test and not the machine


@contextmanager
def watched() -> Iterator[None]:
    """Fail what hangs or takes much memory."""

    def hang(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, hang)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start = _status("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (_status("VmSize") * 1024 + ROOM, limits[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    used = (_status("VmHWM") - start) / 1024
    assert used < MEGABYTES, f"it took {used:.0f} MB"


def _status(name: str) -> int:
    """A figure of this process in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere, cache = (tmp_path / part for part in ("given", "elsewhere", "cache"))
    for place in (folder, elsewhere, cache):
        place.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("ROBVIT_CACHE", str(cache))
    opener, flaw = CASES[name](folder)
    there = sorted(tmp_path.rglob("*"))
    with watched(), pytest.raises(RobvitError, match=flaw) as caught:
        opener()
    assert len(str(caught.value)) < 1000
    if not name.startswith(("tar", "archive")):  # who fetches an archive says which
        assert not list(folder.iterdir()) or re.search(f"evil|{folder}", str(caught.value))
    assert sorted(tmp_path.rglob("*")) == there
    assert not Path("/tmp/canary").exists()  # noqa: S108


def test_a_record_of_wrong_kinds_is_one_line_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    rich_record().save(path := tmp_path / "record.json")
    content = json.loads(path.read_text())
    content["trials"][0]["correct"] = "all"
    path.write_text(json.dumps(content))
    for words in (("report", path), ("compare", path, path)):
        assert exit_code(*words) == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"robvit: {path}: Trial.correct must be list[bool], got 'all'")
        assert said.err.count("\n") == 1
        assert not said.out
    assert list(tmp_path.iterdir()) == [path]


def _beside(tmp_path: Path, adv: torch.Tensor, **changes: object) -> Path:
    """A record with a shard beside it that looks like that of its second trial."""
    record = rich_record(count=2)
    trial = record.trials[1] = replace(record.trials[1], shards="shards")
    facts = {"predicted": trial.predicted, "distance": trial.distance, **changes}
    (tmp_path / "shards").mkdir()
    save_file({"adv": adv}, tmp_path / "shards/shard-00000.safetensors", {"facts": json.dumps(facts)})
    record.data["spec"] = "hf:evil/images"
    record.save(tmp_path / "record.json")
    return tmp_path / "record.json"


@pytest.mark.parametrize(
    ("adv", "changes"),
    [
        (torch.zeros(2, 3, 8, 8), {}),
        (torch.zeros(2, dtype=torch.uint8), {}),
        (torch.zeros((), dtype=torch.uint8), {}),
        (torch.zeros(2, 3, 8, 8), {"distance": 7}),
    ],
)
def test_shards_beside_a_record_that_hold_no_images_are_refused(
    adv: torch.Tensor,
    changes: dict[str, object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    assert exit_code("report", _beside(tmp_path, adv, **changes)) == 2
    assert "shard-00000.safetensors is not a shard that can be read" in capsys.readouterr().err


@pytest.mark.parametrize("shards", ["../shards", "/", "shards/../../shards"])
def test_a_record_shows_no_images_from_outside_its_folder(shards: str, tmp_path: Path) -> None:
    _beside(tmp_path, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    (tmp_path / "inner").mkdir()
    record = Record.load(tmp_path / "record.json")
    assert shard_folders(record, tmp_path) == {1: tmp_path / "shards"}
    record.trials[1] = replace(record.trials[1], shards=shards)
    assert shard_folders(record, tmp_path / "inner") == {}


def test_a_record_makes_nobody_fetch_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr("robvit.data.open_data", lambda *_, **__: pytest.fail("it opens what a record names"))
    assert exit_code("report", _beside(tmp_path, torch.zeros(2, 3, 8, 8, dtype=torch.uint8))) == 0
    assert "does not make anyone fetch" in capsys.readouterr().err
    assert "data:image/webp" in (tmp_path / "report.html").read_text()


def test_what_real_commands_wrote_is_still_read(tmp_path: Path) -> None:
    rich_record().save(tmp_path / "record.json")
    assert Record.load(tmp_path / "record.json").rows() == rich_record().rows()
