"""Which files are models of other tools, that answer images and tell nothing else: ONNX and TorchScript."""

from __future__ import annotations

import zipfile
from pathlib import Path

from robvit.errors import InputError
from robvit.files import given_path

PROGRAMS = (".onnx", ".torchscript", ".ts")
PERHAPS = (".pt", ".pth")  # TorchScript as well as checkpoints


def is_program(name: str | Path) -> bool:
    """Whether a name means such a file, by its ending, or by its content if it could be a checkpoint."""
    lower = str(name).lower()
    if not lower.endswith(PERHAPS):
        return lower.endswith(PROGRAMS)
    try:
        with zipfile.ZipFile(given_path(name)) as archive:
            return any(entry.endswith("/constants.pkl") for entry in archive.namelist())
    except (OSError, ValueError, RuntimeError, InputError, zipfile.BadZipFile):
        return False


def program_file(name: str | Path) -> Path:
    """The file that a name means, which must be there."""
    path = given_path(name)
    if not path.is_file():
        raise InputError(f"no file at {name}; give the path of an ONNX or TorchScript file")
    return path
