"""Commands and groups of them, as typer has them but for their help."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand, TyperGroup

from robvit.texts import printable


class PlainText:
    """A stream of text in which what steers a terminal is written out: names come from strangers' files."""

    def __init__(self, beneath: Any) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        return int(self.beneath.write(printable(text)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


@contextmanager
def plain_output() -> Iterator[None]:
    """While a command runs, what it prints steers no terminal; help and progress are drawn elsewhere."""
    before = sys.stdout
    sys.stdout = PlainText(before)
    try:
        yield
    finally:
        sys.stdout = before


def _without_types(parameters: list[Any]) -> list[Any]:
    """Flags show no type in the help: `--force`, not `--force <bool>`."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def _flowing(text: str | None) -> str | None:
    """Help whose paragraphs are one line each: terminals have other widths than the source."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs) or None


class Command(TyperCommand):
    """One command."""

    def __init__(self, *args: Any, help: str | None = None, **settings: Any) -> None:
        super().__init__(*args, help=_flowing(help), **settings)

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        with plain_output():
            return super().invoke(ctx)


class Group(TyperGroup):
    """Commands under one word."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))
