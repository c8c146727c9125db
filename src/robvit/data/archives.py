"""Archives from elsewhere, read without trust.

Nothing is ever unpacked: members are read by name. Pickles are read by an unpickler that can build
nothing but plain values and the raw bytes of arrays, so none of their code can run.
"""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import torch

from robvit.errors import DataError

_MEMBER_BYTES = 400_000_000  # no member of the archives we know is half as large
_ARCHIVE_BYTES = 1_000_000_000  # nor all of them together


def opened_tar(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path.name} is not a tar archive ({error})") from None


def member(tar: tarfile.TarFile, name: str) -> bytes:
    """The bytes of a regular file in the archive; links are not followed, nothing is written."""
    try:
        entry = _entry(tar, name)
        file = tar.extractfile(entry) if entry.isfile() and entry.size < _MEMBER_BYTES else None
        if file is None:
            raise DataError(f"{name} in the archive is not a plain file of a sensible size")
        return file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"the archive is damaged at {name} ({error})") from None


def _entry(tar: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    """The first member of that name; what claims too much on the way there is not unpacked to go past it."""
    passed = 0
    for entry in tar:
        if entry.name == name:
            return entry
        passed += entry.size
        if passed > _ARCHIVE_BYTES:
            raise DataError(f"the archive claims to hold more than {_ARCHIVE_BYTES:,} bytes, no CIFAR does")
    raise DataError(f"the archive has no member {name}")


class _RawArray:
    """Stands in for numpy's array and dtype while unpickling: keeps the state, runs no code of theirs."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


class _ArraysOnly(pickle.Unpickler):
    """Reads plain values and numpy arrays; any other name in the pickle is refused before it is looked up."""

    _ADMITTED = {("numpy", "ndarray"), ("numpy", "dtype")} | {
        (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
    }

    def find_class(self, module: str, name: str) -> type[_RawArray]:
        if (module, name) not in self._ADMITTED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR archive needs")
        return _RawArray


def unpickle(data: bytes, *keys: bytes) -> list[Any]:
    """The values of these keys in a pickled dictionary; texts are bytes, as Python 2 wrote them."""
    try:
        value = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        return [value[key] for key in keys]
    except KeyError as error:
        raise DataError(f"the archive's pickle has no entry {error}") from None
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(f"the archive's pickle is refused: {str(error) or type(error).__name__}") from None


def raw_bytes(raw: Any) -> torch.Tensor:
    """The bytes of a pickled uint8 array (N 3072), as a tensor."""
    try:
        _, shape, kind, by_columns, data = raw.state
        if kind.arguments[0] not in ("u1", b"u1"):
            raise ValueError(f"type {kind.arguments[0]!r}")
        values = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return values.view(shape[::-1]).T if by_columns else values.view(shape)
    except (AttributeError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise DataError(
            f"expected an array of bytes (N 3072) in the archive, got something else ({error})"
        ) from None
