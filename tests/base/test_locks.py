"""One run at a time, by a lock that follows nothing and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from robvit.errors import Busy, CannotWrite
from robvit.locks import alone_in, one_at_a_time

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there are no such locks elsewhere")


def test_a_second_run_is_refused_and_a_later_one_is_not(tmp_path: Path) -> None:
    code = "import sys\nfrom robvit.locks import *\ntry: alone_in(sys.argv[1]).__enter__()\nexcept Busy: sys.exit(7)"  # noqa: E501
    with alone_in(tmp_path):
        assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == 7
        with pytest.raises(Busy), one_at_a_time(tmp_path / "run", wait=False):
            pass
    assert list(tmp_path.iterdir()) == []
    with alone_in(tmp_path):
        pass


@pytest.mark.parametrize("there", [True, False])
def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path, there: bool) -> None:
    victim, out = tmp_path / "victim", tmp_path / "out"
    out.mkdir()
    if there:
        victim.write_text("kept")
    (out / ".run.lock").symlink_to(victim)
    with pytest.raises(CannotWrite, match="is a link"), alone_in(out):
        pass
    assert victim.exists() == there
    assert not there or victim.read_text() == "kept"
    assert (out / ".run.lock").is_symlink()


def test_a_file_in_place_of_the_lock_keeps_its_content(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / ".run.lock").hardlink_to(victim)
    with alone_in(tmp_path):
        assert victim.read_text() == "kept"
    assert victim.read_text() == "kept"


def test_what_is_no_file_is_no_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".run.lock")
    with pytest.raises(CannotWrite, match="no file that locks"), alone_in(tmp_path):
        pass
