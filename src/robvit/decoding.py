"""Image files to 8-bit RGB, by Pillow alone: what the processes that decode images from strangers import.

`robvit.data.decode` gives the same pixels as tensors and says what is decided here. From the network fewer
formats are read (`NETWORK_FORMATS`), and a JPEG with more than `MAX_SCANS` scans is refused: each scan of a
few bytes costs as much as decoding the whole image. Nothing here allocates by what metadata promises.
"""

from __future__ import annotations

import io
import math
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from robvit.errors import DataError

MAX_PIXELS = 100_000_000
MAX_BYTES = 8 * MAX_PIXELS  # no file of so many pixels is larger
CROP_SHARE = 0.875  # of the shorter side, what an ImageNet evaluation keeps
MAX_ASPECT = 32
MAX_SCANS = 32  # encoders write about ten
MAX_METADATA = 1_000_000  # bytes; camera thumbnails and colour profiles are smaller
STRIP = 256  # rows that are converted at once

# Only formats that are plain pixels: Pillow would hand EPS to an outside program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
NETWORK_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")  # a TIFF's tags take memory before its header is seen
_EXIF_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ImageError(DataError):
    """An image that cannot be decoded right: the reason, and the file's name where it has one."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason, name)
        self.reason, self.name = reason, name

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.name else self.reason


@contextmanager
def opened(
    source: str | Path | bytes, max_pixels: int, formats: tuple[str, ...] = FORMATS
) -> Iterator[Image.Image]:
    """Open an image after looking at its header; whatever goes wrong inside becomes an ImageError."""
    name = "" if isinstance(source, bytes) else Path(source).name
    try:
        data = source if isinstance(source, bytes) else _bytes(Path(source))
        if not data:
            raise ImageError("the file is empty")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata; the pixels alone decide
            with Image.open(io.BytesIO(data), formats=formats) as image:
                _check_header(image, max_pixels)
                yield image
    except ImageError as error:
        raise ImageError(error.reason, name) from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"refused as a decompression bomb ({error})", name) from None
    except UnidentifiedImageError:
        raise ImageError(f"not an image in any of the formats {', '.join(formats)}", name) from None
    except FileNotFoundError:
        raise ImageError(f"no such file: {source!s}", name) from None
    except MemoryError:
        raise ImageError("takes more memory to decode than there is", name) from None
    except Exception as error:  # decoders fail in every way there is, IndexError and zlib.error included
        raise ImageError(str(error) or type(error).__name__, name) from error


def check_scans(data: bytes) -> int:
    """The scans of a JPEG, 1 for other formats; raises ImageError for too many, or too much metadata."""
    if not data.startswith(b"\xff\xd8"):
        return 1
    scans, metadata, exif, place = 0, 0, 0, 2
    marker = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")  # in a scan, a byte ff is followed by 00 or d0-d7
    while (found := marker.search(data, place)) and found[1] != b"\xd9":
        length = int.from_bytes(data[found.end() : found.end() + 2], "big")
        scans += found[1] == b"\xda"
        metadata += length if found[1] >= b"\xe0" else 0
        exif += found[1] == b"\xe1" and data.startswith(b"Exif\0\0", found.end() + 2)
        place = found.end() + max(length, 1)
        if scans > MAX_SCANS:
            raise ImageError(f"a JPEG may have at most {MAX_SCANS} scans; save it with fewer, or as a PNG")
        if metadata > MAX_METADATA or exif > 1:  # Pillow joins several pieces of EXIF and reads every tag
            raise ImageError(f"metadata may have at most {MAX_METADATA:,} bytes, one EXIF; save without it")
    return max(1, scans)


def upright(image: Image.Image) -> Image.Image:
    """The image as its metadata says it is to be held."""
    if image.format == "TIFF":  # its orientation is one of its own tags
        return ImageOps.exif_transpose(image)
    turn = _TURNS.get(orientation(image))
    return image if turn is None else image.transpose(turn)


def orientation(image: Image.Image) -> int:
    """The orientation, 1 to 8, in EXIF or XMP; 1 where there is none.

    Pillow would read every tag into memory, and thousands of tags can share the same megabyte.
    """
    if image.format == "TIFF":
        return int(image.getexif().get(_EXIF_ORIENTATION, 1))
    if image.format == "PNG" and "exif" not in image.info:
        image.load()  # it may lie behind the pixels
    exif = image.info.get("exif") or b""
    if not exif and isinstance(profile := image.info.get("Raw profile type exif"), str):
        digits = "".join(profile.split("\n")[3:])
        exif = bytes.fromhex(digits) if re.fullmatch(r"([0-9a-fA-F]{2})*", digits) else b""
    found = _exif_orientation(exif.removeprefix(b"Exif\0\0"))
    if found is not None:
        return found
    xmp = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp") or b""
    match = re.search(rb'tiff:Orientation(="|>)([0-9])', xmp.encode() if isinstance(xmp, str) else xmp)
    return int(match[2]) if match else 1


def _exif_orientation(exif: bytes) -> int | None:
    """The orientation in the first directory of EXIF data, if it is there."""
    if len(exif) < 8 or exif[:2] not in (b"II", b"MM"):
        return None
    order = "little" if exif[:2] == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(exif[at : at + size], order)  # type: ignore[arg-type]

    first = number(4, 4)
    for entry in range(first + 2, min(len(exif) - 11, first + 2 + 12 * number(first, 2)), 12):
        if number(entry, 2) == _EXIF_ORIENTATION and number(entry + 2, 2) == 3 and number(entry + 4, 4) == 1:
            return number(entry + 8, 2)
    return None


def to_rgb(image: Image.Image) -> Image.Image:
    """What the image shows, as 8-bit RGB; decodes it if that has not happened yet."""
    image.load()
    if image.mode.startswith("I"):
        return _from_wide_grey(image)
    if image.mode == "F":
        return _from_floats(image)
    if image.has_transparency_data:
        return _over_white(image)
    return image.convert("RGB")


def fit(image: Image.Image, size: int, resize: str) -> Image.Image:
    """Make an image a square: RGB smoothly, anything else, a mask, by the nearest pixel.

    "squash" resizes both sides; "crop" brings the shorter side to size / 0.875 and keeps the middle.
    """
    smooth = Image.Resampling.BILINEAR if image.mode == "RGB" else Image.Resampling.NEAREST
    if resize == "squash":
        return image if image.size == (size, size) else image.resize((size, size), smooth)
    target, shorter = math.floor(size / CROP_SHARE), min(image.size)
    image = _middle(image, MAX_ASPECT * shorter)  # or a strip one pixel high would become gigabytes
    width, height = image.size
    resized = image.resize((target * width // shorter, target * height // shorter), smooth)
    return _middle(resized, size)


def _middle(image: Image.Image, most: int) -> Image.Image:
    """The middle of an image, at most `most` high and wide."""
    width, height = image.size
    left, top = (max(0, round((side - most) / 2)) for side in (width, height))
    return image.crop((left, top, min(width, left + most), min(height, top + most)))


def _bytes(path: Path) -> bytes:
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):  # a pipe or a device, say, whose end may never come
        raise ImageError("not a regular file")
    if about.st_size > MAX_BYTES:
        raise ImageError(f"the file has {about.st_size:,} bytes, at most {MAX_BYTES:,} are read")
    return path.read_bytes()


def _check_header(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"refused as a decompression bomb: {width} x {height} pixels, at most {max_pixels:,} are allowed"
        )
    if width * height == 0:
        raise ImageError(f"has no pixels ({width} x {height})")


def _over_white(image: Image.Image) -> Image.Image:
    """Lay an image with transparency over white, strip by strip: copies of the whole take much memory."""
    seen = Image.new("RGB", image.size)
    for top in range(0, image.height, STRIP):
        strip = image.crop((0, top, image.width, min(top + STRIP, image.height))).convert("RGBA")
        white = Image.new("RGBA", strip.size, "white")
        seen.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
    return seen


def _from_wide_grey(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey; Pillow would clip it, which turns most of such an image white."""
    grey = np.asarray(image)
    if grey.min() < 0 or grey.max() > 65535:
        raise ImageError(
            f"expected 16-bit grey values in 0..65535, got {grey.min()}..{grey.max()}; "
            "what is white in such an image cannot be known, so convert it to 8 bits first"
        )
    scaled = np.empty(grey.shape, np.uint8)
    for top in range(0, len(grey), STRIP):
        scaled[top : top + STRIP] = (grey[top : top + STRIP].astype(np.int64) + 128) // 257
    return Image.fromarray(scaled).convert("RGB")


def _from_floats(image: Image.Image) -> Image.Image:
    grey = np.asarray(image)
    if not (grey.min() >= 0 and grey.max() <= 1):  # also catches NaN
        raise ImageError(
            f"expected float grey values in [0,1], got [{grey.min():g}, {grey.max():g}]; "
            "convert the image to 8 bits first"
        )
    return Image.fromarray((grey * 255).round().astype(np.uint8)).convert("RGB")
