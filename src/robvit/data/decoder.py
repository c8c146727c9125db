"""Images from strangers, decoded in processes with a limit on memory and a deadline.

Two processes are kept: one for images that take some milliseconds, one, less urgent, for the large ones, so
that nobody's large image keeps a small one waiting. The first looks at the header and says which it is.
What takes too long is killed, and its process replaced.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import robvit
from robvit.decode_worker import LARGE, PIXELS, read_frame, write_frame
from robvit.decoding import ImageError

LARGE_FROM = 1_000_000  # pixels that are decoded in some ten milliseconds
BYTES_PER_PIXEL = 24  # the most any format takes while it is decoded, turned and laid over white
SPARE_MEMORY = 200_000_000  # for the file itself, and for what every image takes
NICENESS = 10  # of the process for large images
# What a process needs of the environment; passwords and tokens lie there too.
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "PYTHONHOME", "LANG", "TMPDIR")


class DecoderBusy(Exception):
    """Too many large images wait already."""


class Decoder:
    """Processes that decode, for any number of threads; they start when first used, or by `open`."""

    def __init__(self, *, max_pixels: int, seconds: float = 10.0, waiting: int = 16) -> None:
        memory = SPARE_MEMORY + BYTES_PER_PIXEL * max_pixels
        self.max_pixels = max_pixels
        self._small = _Worker(memory, seconds, 0)
        self._large = _Worker(memory, seconds, NICENESS)
        self._waiting = threading.BoundedSemaphore(waiting)

    def open(self) -> None:
        """Start the processes, so that the first image finds them warm."""
        for worker in (self._small, self._large):
            worker.start()

    def close(self) -> None:
        """End the processes at once; whoever waits for them is refused."""
        for worker in (self._small, self._large):
            worker.close()

    def decode(self, data: bytes, size: int, resize: str, *, enlarge: bool = True) -> np.ndarray[Any, Any]:
        """An encoded image, fitted to a square, as uint8 (size size 3); raises ImageError, or DecoderBusy.

        Without `enlarge` the square is no larger than the image.
        """
        job = {"max_pixels": self.max_pixels, "size": size, "resize": resize, "enlarge": enlarge}
        kind, body = self._small.run(data, {**job, "large_from": LARGE_FROM})
        if kind == LARGE:
            if not self._waiting.acquire(blocking=False):
                raise DecoderBusy
            try:
                kind, body = self._large.run(data, {**job, "large_from": None})
            finally:
                self._waiting.release()
        if kind != PIXELS:
            raise ImageError(body.decode("utf-8", "replace"))
        height, width = struct.unpack(">II", body[:8])
        return np.frombuffer(body, np.uint8, offset=8).reshape(height, width, 3).copy()


class _Worker:
    """One process, one image at a time."""

    def __init__(self, memory: int, seconds: float, niceness: int) -> None:
        self._settings = [str(memory), str(int(seconds) + 2), str(niceness)]
        self._seconds = seconds
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self) -> None:
        with self._turn:
            self._running()

    def close(self) -> None:
        self._closed = True
        if self._process is not None:  # without a turn: who has it waits for this process
            self._process.kill()
        with self._turn:
            self._end()

    def run(self, data: bytes, job: dict[str, Any]) -> tuple[bytes, bytes]:
        """What the process answers, within the deadline."""
        with self._turn:
            if self._closed:
                raise ImageError("the decoder is shutting down; ask again later")
            process = self._running()
            late = threading.Event()

            def stop() -> None:
                late.set()
                process.kill()

            timer = threading.Timer(self._seconds, stop)
            timer.daemon = True
            timer.start()
            try:
                answer = _exchange(process, data, job)
            finally:
                timer.cancel()
            if answer is not None and not late.is_set():
                return answer
            self._end()
            if not self._closed:
                self._running()  # so that the next image finds it warm
            if late.is_set():
                raise ImageError(f"takes more than {self._seconds:g} seconds to decode")
            raise ImageError("the decoder broke on it; save it anew, as a PNG for example")

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, a new one where there is none or it has ended."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
            kept |= {"PYTHONPATH": str(Path(robvit.__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(  # noqa: S603  our own module, and numbers
                [sys.executable, "-P", "-m", "robvit.decode_worker", *self._settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=kept,
                start_new_session=True,  # Ctrl-C is for us; what was accepted is still decoded
            )
            self._finalizer = weakref.finalize(self, _reap, self._process)
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._finalizer()
            self._process = None


def _exchange(
    process: subprocess.Popen[bytes], data: bytes, job: dict[str, Any]
) -> tuple[bytes, bytes] | None:
    """A process's answer to a job, or None if it has died."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        write_frame(process.stdin, json.dumps(job).encode())
        write_frame(process.stdin, data)
        process.stdin.flush()
        kind = process.stdout.read(1)
        body = read_frame(process.stdout)
    except (OSError, ValueError):  # the pipe broke, or was closed
        return None
    return None if body is None else (kind, body)


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # of what could not be written before it died
                pipe.close()
