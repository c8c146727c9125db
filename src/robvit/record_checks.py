"""Whether what was read as a record can be one: kinds of fields, lengths of lists; no torch."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from robvit.budget import Budget, checked_budget
from robvit.errors import InputError

if TYPE_CHECKING:
    from robvit.record import Record

DEEPEST = 12  # a value inside values inside a record; readers of it may call themselves


def check_kinds(part: Any, path: str | Path) -> None:
    """Refuse a field whose value is not of the kind that its annotation promises."""
    hints = get_type_hints(type(part))
    for name, kind in ((field.name, hints[field.name]) for field in fields(part)):
        if not _conforms(value := getattr(part, name), kind):
            wanted = str(getattr(kind, "__name__", kind) if get_origin(kind) is None else kind)
            raise InputError(
                f"{path}: {type(part).__name__}.{name} must be {wanted}, got {reprlib.repr(value)}; "
                "the record is damaged, or not one of robvit's"
            )


def _conforms(value: Any, kind: Any, depth: int = DEEPEST) -> bool:
    if isinstance(kind, UnionType):
        return any(_conforms(value, one, depth) for one in get_args(kind))
    if kind is Budget:
        hints = get_type_hints(Budget).items()
        return isinstance(value, Budget) and all(_conforms(getattr(value, n), k, depth) for n, k in hints)
    if kind is Any and isinstance(value, list | dict):
        kind = list[Any] if isinstance(value, list) else dict[str, Any]
    if get_origin(kind) in (list, dict):
        inside = value.values() if isinstance(value, dict) else value
        fits = isinstance(value, get_origin(kind)) and depth > 0
        return fits and all(_conforms(one, get_args(kind)[-1], depth - 1) for one in inside)
    if kind is Any or isinstance(value, bool):
        return kind in (Any, bool)
    return isinstance(value, int | float if kind is float else kind)


def check_plain(content: Any, path: str | Path) -> None:
    """Refuse what JSON can say and no page can show: numbers without end, halves of characters."""
    try:
        for value in _values(content, DEEPEST):
            if isinstance(value, str):
                value.encode("utf-8")
            elif isinstance(value, int) and abs(value) >= 2**63:
                raise ValueError("a whole number of more than 63 bits")
    except (ValueError, RecursionError) as error:
        got = "half a character" if isinstance(error, UnicodeError) else error
        raise InputError(f"{path}: a record holds plain text and numbers, got {got}; it is damaged") from None


def _values(content: Any, depth: int) -> Iterator[Any]:
    """Every key and value, inside others too; those that lie too deep are refused by their kind."""
    if isinstance(content, list | dict) and depth:
        if isinstance(content, dict):
            yield from content
            content = list(content.values())
        for one in content:
            yield from _values(one, depth - 1)
    else:
        yield content


def check_outcomes(record: Record, path: str | Path, labels: Any) -> None:
    """Refuse outcomes that contradict what was predicted and what is right, as far as there are labels."""
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        return
    for trial in record.trials:
        if len(labels) != len(trial.correct):
            raise InputError(
                f"{path}: expected a label for each of {len(trial.correct)} images, got {len(labels)}; "
                "the record was changed or is damaged"
            )
        pairs = enumerate(zip(labels, trial.predicted, trial.correct, strict=True))
        for place, (label, predicted, correct) in pairs:
            if label >= 0 and predicted >= 0 and correct != (label == predicted):
                claimed = "correct" if correct else "wrong"
                raise InputError(
                    f"{path}: {trial.attack} calls image {place} {claimed}, but predicted {predicted} where "
                    f"the label is {label}; the record was changed or is damaged"
                )


def check_lengths(record: Record, path: str | Path) -> None:
    """Refuse lists that do not run over the record's images, and tables and curves of no regular form."""
    for trial in record.trials:
        if trial.threat is not None:
            try:
                checked_budget(trial.threat.norm, trial.threat.eps, trial.threat.psnr)
            except InputError as error:
                raise InputError(f"{path}: {trial.attack}.threat: {error}") from None
        if not trial.correct:
            raise InputError(f"{path}: {trial.attack} must be of one image or more, got none")
        for name, places in (("skipped", trial.skipped), ("unseen", trial.unseen)):
            if not all(0 <= place < len(trial.correct) for place in places):
                raise InputError(f"{path}: {trial.attack}.{name} names images that the record does not have")
    for table in record.tables:
        if any(len(row) != len(table.columns) for row in table.rows):
            raise InputError(f"{path}: every row of {table.title!r} must have {len(table.columns)} cells")
    for curve in record.curves:
        if any(len(point) not in (2, 4) for line in curve.lines.values() for point in line):
            raise InputError(f"{path}: every point of {curve.title!r} must be [x, y] or [x, y, low, high]")
    for trial in record.trials:
        for name in ("correct", "predicted", "distance", *(["targets"] if trial.targets else [])):
            if len(getattr(trial, name)) != record.data.get("count"):
                got = len(getattr(trial, name))
                raise InputError(
                    f"{path}: {trial.attack}.{name} must have {record.data.get('count')} entries, got {got}"
                )
