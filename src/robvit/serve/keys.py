"""The key that requests must bring."""

from __future__ import annotations

import os
from pathlib import Path

from robvit.errors import InputError


def read_key(file: Path) -> str:
    """The key in a file; it is never shown."""
    if os.name == "posix" and file.stat().st_mode & 0o002:
        raise InputError(
            f"anyone may write {file}, so its key may be anyone's; make a new one, and chmod 600 the file"
        )
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"no key can be read from {file}: {error}") from None
    if len(key) < 16 or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"the key in {file} must be 16 or more letters and digits; make one: openssl rand -hex 32"
        )
    return key
