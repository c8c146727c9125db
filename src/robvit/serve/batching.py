"""Many requests, one worker: inputs are gathered into batches, and each request gets its own result.

Each request occupies one queue slot from the moment it has arrived; when all slots are occupied, the next
request is rejected at once. So neither memory nor waiting time grows with the load.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

Input = TypeVar("Input")
Result = TypeVar("Result")


class QueueFull(Exception):
    """All slots are occupied."""


class Closed(Exception):
    """No inputs are accepted any more."""


class Batcher(Generic[Input, Result]):
    """A worker that handles up to `max_batch` inputs at once and waits up to `max_wait` seconds for more."""

    def __init__(
        self, work: Callable[[list[Input]], list[Result]], *, max_batch: int, max_wait: float, slots: int
    ) -> None:
        self.max_batch, self.max_wait, self.slots = max_batch, max_wait, slots
        self._work = work
        self._pending: deque[tuple[Input, Future[Result]]] = deque()
        self._occupied = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="robvit-batches", daemon=True)
        self._thread.start()

    @property
    def occupied(self) -> int:
        """How many slots are occupied: requests that were accepted and are not answered yet."""
        return self._occupied

    @property
    def alive(self) -> bool:
        """Whether the worker is running."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise what `slot` would raise now."""
        if self._closed:
            raise Closed
        if self._occupied >= self.slots:
            raise QueueFull

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Occupy a slot; raises QueueFull at once if there is none."""
        with self._changed:
            self.check()
            self._occupied += 1
        try:
            yield
        finally:
            with self._changed:
                self._occupied -= 1

    def submit(self, item: Input) -> Future[Result]:
        """Hand in an input; the future gives the result for this very one."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise Closed
            self._pending.append((item, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Accept no more, finish what was accepted, and end the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._gather():
            wanted = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
            if not wanted:
                continue
            try:
                results = self._work([item for item, _ in wanted])
                assert len(results) == len(wanted)
            except Exception as error:  # passed on to those who wait; the worker goes on
                for _, future in wanted:
                    future.set_exception(error)
            else:
                for (_, future), result in zip(wanted, results, strict=True):
                    future.set_result(result)

    def _gather(self) -> list[tuple[Input, Future[Result]]]:
        """The next batch, oldest first; empty only when closed and nothing is pending."""
        with self._changed:
            while not self._pending and not self._closed:
                self._changed.wait()
            end = time.monotonic() + self.max_wait
            while len(self._pending) < self.max_batch and not self._closed:
                if (left := end - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            return [self._pending.popleft() for _ in range(min(self.max_batch, len(self._pending)))]
