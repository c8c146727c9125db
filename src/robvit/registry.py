"""Named things that plug in, what is known about each, and loud errors for names nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from robvit.errors import UnknownName

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

    `info` makes, from keywords, what an entry tells about its thing: mostly a frozen dataclass.
    """

    def __init__(self, kind: str, info: Callable[..., Info]) -> None:
        self.kind = kind
        self._info = info
        self._entries: dict[str, Entry[T, Info]] = {}
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

    def entry(self, name: str) -> Entry[T, Info]:
        """The thing of that name and what is known about it."""
        if name not in self._entries:
            raise unknown(self.kind, name, list(self._entries))
        return self._entries[name]

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
