"""Hostile files: each ends in an error of ours, soon, in little memory, and nothing is run or written."""

from __future__ import annotations

import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hostile_files import CASES
from robvit.errors import RobvitError

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
