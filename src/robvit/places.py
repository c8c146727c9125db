"""What may be passed on: texts and data without the places of the machine they were made on."""

from __future__ import annotations

import re
import shlex
from pathlib import PureWindowsPath
from typing import Any

# An absolute path, or one from home or from above, at the start of a text or after = : , or a quote; what
# follows the scheme of an address is none, but a share of another machine (//name/...) is.
_START = (
    r"(?:(?<=[=:,'\"\s])|(?<=file://)|^)"
    r"(?:~|(?<!http:)(?<!https:)(?<!file:)/|\.\.[/\\]|[A-Za-z]:[/\\](?!/))"
)
_PLACE = re.compile(_START + r"[^?,'\"\n]*")
_PLACE_IN_PROSE = re.compile(_START + r"[^\s?,;'\"]*")  # where a space ends it


def command_without_places(command: str) -> str:
    """A command whose words are cut down alike; still quoted for a shell."""
    try:
        words = shlex.split(command)
    except ValueError:  # a quote without its other half
        words = command.split()
    cut = [data_without_places(word) for word in words]
    return command if cut == words else shlex.join(cut)


def prose_without_places(text: Any) -> Any:
    """A sentence, or a cell of a table, which may be a command."""
    if not isinstance(text, str):
        return text
    return command_without_places(text) if text.startswith("robvit ") else _PLACE_IN_PROSE.sub(_last, text)


def _last(place: re.Match[str]) -> str:
    return PureWindowsPath(place[0]).name or place[0]


def data_without_places(value: Any) -> Any:
    """Data with local paths cut down to their last part."""
    if isinstance(value, str):
        return _PLACE.sub(_last, value)
    if isinstance(value, dict):
        return {name: data_without_places(one) for name, one in value.items()}
    return [data_without_places(one) for one in value] if isinstance(value, list | tuple) else value
