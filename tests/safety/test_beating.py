"""What a run survives: kills, a full disk, a place it may not write, a second run, clocks that jump, rot.

`make beating` kills more often; here it is done at a small size.
"""

from __future__ import annotations

import hashlib
import http.server
import itertools
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import robvit
from helpers.cifar_archives import mini as mini
from helpers.cifar_archives import tar, torchvision_like
from helpers.commands import exit_code
from robvit import fetch
from robvit.data import cifar, open_data
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.token_training import train_tokens
from robvit.errors import Busy, CannotWrite, DataError
from robvit.files import remove_remains, write_json, written_whole
from robvit.locks import alone_in
from robvit.record import Record
from robvit.tensor_files import read_tensors
from robvit.threat import Threat

ATTACK = ["attack", "robvit-mini", "sample", "--set", "steps=2", "--limit", "6", "--batch", "2", "--out"]


@pytest.fixture(autouse=True)
def _own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", [])


def kept(out: Path) -> dict[str, object]:
    """What an attack left: tensors, outcomes and images, without the time it took."""
    shards = {p.name: read_tensors(p, "a shard")[0]["adv"].tolist() for p in sorted(out.rglob("shard-*"))}
    images = {p.name: p.read_bytes() for p in sorted((out / "images").rglob("*.png"))}
    trials = [(t.correct, t.predicted, t.distance) for t in Record.load(out / "record.json").trials]
    return {**shards, **images, "trials": trials}


@pytest.mark.slow
def test_killed_at_chosen_and_random_points_every_command_ends_with_the_same_bits() -> None:
    script = Path(__file__).parents[2] / "scripts/beating.py"
    done = subprocess.run(
        [sys.executable, script, "--kills", "5", "--seed", "1"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"^(\w+) +(\d+) .*the same bits as undisturbed$", done.stdout, flags=re.MULTILINE)
    assert [name for name, _ in told] == ["robustify", "pool", "lora", "attack", "evaluate", "train"]
    assert all(int(kills) >= 2 for _, kills in told)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk on which no file can grow beyond a size: what writers see of a full one."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.slow
def test_a_full_disk_is_one_clear_line_and_the_run_goes_on_when_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with files_of_at_most(6000):  # a mark fits, a shard does not
        assert exit_code(*ATTACK, out) == 2
    said = capsys.readouterr().err
    assert re.search(r"robvit: .*shard-00000.safetensors could not be written .*; make room", said)
    assert "Traceback" not in said
    assert {p.name for p in out.rglob("*") if p.is_file()} == {"compute.json", "job.json"}
    assert exit_code(*ATTACK, out) == 0
    assert exit_code(*ATTACK, tmp_path / "undisturbed") == 0
    assert kept(out) == kept(tmp_path / "undisturbed")


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"old": 1})
    with files_of_at_most(100), pytest.raises(CannotWrite, match="the last one is untouched"):
        write_json(tmp_path / "a.json", {"new": "x" * 1000})
    assert (tmp_path / "a.json").read_text() == '{\n  "old": 1\n}\n'
    assert len(list(tmp_path.iterdir())) == 1


@contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A file system of its own, in memory; only the superuser may have one."""
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], capture_output=True)
    if done.returncode:
        pytest.skip("mounting a small disk needs the superuser")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(tmp_path / "small", "size=16k") as disk:
        assert exit_code(*ATTACK, disk / "out") == 2
        assert "No space left on device" in capsys.readouterr().err
        assert not list(disk.rglob(".*.part"))


def test_a_disk_that_may_only_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(tmp_path / "fixed", "ro") as disk:
        assert exit_code(*ATTACK, disk / "out") == 2
    said = capsys.readouterr().err
    assert "cannot be written to" in said
    assert "Read-only file system" in said
    assert len([line for line in said.splitlines() if not line.startswith("device: ")]) == 1


COMMANDS = {
    "attack": ATTACK[:-1],
    "robustify": [
        "robustify",
        "robvit-mini",
        "sample",
        "--limit",
        "4",
        "--steps",
        "1",
        "--attack-steps",
        "1",
    ],
    "evaluate": ["evaluate", "robvit-mini", "sample", "--protocol", "clean@1", "--limit", "4"],
    "train": ["train", "standard", "--model", "robvit-mini", "--data", "sample", "--limit", "20"],
    "train tora": ["train", "tora", "--model", "robvit-mini", "--data", "sample", "--limit", "20"],
    "demo": ["demo", "--model", "robvit-mini"],
    "reproduce": ["reproduce", "tora-table1", "--model", "robvit-mini", "--data", "sample"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_where_a_folder_cannot_be_a_command_says_so(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert exit_code(*COMMANDS[command], "--out", tmp_path / "file/out") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("robvit: ")
    assert "Not a directory" in said
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_second_run_in_the_same_folder_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with alone_in(tmp_path / "out"):
        there = sorted(tmp_path.joinpath("out").rglob("*"))
        assert exit_code(*COMMANDS[command], "--out", tmp_path / "out") == 2
        assert sorted(tmp_path.joinpath("out").rglob("*")) == there
    assert f"another run is at work in {tmp_path / 'out'}" in capsys.readouterr().err


def test_processes_of_one_run_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with alone_in(tmp_path / "out"):
        monkeypatch.setenv("RANK", "1")
        with alone_in(tmp_path / "out"):
            pass
    assert not list((tmp_path / "out").iterdir())


def test_a_run_that_is_refused_leaves_no_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError), alone_in(tmp_path / "out"):
        raise DataError("no images")
    assert not list(tmp_path.iterdir())


HOLDS = """
import sys, time
from pathlib import Path
from robvit.files import written_whole
from robvit.locks import alone_in
with alone_in(sys.argv[1]), written_whole(Path(sys.argv[1], "deep", "secret"), mode=0o600) as aside:
    aside.write_text("half")
    print("ready", flush=True)
    time.sleep(600)
"""


def test_a_killed_run_leaves_its_folder_free_and_its_half_files_go(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDS, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout
    assert holder.stdout.readline() == "ready\n"
    (half,) = tmp_path.rglob(".*.part")
    assert half.stat().st_mode & 0o777 == 0o700  # nobody else may look inside
    with pytest.raises(Busy), alone_in(tmp_path):
        pass
    remove_remains(tmp_path)
    assert half.exists()  # its writer lives
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with alone_in(tmp_path):
        assert not half.exists()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_one_s_own_unfinished_file_is_not_taken_for_remains(tmp_path: Path) -> None:
    with written_whole(tmp_path / "a") as aside:
        aside.write_text("whole")
        remove_remains(tmp_path)
    assert (tmp_path / "a").read_text() == "whole"


@pytest.mark.slow
def test_clocks_that_jump_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code(*ATTACK, tmp_path / "steady") == 0
    jumps = itertools.cycle([0.0, 4e9, 1.0, 2e9, -5.0])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    assert exit_code(*ATTACK, tmp_path / "jumpy") == 0
    assert kept(tmp_path / "jumpy") == kept(tmp_path / "steady")
    for path, when in zip(sorted((tmp_path / "jumpy").rglob("*")), itertools.cycle([0, 4e9]), strict=False):
        os.utime(path, (when, when))  # files from the past and from the future
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "jumpy").rglob("shard-*")}
    assert exit_code(*ATTACK, tmp_path / "jumpy") == 0
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps  # nothing was made again
    assert kept(tmp_path / "jumpy") == kept(tmp_path / "steady")


def _flip(path: Path, place: Callable[[bytes], int]) -> None:
    data = bytearray(path.read_bytes())
    data[place(data)] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [lambda data: len(data) - 5, lambda data: data.index(b'correct\\":') + 13, lambda data: 3],
    ids=["a pixel", "an outcome", "the header"],
)
def test_a_shard_that_rots_is_found_and_made_again(place: Callable[[bytes], int], tmp_path: Path) -> None:
    out, sound = tmp_path / "out", tmp_path / "sound"
    for folder in (out, sound):
        assert exit_code(*ATTACK, folder) == 0
    stamps = {p: p.stat().st_mtime_ns for p in out.rglob("shard-*")}
    _flip(rotten := out / "shards/shard-00001.safetensors", place)
    assert exit_code(*ATTACK, out) == 0
    assert kept(out) == kept(sound)
    made = {p for p, stamp in stamps.items() if p.stat().st_mtime_ns != stamp}
    assert made == {rotten}


@pytest.mark.slow
def test_a_shard_of_the_cache_that_rots_is_found_and_made_again(tmp_path: Path) -> None:
    model, images = robvit.load("robvit-mini"), open_data("sample", split="train", limit=20)
    attack = AttackSetting("feature", Threat("linf", 8 / 255), {"steps": 1})
    recipe = TokenRecipe(count=1, steps=2, batch=4, attack=attack)
    sound = train_tokens(model, images, recipe)
    _flip(max((tmp_path / "cache").rglob("shard-*")), lambda data: len(data) - 5)
    again = train_tokens(model, images, recipe)
    assert (sound.attacked, again.attacked) == (20, 4)  # one shard of sixteen images, one of four
    assert again.tokens.key_id == sound.tokens.key_id
    assert again.baseline == sound.baseline


class _Cut(http.server.BaseHTTPRequestHandler):
    """Serves one file, the first time only half of it."""

    content = b""
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        whole = type(self).asked > 1
        self.wfile.write(self.content if whole else self.content[: len(self.content) // 2])

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_a_download_that_breaks_off_leaves_nothing_and_the_next_succeeds(
    mini: cifar.Cifar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from robvit.data.cifar import Cifar

    data = tar(tmp_path / "archive.tar.gz", torchvision_like()).read_bytes()

    class Handler(_Cut):
        content = data

    monkeypatch.undo()  # the real download and the real checksum
    monkeypatch.setitem(cifar.SETS, "cifar10", mini)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/cifar-10-python.tar.gz"
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        monkeypatch.setattr(Cifar, "archive", property(lambda self: (address, md5)))
        with pytest.raises(DataError, match="has md5"):
            cifar.fetch("cifar10", tmp_path / "out")
        assert not [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
        assert cifar.fetch("cifar10", tmp_path / "out") == (tmp_path / "out", True)
        server.shutdown()
    assert len(open_data(f"cifar10:{tmp_path / 'out'}")) == 10
    assert Handler.asked == 2
