"""One visitor's order after the other: what may be asked for, and the answer as it grows.

Nothing here outlives an order but the models, and one order at a time uses them: hooks and modes of a
model are shared by all threads, so two orders at once could see each other's images.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from robvit.app.compute import attacked, swept
from robvit.app.request import InputImage, Order, Result, Step, Sweep, png
from robvit.app.subjects import Subject
from robvit.data.decode import ImageError, fit, read_image
from robvit.errors import InputError, RobvitError
from robvit.registry import unknown

T = TypeVar("T")
KEPT_SIDE = 448  # pixels of an upload that are kept; more than any model here looks at


class OutOfTime(RobvitError):
    """An order that took longer than an order may."""


class Gone(Exception):
    """The visitor left; whoever computes for them stops at the next pass."""


@dataclass(frozen=True)
class Limits:
    """What a visitor may ask for."""

    steps: int = 100
    eps: int = 32
    seconds: float = 60.0
    upload_bytes: int = 10_000_000
    upload_pixels: int = 25_000_000
    waiting: int = 32


@dataclass(frozen=True)
class _Said(Generic[T]):
    news: T | None = None
    error: BaseException | None = None
    last: bool = False


@dataclass(frozen=True)
class Bench:
    """The models, the limits, and the turn that one order at a time has."""

    subjects: dict[str, Subject]
    limits: Limits = field(default_factory=Limits)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def subject(self, order: Order) -> Subject:
        """The model of an order; whatever the order may not ask for is refused."""
        if order.subject not in self.subjects:
            raise unknown("model", order.subject, list(self.subjects))
        subject = self.subjects[order.subject]
        if order.attack not in subject.attacks:
            raise unknown(f"attack on {subject.name}", order.attack, subject.attacks)
        if order.tokens not in subject.tokens:
            raise InputError(f"{subject.name} has no tokens here; choose another model, or tokens off")
        for name in ("eps", "steps"):
            value, most = getattr(order, name), getattr(self.limits, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InputError(f"{name} must be a whole number from 1 to {most}, got {value!r}")
        return subject

    def upload(self, data: bytes) -> InputImage:
        """The middle of an uploaded image, as a square; what is too large or no image is refused."""
        if len(data) > self.limits.upload_bytes:
            most = self.limits.upload_bytes // 1_000_000
            raise ImageError(f"it has {len(data) / 1e6:.1f} MB, at most {most} MB are taken; make it smaller")
        pixels = read_image(data, max_pixels=self.limits.upload_pixels)
        side = min(KEPT_SIDE, *pixels.shape[-2:])
        return InputImage(png(fit(pixels, side, "crop").permute(1, 2, 0).numpy()))

    def attack(self, order: Order) -> Iterator[Step | Result]:
        """The attack as it goes on, then what came of it."""
        subject = self.subject(order)
        return self._watched(lambda tell: attacked(subject, order, tell))

    def sweep(self, order: Order) -> Iterator[Sweep]:
        """The same attack at one budget after the other, each an image of its own."""
        subject = self.subject(order)
        return self._watched(lambda tell: swept(subject, order, tell))

    def _watched(self, work: Callable[[Callable[[T], None]], T]) -> Iterator[T]:
        """What `work` tells, the newest where the visitor is slow, and what it returns in the end.

        It runs in a thread of its own, after those before it, and ends with its time or its visitor.
        """
        told: queue.SimpleQueue[_Said[T]] = queue.SimpleQueue()
        gone = threading.Event()

        def compute() -> None:
            try:
                with self.turn:
                    end = time.monotonic() + self.limits.seconds

                    def tell(news: T) -> None:
                        if gone.is_set():
                            raise Gone
                        if time.monotonic() > end:
                            raise OutOfTime(
                                f"this took longer than {self.limits.seconds:g} seconds and was stopped; "
                                "try fewer steps or a smaller model"
                            )
                        told.put(_Said(news))

                    told.put(_Said(work(tell), last=True))
            except BaseException as error:
                told.put(_Said(error=error, last=True))

        threading.Thread(target=compute, daemon=True, name="robvit-order").start()
        try:
            while True:
                said = told.get()
                while not said.last and not told.empty():
                    said = told.get()
                if said.error is not None:
                    raise said.error
                assert said.news is not None
                yield said.news
                if said.last:
                    return
        finally:
            gone.set()
