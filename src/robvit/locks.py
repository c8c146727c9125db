"""One process at a time: in a folder that results are written to, and at a file that many would make."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from robvit.errors import Busy, CannotWrite, InputError
from robvit.files import remove_remains


@contextmanager
def alone_in(folder: str | Path, *, wait: bool = False) -> Iterator[None]:
    """Let one run at a time write to a folder; a second one is refused or, with `wait`, waits for it.

    Processes of one run share it.
    """
    if int(os.environ.get("RANK", 0)):  # accelerate and torchrun number the processes of a run
        yield
        return
    try:
        with one_at_a_time(Path(folder) / "run", wait=wait):
            remove_remains(Path(folder))
            yield
    except BaseException:
        with suppress(OSError):  # a run that was refused leaves nothing, not even an empty folder
            Path(folder).rmdir()
        raise


@contextmanager
def kept_in(out: str | Path | None) -> Iterator[Path]:
    """The folder of a run: `out`, in which no second run may work, or one that is gone afterwards."""
    if out is not None:
        with alone_in(out):
            yield Path(out)
        return
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise InputError("the processes of a run share their work through a folder; give one as out")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def one_at_a_time(path: str | Path, *, wait: bool = True) -> Iterator[None]:
    """Let one process at a time make what is to lie at `path`; the others wait, then find it made.

    Without `wait` they are refused. The lock is a file beside it, and ends with the process, however that
    ends. Where the system has no such locks every process works for itself, which costs time and harms
    nothing.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = Path(path).with_name(f".{Path(path).name}.lock")
    mode = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    while True:
        with _opened(lock) as handle:
            try:
                fcntl.flock(handle, mode)
            except BlockingIOError:
                raise Busy(
                    f"another run is at work in {lock.parent}; wait for it, or choose another --out"
                ) from None
            if not _names(lock, handle.fileno()):
                continue  # who held it has removed it, and someone may hold a new one
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _opened(lock: Path) -> IO[bytes]:
    """The lock's file, made if there is none; a link there is not followed, and no file is changed."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = open(os.open(lock, flags, 0o666), "rb")  # noqa: PTH123, SIM115  a descriptor; closed by the caller
        if stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            return handle
        handle.close()
        raise CannotWrite(f"{lock} is no file that locks; remove it, or choose another place")
    except OSError as error:
        if isinstance(error, CannotWrite):
            raise
        if error.errno == errno.ELOOP:
            raise CannotWrite(f"{lock} is a link, which no lock follows; remove it") from error
        raise CannotWrite(f"{lock.parent} cannot be written to ({error}); choose another place") from error


def _names(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
