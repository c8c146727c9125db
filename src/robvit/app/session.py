"""One visitor's request after the other: what may be requested, and the result as it is computed.

Nothing here outlives a request but the models, and one request at a time uses them: hooks and modes of a
model are shared by all threads, so two requests at once could see each other's images.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from robvit.app.compute import run_attack, run_certificate, run_sweep
from robvit.app.models import PlaygroundModel
from robvit.app.request import AttackRequest, InputImage, PatchMap, Result, Step, Sweep
from robvit.data.decoder import Decoder, DecoderBusy
from robvit.decoding import ImageError
from robvit.drawing.images import encoded
from robvit.errors import InputError, RobvitError, Unsupported
from robvit.registry import unknown

T = TypeVar("T")
KEPT_SIDE = 448  # pixels of an upload that are kept; more than any model here looks at


class TimeLimit(RobvitError):
    """A request that took longer than allowed."""


class VisitorLeft(Exception):
    """The visitor left; what is computed for them stops at the next pass."""


@dataclass(frozen=True)
class Limits:
    """What a visitor may request."""

    steps: int = 100
    eps: int = 32
    seconds: float = 60.0
    upload_bytes: int = 10_000_000
    upload_pixels: int = 25_000_000
    waiting: int = 32


@dataclass(frozen=True)
class _Message(Generic[T]):
    content: T | None = None
    error: BaseException | None = None
    last: bool = False


@dataclass(frozen=True)
class Playground:
    """The models, the limits, and the lock that one request at a time holds."""

    models: dict[str, PlaygroundModel]
    limits: Limits = field(default_factory=Limits)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def decoder(self) -> Decoder:
        """Decodes uploads, in processes of its own."""
        return Decoder(max_pixels=self.limits.upload_pixels)

    def model(self, request: AttackRequest) -> PlaygroundModel:
        """The model of a request; whatever is not allowed is refused."""
        if request.model not in self.models:
            raise unknown("model", request.model, list(self.models))
        model = self.models[request.model]
        if request.attack not in model.attacks:
            raise unknown(f"attack on {model.name}", request.attack, model.attacks)
        if request.tokens not in model.tokens:
            raise InputError(f"{model.name} has no tokens here; choose another model, or tokens off")
        for name in ("eps", "steps"):
            value, most = getattr(request, name), getattr(self.limits, name)
            if type(value) is not int or not 1 <= value <= most:
                raise InputError(f"{name} must be a whole number from 1 to {most}, got {value!r}")
        return model

    def upload(self, data: bytes) -> InputImage:
        """The middle of an uploaded image, as a square; what is too large or no image is refused."""
        if len(data) > self.limits.upload_bytes:
            most = self.limits.upload_bytes // 1_000_000
            raise ImageError(f"it has {len(data) / 1e6:.1f} MB, at most {most} MB are taken; make it smaller")
        try:
            return InputImage(encoded(self.decoder.decode(data, KEPT_SIDE, "crop", enlarge=False)))
        except DecoderBusy:
            raise ImageError("many large images are being read; try again, or a smaller one") from None

    def attack(self, request: AttackRequest) -> Iterator[Step | Result]:
        """The attack step by step, then its result."""
        model = self.model(request)
        return self._stream(lambda update: run_attack(model, request, update))

    def sweep(self, request: AttackRequest) -> Iterator[Sweep]:
        """The same attack at one budget after the other, each with an image of its own."""
        model = self.model(request)
        return self._stream(lambda update: run_sweep(model, request, update))

    def certificate(self, request: AttackRequest) -> Iterator[PatchMap]:
        """Where on the image no patch can change the label; a model that has no such proof is refused."""
        model = self.model(request)
        if model.uncertifiable:
            raise Unsupported(model.uncertifiable)
        return self._stream(lambda update: run_certificate(model, request))

    def _stream(self, work: Callable[[Callable[[T], None]], T]) -> Iterator[T]:
        """The updates of `work`, the newest where the visitor is slow, and its result in the end.

        It runs in a thread of its own, after those before it, until its time is up or its visitor leaves.
        """
        messages: queue.SimpleQueue[_Message[T]] = queue.SimpleQueue()
        left = threading.Event()

        def compute() -> None:
            try:
                with self.lock:
                    end = time.monotonic() + self.limits.seconds

                    def update(content: T) -> None:
                        if left.is_set():
                            raise VisitorLeft
                        if time.monotonic() > end:
                            raise TimeLimit(
                                f"this took longer than {self.limits.seconds:g} seconds and was stopped; "
                                "try fewer steps or a smaller model"
                            )
                        messages.put(_Message(content))

                    messages.put(_Message(work(update), last=True))
            except BaseException as error:
                messages.put(_Message(error=error, last=True))

        threading.Thread(target=compute, daemon=True, name="robvit-request").start()
        try:
            while True:
                message = messages.get()
                while not message.last and not messages.empty():
                    message = messages.get()
                if message.error is not None:
                    raise message.error
                assert message.content is not None
                yield message.content
                if message.last:
                    return
        finally:
            left.set()
