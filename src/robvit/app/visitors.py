"""Who listens, and how many places in the queue each visitor may take.

A visitor is a session of the page. Whoever asks for work and does not listen to its progress is not worked
for, and nobody fills the queue alone: neither by one session nor, from elsewhere, by many.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from robvit.app.session import VisitorLeft
from robvit.serve.hosts import is_loopback

T = TypeVar("T")
PLACES = 3  # of one visitor: an attack, and clicks that are answered at once
GRACE = 10.0  # seconds between asking for work, or losing the connection, and listening
KEPT = 2000  # visitors that are remembered


class Visitors:
    """The sessions that listen, and the bounds on what they ask for."""

    def __init__(self, places: Callable[[], list[tuple[str, str]]], waiting: int) -> None:
        self._places, self._waiting = places, waiting
        self._lock = threading.Lock()
        self._listening: Counter[str] = Counter()
        self._last: dict[str, float] = {}

    @contextmanager
    def listening(self, session: str) -> Iterator[None]:
        """While a visitor is connected."""
        with self._lock:
            self._listening[session] += 1
        try:
            yield
        finally:
            self.seen(session)
            with self._lock:
                self._listening[session] -= 1
                if not self._listening[session]:
                    del self._listening[session]

    def seen(self, session: str) -> None:
        """Note that a visitor is there now."""
        with self._lock:
            self._last.pop(session, None)
            self._last[session] = time.monotonic()
            while len(self._last) > KEPT:
                del self._last[next(iter(self._last))]

    def present(self, session: str) -> bool:
        """Whether a visitor listens, or was there a moment ago."""
        with self._lock:
            return session in self._listening or time.monotonic() - self._last.get(session, -GRACE) < GRACE

    def refusal(self, session: str, address: str) -> str:
        """Why a visitor gets no further place in the queue; empty if they do."""
        taken = self._places()
        if sum(held == session for held, _ in taken) >= PLACES:
            return f"You have {PLACES} requests in the queue already; wait for them, or press Stop."
        from_there = sum(held == address for _, held in taken)
        if not is_loopback(address) and from_there >= max(PLACES, self._waiting // 2):
            return "Half of the queue waits for visitors from your address; try again later."
        return ""

    def while_listening(self, session: str | None, updates: Iterator[T]) -> Iterator[T]:
        """Updates, as long as the visitor listens; then the work behind them ends."""
        try:
            while self.present(session or ""):
                try:
                    update = next(updates)
                except StopIteration:
                    return
                yield update
            raise VisitorLeft
        finally:
            close = getattr(updates, "close", None)
            if close is not None:
                close()


def queue_places(page: Any) -> list[tuple[str, str]]:
    """The session and address of everyone who waits in a page's queue or is being worked for."""
    queue = page._queue
    waiting = [event for one in queue.event_queue_per_concurrency_id.values() for event in one.queue]
    working = [event for job in queue.active_jobs if job for event in job]
    return [
        (event.session_hash, event.request.client.host if event.request.client else "")
        for event in (*waiting, *working)
    ]
