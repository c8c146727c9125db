"""Many askers, one worker: questions are gathered into batches, and each asker gets its own answer.

Whoever wants to ask takes a place first, before any work is done for them; when all places are taken the
next one is turned away at once. So neither memory nor waiting time grows with the crowd.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Full(Exception):
    """All places are taken."""


class Closed(Exception):
    """No questions are taken any more."""


class Batcher(Generic[Question, Answer]):
    """A worker that answers up to `most` questions at once and waits up to `wait` seconds for more."""

    def __init__(
        self, work: Callable[[list[Question]], list[Answer]], *, most: int, wait: float, places: int
    ) -> None:
        self.most, self.wait, self.places = most, wait, places
        self._work = work
        self._waiting: deque[tuple[Question, Future[Answer]]] = deque()
        self._taken = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="robvit-batches", daemon=True)
        self._thread.start()

    @property
    def taken(self) -> int:
        """How many places are taken: requests that were accepted and are not answered yet."""
        return self._taken

    @property
    def alive(self) -> bool:
        """Whether the worker is there to answer."""
        return self._thread.is_alive()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place, or learn at once that there is none."""
        with self._changed:
            if self._closed:
                raise Closed
            if self._taken >= self.places:
                raise Full
            self._taken += 1
        try:
            yield
        finally:
            with self._changed:
                self._taken -= 1

    def ask(self, question: Question) -> Future[Answer]:
        """Hand in a question; what the future gives is the answer to this one."""
        future: Future[Answer] = Future()
        with self._changed:
            if self._closed:
                raise Closed
            self._waiting.append((question, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Take no more, answer what was asked, and end the worker."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._gather():
            wanted = [
                (question, future) for question, future in batch if future.set_running_or_notify_cancel()
            ]
            if not wanted:
                continue
            try:
                answers = self._work([question for question, _ in wanted])
                assert len(answers) == len(wanted)
            except Exception as error:  # those who asked are told; the worker goes on
                for _, future in wanted:
                    future.set_exception(error)
            else:
                for (_, future), answer in zip(wanted, answers, strict=True):
                    future.set_result(answer)

    def _gather(self) -> list[tuple[Question, Future[Answer]]]:
        """The next batch, oldest first; empty only when closed and all is answered."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            end = time.monotonic() + self.wait
            while len(self._waiting) < self.most and not self._closed:
                if (left := end - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            return [self._waiting.popleft() for _ in range(min(self.most, len(self._waiting)))]
