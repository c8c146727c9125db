"""Where files live, how they are written (whole or not at all) and read (without trust)."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from robvit.errors import CannotWrite, InputError

TEXT_BYTES = 256 * 2**20  # the record of a million images is smaller
YAML_BYTES = 2**18  # nobody writes a longer one by hand
YAML_DEPTH = 20  # nor a deeper one; the reader's time grows with the square of it

_OURS = platform.node().replace("/", "") + "-"  # marks unfinished files as this machine's; a number follows


def cache_dir(*parts: str) -> Path:
    """The user's cache for robvit: $ROBVIT_CACHE, else $XDG_CACHE_HOME/robvit, else ~/.cache/robvit."""
    if given := os.environ.get("ROBVIT_CACHE"):
        root = Path(given)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robvit"
    return root.joinpath(*parts)


def given_path(text: str | Path) -> Path:
    """A path that someone gave, with ~ written out; what no file can be called is refused."""
    try:
        path = Path(text).expanduser()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            path.stat()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL in it, or nobody's home
        reason = error.strerror if isinstance(error, OSError) else str(error)
        shown = str(text)[:60].encode("utf-8", "backslashreplace").decode()
        raise InputError(f"{shown!r} cannot be a path ({reason}); check it") from None
    return path


@contextmanager
def written_whole(path: str | Path, mode: int = 0o644) -> Iterator[Path]:
    """Yield a name near `path`; what is written there takes its place only if nothing fails.

    The file reaches the disk before it gets its name, so a crash leaves the old file or the new one. Until
    then it lies in a folder beside it that only its owner may enter.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not mode & 0o077:  # what a killed process left of a secret does not wait for a whole run
            remove_remains(path.parent, f".{glob.escape(path.name)}")
        # A folder, for safetensors writes a file of its own beside the one it is asked for.
        room = tempfile.mkdtemp(prefix=f".{path.name}.{_OURS}{os.getpid()}-", suffix=".part", dir=path.parent)
        aside = Path(room, path.name)
        try:
            yield aside
            with aside.open("rb") as done:
                os.fsync(done.fileno())
            aside.chmod(mode & _allowed(Path(room)))
            aside.replace(path)
        finally:
            shutil.rmtree(room, ignore_errors=True)
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise  # safetensors tells of a full disk by an error of its own
        kept = "the last one is untouched" if _is_there(path) else "there was none before"
        raise CannotWrite(
            f"{path} could not be written ({error}); {kept}; make room or choose another place; run again"
        ) from error


@contextmanager
def folder_written_whole(path: str | Path, mode: int = 0o644) -> Iterator[Path]:
    """Yield an empty folder near `path`; with what is written into it it takes that place if nothing fails.

    A folder that was there goes; its files are readable as `mode` says.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        room = Path(
            tempfile.mkdtemp(prefix=f".{path.name}.{_OURS}{os.getpid()}-", suffix=".part", dir=path.parent)
        )
        aside = room / path.name
        aside.mkdir()
        try:
            yield aside
            for file in aside.iterdir():
                with file.open("rb") as done:
                    os.fsync(done.fileno())
                file.chmod(mode & _allowed(room))
            if _is_there(path):
                path.replace(room / "before")
            aside.replace(path)
        finally:
            shutil.rmtree(room, ignore_errors=True)
    except OSError as error:
        raise CannotWrite(
            f"{path} could not be written ({error}); choose another place; run again"
        ) from error


def _allowed(room: Path) -> int:
    """The permissions that the user's umask leaves; it can be asked for only by making a file."""
    probe = room / "umask"
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o777))
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    return mode | 0o600


def remove_remains(folder: Path, start: str = "") -> None:
    """Remove what processes of this machine that were killed while they wrote have left in a folder.

    With the `start` of a name, only what begins so, and not in folders inside.
    """
    found = folder.glob if start else folder.rglob
    for aside in found(f"{start or '.*'}.{glob.escape(_OURS)}*.part"):
        process = aside.name.rpartition(_OURS)[2].partition("-")[0]
        if process.isdecimal() and not _is_alive(int(process)):
            shutil.rmtree(aside, ignore_errors=True)


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        return True  # there, asking would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON that people can read, whole or not at all."""
    with written_whole(path) as aside:
        aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_text(path: str | Path, what: str, most: int = TEXT_BYTES) -> str:
    """The text of a file from elsewhere; one that is too large is not read."""
    try:
        check_plain(path)
        with Path(path).open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ValueError(f"it is larger than {most} bytes")
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not {what} that can be read: {error}") from error


def parse_json(text: str, where: str | Path, what: str) -> Any:
    """Values from JSON of a file at `where`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not {what} that can be read: {error}") from None


def parse_yaml(text: str, where: str | Path) -> dict[str, Any]:
    """Keys and plain values from YAML: no tags, and no aliases, which can stand for gigabytes."""
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > YAML_DEPTH:
                raise ValueError(f"it is nested more than {YAML_DEPTH} deep")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("it has an alias (*name); write the value out")
        content = yaml.load(text, _strict_loader())  # noqa: S506  a SafeLoader that is stricter
        _refuse_nan(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{where} is not plain YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        got = type(content).__name__ if not isinstance(content, dict) else "keys that are no words"
        raise InputError(f"{where} must hold keys and values, got {got}")
    return content


def _strict_loader() -> Any:
    """A SafeLoader that refuses a key that stands twice, of which the first would be lost."""
    import yaml

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            if twice := [key for key in keys if isinstance(key, str) and keys.count(key) > 1]:
                raise ValueError(f"the key {twice[0]!r} stands twice; leave one out")
            return super().construct_mapping(node, deep)

    return Strict


def _refuse_nan(content: Any) -> None:
    if isinstance(content, dict | list):
        for value in content.values() if isinstance(content, dict) else content:
            _refuse_nan(value)
    elif isinstance(content, float) and content != content:
        raise ValueError("it has .nan, which is no number; write one")


def check_plain(path: str | Path) -> None:
    """Refuse a folder, and a pipe or a device, of which reading might never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  (a path with a null byte is a ValueError)
        raise ValueError("it is not a regular file")
