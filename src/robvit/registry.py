"""Named things that plug in, what is known about each, and loud errors for names nobody knows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from robvit import plugins
from robvit.errors import InputError, UnknownName

T = TypeVar("T")
Info = TypeVar("Info")
LISTED = 20  # names in an error that knows no near one


def unknown(
    kind: str, name: str, known: list[str], hint: str = "", *, listed: list[str] | None = None
) -> UnknownName:
    """An error that offers the nearest known names, or else lists some: those of `listed` if given."""
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    first = sorted(listed or known)[:LISTED]
    more = ", ..." if len(first) < len(listed or known) else ""
    offer = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(first)}{more}"
    return UnknownName(f"no {kind} is called {name!r}; {offer}{' ' + hint if hint else ''}")


@dataclass(frozen=True)
class NoInfo:
    """For things of which the name says all."""


@dataclass(frozen=True)
class Entry(Generic[T, Info]):
    """A registered thing with what is known about it."""

    name: str
    value: T
    info: Info


REGISTRIES: list[Registry[Any, Any]] = []  # all there are in this process, in the order of their rooms


class Registry(Generic[T, Info]):
    """A table of named things, in the order in which they were added.

    `info` makes, from keywords, what an entry tells about its thing: mostly a frozen dataclass. A name that
    is not there may be `module:function`, or an entry point of an installed package (`robvit.plugins`):
    what it leads to is filed under that name, by `adopt` where it is set. `takes` names what its functions
    are called with; one that takes something else is refused before any work.
    """

    def __init__(self, kind: str, info: Callable[..., Info], takes: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.takes = takes
        self._info = info
        self.adopt: Callable[[str, T], None] = self._file
        self._entries: dict[str, Entry[T, Info]] = {}
        self.brought: set[str] = set()  # names of things from elsewhere
        REGISTRIES.append(self)

    def add(self, name: str | None = None, /, **info: Any) -> Callable[[T], T]:
        """Decorator that files a function under its own name, or the one given."""

        def file(value: T) -> T:
            key = name or getattr(value, "__name__", "")
            if not key or key in self._entries:
                raise ValueError(f"{self.kind} {key!r} is nameless or already there; choose another name")
            self._entries[key] = Entry(key, value, self._info(**info))
            return value

        return file

    def _file(self, name: str, value: T) -> None:
        self.add(name)(value)

    def entry(self, name: str) -> Entry[T, Info]:
        """The thing of that name and what is known about it."""
        if name not in self._entries and (value := plugins.found(self.kind, name)) is not None:
            self._bring(name, value)
        if name not in self._entries:
            raise unknown(self.kind, name, list(self._entries))
        return self._entries[name]

    def _bring(self, name: str, value: T) -> None:
        """File what was found elsewhere; importing it may have filed it already, under its own name."""
        self.brought.add(name)
        if name in self._entries:
            return
        for entry in self._entries.values():
            if entry.value is value:
                self._entries[name] = replace(entry, name=name)
                return
        if not callable(value):
            raise InputError(f"{name} must be a function to be a {self.kind}, got {type(value).__name__}")
        self._check_call(name, value)
        self.adopt(name, value)

    def _check_call(self, name: str, value: Callable[..., Any]) -> None:
        """Refuse a function that cannot be called as those of this table are; keywords are its settings."""
        if not self.takes or isinstance(value, type):
            return
        try:
            signature = inspect.signature(value)
        except ValueError:  # written in C, it does not tell
            return
        settings = {p.name: None for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}
        try:
            signature.bind(*self.takes, **settings)
        except TypeError:
            raise InputError(
                f"{name} must take ({', '.join(self.takes)}) to be a {self.kind}, and settings as keywords "
                f"after a star; it takes {signature}"
            ) from None

    def info(self, name: str) -> Info:
        """What is known about the thing of that name."""
        return self.entry(name).info

    @property
    def names(self) -> list[str]:
        """All names, in the order in which they were added."""
        return list(self._entries)

    def __getitem__(self, name: str) -> T:
        return self.entry(name).value

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry[T, Info]]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)
