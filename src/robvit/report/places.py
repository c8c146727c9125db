"""Records as they may be passed on: without the places of the machine they were made on."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import PureWindowsPath
from typing import Any

from robvit.record import Record

# An absolute path, or one from home or from above, at the start of a text or after = : , or a quote.
_START = r"(?:(?<=[=:,'\"\s])|^)(?:~|/|\.\.[/\\]|[A-Za-z]:[/\\])"
_PLACE = re.compile(_START + r"[^?,'\"\n]*")
_PLACE_IN_PROSE = re.compile(_START + r"[^\s?,;'\"]*")  # where a space ends it


def without_places(record: Record) -> Record:
    """The record with local paths cut down to their last part, in all that a page or a file shows of it."""
    return replace(
        record,
        model=_cut(record.model),
        data=_cut(record.data),
        protocol=_cut(record.protocol),
        command=command_without_places(record.command),
        trials=[replace(trial, surrogate=_cut(trial.surrogate)) for trial in record.trials],
        findings=[
            replace(one, evidence=_told(one.evidence), remedy=_told(one.remedy)) for one in record.findings
        ],
        notes=[_told(note) for note in record.notes],
        tables=[
            replace(one, note=_told(one.note), rows=[[_told(cell) for cell in row] for row in one.rows])
            for one in record.tables
        ],
    )


def command_without_places(command: str) -> str:
    """A command whose words are cut down alike; still quoted for a shell."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote without its other half
        words = command.split()
    cut = [_cut(word) for word in words]
    return command if cut == words else shlex.join(cut)


def _told(text: Any) -> Any:
    """A sentence, or a cell of a table, which may be a command."""
    if not isinstance(text, str):
        return text
    return command_without_places(text) if text.startswith("robvit ") else _PLACE_IN_PROSE.sub(_last, text)


def _last(place: re.Match[str]) -> str:
    return PureWindowsPath(place[0]).name or place[0]


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return _PLACE.sub(_last, value)
    if isinstance(value, dict):
        return {name: _cut(one) for name, one in value.items()}
    return [_cut(one) for one in value] if isinstance(value, list) else value
