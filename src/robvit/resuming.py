"""What a result depends on, by name: a run that is taken up again with anything changed is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from robvit.errors import InputError
from robvit.versions import library_versions

DECIDING = ("robvit", "torch", "timm")  # the libraries whose versions decide results


def versions() -> dict[str, str]:
    """The versions that decide results."""
    return {name: found for name, found in library_versions().items() if name in DECIDING}


def key_of(facts: Any) -> str:
    """One name for all that decides a result."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def check_unchanged(path: str | Path, before: Any, now: Mapping[str, Any]) -> None:
    """Refuse to resume at `path` where what decides the result, by name, is not what it was before."""
    plain = json.loads(json.dumps(now))  # tuples as lists, as they were read
    if before == plain:
        return
    if not isinstance(before, dict):
        raise InputError(
            f"{path} was begun by an older robvit, which did not say what it depends on; "
            "choose another folder, or remove it"
        )
    names = sorted(n for n in {*before, *plain} if before.get(n) != plain.get(n))
    changes = [_change(name, before.get(name), plain.get(name)) for name in names]
    raise InputError(
        f"{path} belongs to another run: {'; '.join(changes)}; choose another folder, or remove it to start "
        "anew"
    )


def _change(name: str, before: Any, now: Any) -> str:
    """What changed, with short values where they say something to people."""
    if isinstance(before, dict) and isinstance(now, dict):
        inside = sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
        return ", ".join(_change(f"{name}.{n}", before.get(n), now.get(n)) for n in inside[:3])
    short = all(isinstance(v, int | float | str | None) and len(str(v)) <= 24 for v in (before, now))
    return f"{name} was {before}, is {now}" if short else f"{name} changed"
