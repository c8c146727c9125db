"""A process that decodes images from strangers: bytes come in by its standard input, pixels go out.

It has a limit on memory, no torch and no secret, and ends with the process that started it.
`robvit.data.decoder` starts it, gives it a deadline and replaces it. A frame is a length of four bytes and
that many bytes; a job is two frames (settings as JSON, the image), an answer is a letter and a frame.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from PIL import BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from robvit.decoding import NETWORK_FORMATS, ImageError, check_scans, fit, opened, to_rgb, upright

PIXELS, REFUSED, LARGE = b"P", b"E", b"L"  # what an answer begins with
PLUGINS = (BmpImagePlugin, GifImagePlugin, JpegImagePlugin, PngImagePlugin, WebPImagePlugin)  # loaded, warm
SCANS_AS_PIXELS = 4  # scans that cost as much as one of an image's first decoding


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame, or None where the stream has ended."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack(">I", head)
    body = stream.read(length)
    return body if len(body) == length else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(struct.pack(">I", len(body)))
    stream.write(body)


def answer(data: bytes, job: dict[str, Any]) -> tuple[bytes, bytes]:
    """An image as height, width and RGB bytes, fitted as the job says; or why not."""
    try:
        scans = check_scans(data)
        with opened(data, job["max_pixels"], NETWORK_FORMATS) as image:
            cost = image.width * image.height * (1 + scans // SCANS_AS_PIXELS)
            if job["large_from"] is not None and cost > job["large_from"]:
                return LARGE, b""
            pixels = to_rgb(upright(image))
            size = job["size"] if job["enlarge"] else min(job["size"], *pixels.size)
            fitted = fit(pixels, size, job["resize"])
            return PIXELS, struct.pack(">II", fitted.height, fitted.width) + fitted.tobytes()
    except ImageError as error:
        return REFUSED, str(error).encode("utf-8", "replace")
    except MemoryError:
        return REFUSED, b"takes more memory to decode than there is"


def limit_memory(more: int) -> None:
    """Let this process have `more` bytes than it has now, where the system knows such limits."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main(memory: int, seconds: int, niceness: int) -> None:
    """Decode one image after the other, until the input ends."""
    limit_memory(memory)
    if hasattr(os, "nice"):
        os.nice(niceness)
    given, out = sys.stdin.buffer, sys.stdout.buffer
    while (settings := read_frame(given)) is not None and (data := read_frame(given)) is not None:
        if hasattr(signal, "alarm"):  # should nobody be left to end what takes too long
            signal.alarm(seconds)
        kind, body = answer(data, json.loads(settings))
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        out.write(kind)
        write_frame(out, body)
        out.flush()
        del data, body  # or they would stay until the next image comes


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
