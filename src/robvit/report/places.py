"""Records as they may be passed on: without the places of the machine they were made on."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import PureWindowsPath
from typing import Any

from robvit.record import Record

# An absolute path, or one from home or from above, at the start of a text or after = : , or a quote.
_PLACE = re.compile(r"(?:(?<=[=:,'\"\s])|^)(?:~|/|\.\.[/\\]|[A-Za-z]:[/\\])[^?,'\"\n]*")


def without_places(record: Record) -> Record:
    """The record with local paths cut down to their last part, in all that a page or a file shows of it."""
    return replace(
        record,
        model=_cut(record.model),
        data=_cut(record.data),
        protocol=_cut(record.protocol),
        command=command_without_places(record.command),
        trials=[replace(trial, surrogate=_cut(trial.surrogate)) for trial in record.trials],
    )


def command_without_places(command: str) -> str:
    """A command whose words are cut down alike; still quoted for a shell."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote without its other half
        words = command.split()
    cut = [_cut(word) for word in words]
    return command if cut == words else shlex.join(cut)


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return _PLACE.sub(lambda found: PureWindowsPath(found[0]).name or found[0], value)
    if isinstance(value, dict):
        return {name: _cut(one) for name, one in value.items()}
    return [_cut(one) for one in value] if isinstance(value, list) else value
