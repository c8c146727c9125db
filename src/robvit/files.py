"""Where files live and how they are written: whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robvit.errors import InputError

if TYPE_CHECKING:
    import torch


def cache_dir(*parts: str) -> Path:
    """The user's cache for robvit: $ROBVIT_CACHE, else $XDG_CACHE_HOME/robvit, else ~/.cache/robvit."""
    if given := os.environ.get("ROBVIT_CACHE"):
        root = Path(given)
    else:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robvit"
    return root.joinpath(*parts)


@contextmanager
def written_whole(path: str | Path, mode: int = 0o644) -> Iterator[Path]:
    """Yield a name beside `path`; what is written there takes its place only if nothing fails.

    The file reaches the disk before it gets its name, so a crash leaves the old file or the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        with aside.open("rb") as done:
            os.fsync(done.fileno())
        aside.chmod(mode)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def one_at_a_time(path: str | Path) -> Iterator[None]:
    """Let one process at a time make what is to lie at `path`; the others wait, then find it made.

    The lock is a file beside it, and ends with the process, however that ends. Where the system has no
    such locks every process works for itself, which costs time and harms nothing.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    lock = Path(path).with_name(f".{Path(path).name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with lock.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not _names(lock, handle.fileno()):
                continue  # who held it has removed it, and someone may hold a new one
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _names(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON that people can read, whole or not at all."""
    with written_whole(path) as aside:
        aside.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_tensors(path: str | Path, what: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a safetensors file and what stands beside them; `what` names it in the error."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not {what} that can be read: {error}") from error


def tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """The SHA-256 of named tensors: names, types, shapes and values, whatever file they came from."""
    import torch  # here, so that `import robvit` stays quick

    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
