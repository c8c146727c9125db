"""Settings of attacks, studies and tokens: from text, and checked against the defaults they replace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from robvit.budget import parse_number
from robvit.errors import InputError
from robvit.registry import unknown

ANY_SIGN = ("axis", "seed")  # whole numbers that count nothing


def parse_settings(given: list[str], known: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Settings from text such as steps=20: whole numbers, fractions, lists, true and false, or words."""
    settings: dict[str, Any] = {}
    for item in given:
        name, equals, text = item.partition("=")
        if not equals:
            raise InputError(f"a setting looks like steps=20, got {item!r}")
        if name not in known:
            raise unknown(f"setting of {owner}", name, list(known))
        settings[name] = _value(text)
    return settings


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is a word here")


def _value(text: str) -> Any:
    """What a setting's text means; words in lists keep their capitals."""
    for spelling in (text, text.lower()):  # True is true
        try:
            return json.loads(spelling, parse_constant=_no_number)
        except ValueError:
            continue
    numbers = all(part.replace(".", "", 1).isdigit() for part in text.split("/"))
    return parse_number(text) if numbers else text


def check_setting(name: str, value: object, default: object) -> None:
    """Refuse a value of another kind than the default, and counts below one."""
    kind = name.rpartition(".")[2]
    if isinstance(default, bool):
        fine, want = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        counts = kind not in ANY_SIGN
        fine = isinstance(value, int) and not isinstance(value, bool) and (value >= 1 or not counts)
        want = "a whole number from 1" if counts else "a whole number"
    elif isinstance(default, float):
        fine, want = is_fraction(value) or isinstance(value, int | float), "a number"
    elif isinstance(default, str):
        fine, want = isinstance(value, str), "a word"
    else:
        return
    if not fine:
        raise InputError(f"{name} must be {want}, got {value!r}")


def check_like(name: str, value: object, default: object) -> None:
    """Refuse what cannot stand for a default of a study: a word for a number, or one value for a list."""
    if isinstance(default, bool):
        fine, want = isinstance(value, bool), "true or false"
    elif isinstance(default, int | float):
        fine = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
        want = "a number from 0"
    elif isinstance(default, str):
        fine, want = isinstance(value, str | Path), "a word"
    elif isinstance(default, Sequence):
        fine = isinstance(value, Sequence) and not isinstance(value, str)
        want = f"a list, such as {json.dumps(list(default[:2]) or ['NAME'])}"
    else:
        return
    if not fine:
        raise InputError(f"{name} must be {want}, got {value!r}")


def parse_layers(layers: Sequence[int] | str) -> tuple[int, ...] | Literal["all"]:
    """The blocks before which tokens enter, from numbers or from text such as "0,6" or "all"."""
    if layers == "all":
        return "all"
    try:
        return tuple(int(one) for one in (layers.split(",") if isinstance(layers, str) else layers))
    except ValueError:
        raise InputError(f'layers must be "all" or numbers such as 0,6, got {layers!r}') from None


def check_layers(layers: Sequence[int], depth: int, model: str) -> None:
    """Refuse layers that a model of so many blocks does not have, or that are not in order."""
    if not layers or list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= depth:
        raise InputError(
            f'layers must be rising numbers in 0..{depth - 1}, the blocks of {model}, or "all", '
            f"got {list(layers)}"
        )


def is_fraction(value: object) -> bool:
    """Whether a value is text such as 8/255."""
    return isinstance(value, str) and "/" in value


def check_trades(trades: Sequence[float]) -> None:
    """Refuse trade-offs that are not rising numbers in [0,1]."""
    rising = all(a < b for a, b in pairwise(trades))
    if not trades or not rising or trades[0] < 0 or trades[-1] > 1:
        raise InputError(f"trade-offs must be rising numbers in [0,1], got {list(trades)}")
