"""Small files that cost much to decode, in every format that is taken from the network."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

from PIL import Image

SIDE = 4900  # 24 megapixels: just allowed


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG written by hand; `extra` chunks come before the pixels."""

    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", head), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*one) for one in chunks)


def many_scans(side: int = 2000, scans: int = 2000) -> bytes:
    """A progressive JPEG whose last scan is repeated: a few bytes, and the cost of the image, each time."""
    data = encoded(Image.new("RGB", (side, side), "grey"), "JPEG", progressive=True, quality=5)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + b"\xff\xd9"


def many_tags(tags: int, shared: int) -> bytes:
    """EXIF data of so many tags, all of them the same bytes."""
    directory = b"II*\0" + struct.pack("<IH", 8, tags)
    start = len(directory) + 12 * tags + 4
    entries = (struct.pack("<HHII", 0x8000 + i % 0x7000, 7, shared, start) for i in range(tags))
    return directory + b"".join(entries) + bytes(4 + shared)


def exif_bomb() -> bytes:
    """A PNG of one pixel with nine megabytes of EXIF, which would become gigabytes if every tag were read."""
    return png(1, 1, 8, 0, b"\0\0", (b"eXIf", many_tags(5_000, 8_900_000)))


def huge_header() -> bytes:
    """A PNG that promises 400 million pixels."""
    return png(20_000, 20_000, 1, 0, bytes(2_501 * 2_000))


def run_lengths() -> bytes:
    """A BMP of 24 megapixels in 200 kilobytes: every row is twenty pairs of a length and a colour."""
    row = bytes((255, 0)) * (SIDE // 255) + bytes((SIDE % 255, 0, 0, 0))
    rows = row * SIDE + b"\0\1"
    start = 14 + 40 + 4 * 256
    head = b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start)
    info = struct.pack("<IiiHHIIiiII", 40, SIDE, SIDE, 1, 8, 1, len(rows), 0, 0, 256, 0)
    return head + info + bytes(4 * 256) + rows


def many_frames(frames: int = 3000) -> bytes:
    """A GIF of 24 megapixels whose frames after the first are one pixel each."""
    first = encoded(Image.new("P", (SIDE, SIDE)), "GIF")
    block = b"\x2c" + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\2\2\x44\1\0"
    return first.removesuffix(b";") + block * frames + b";"


BOMBS: dict[str, Callable[[], bytes]] = {
    "PNG, promises 400 megapixels": huge_header,
    "PNG, 9 MB of EXIF": exif_bomb,
    "PNG, 24 megapixels with alpha": lambda: encoded(Image.new("RGBA", (SIDE, SIDE)), "PNG"),
    "PNG, 24 megapixels of 16 bits": lambda: encoded(Image.new("I;16", (SIDE, SIDE)), "PNG"),
    "JPEG, 2000 scans": many_scans,
    "JPEG, 24 megapixels, progressive": lambda: encoded(
        Image.new("RGB", (SIDE, SIDE)), "JPEG", progressive=True, subsampling=0
    ),
    "WebP, 24 megapixels with alpha": lambda: encoded(Image.new("RGBA", (SIDE, SIDE)), "WEBP", lossless=True),
    "GIF, 24 megapixels": lambda: encoded(Image.new("P", (SIDE, SIDE)), "GIF"),
    "GIF, 24 megapixels and 3000 frames": many_frames,
    "BMP, 24 megapixels in 200 kB": run_lengths,
    "BMP, 1 bit, 24 megapixels": lambda: encoded(Image.new("1", (SIDE, SIDE)), "BMP"),
    "TIFF": lambda: encoded(Image.new("L", (9, 9)), "TIFF"),
}
