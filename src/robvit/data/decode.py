"""Image files to 8-bit RGB: every mode decoded to what people see, anything else refused by name.

What is decided here, once:

- EXIF orientation is applied; of an animation the first frame counts.
- Transparency is laid over white, because the colours stored under transparent pixels are arbitrary.
- 16-bit grey is scaled to 8 bits (value / 257), never clipped; floats must lie in [0,1].
- Colour profiles are ignored, as every common training pipeline ignores them.
- A header that promises more than `MAX_PIXELS` is refused before anything is decoded.

Pillow's global settings are neither changed nor relied upon.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from robvit.errors import IGNORE, DataError

MAX_PIXELS = 100_000_000
MAX_BYTES = 8 * MAX_PIXELS  # no file of so many pixels is larger
RESIZE_MODES = ("squash", "crop")
CROP_SHARE = 0.875  # of the shorter side, what an ImageNet evaluation keeps
MAX_ASPECT = 32
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
)

# Only formats that are plain pixels: Pillow would hand EPS to an outside program.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_EXIF_ORIENTATION = 0x0112


class ImageError(DataError):
    """An image that cannot be decoded right: the reason, and the file's name where it has one."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason, name)
        self.reason, self.name = reason, name

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}" if self.name else self.reason


@dataclass(frozen=True)
class MaskValues:
    """How a mask file's values are meant: class k is stored as `first + k`, `void` is no class."""

    classes: int
    first: int = 0
    void: int = IGNORE


def read_image(source: str | Path | bytes, *, max_pixels: int = MAX_PIXELS) -> torch.Tensor:
    """The image in a file, or in a file's bytes, as uint8 RGB (3 H W)."""
    with _opened(source, max_pixels) as image:
        pixels = np.array(_to_rgb(ImageOps.exif_transpose(image)))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def check_image(source: str | Path | bytes, *, max_pixels: int = MAX_PIXELS) -> None:
    """Raise what `read_image` would raise, sooner.

    A JPEG is decoded at an eighth of its size: all of its data is read, little of it is computed.
    """
    with _opened(source, max_pixels) as image:
        image.draft(None, (1, 1))
        _to_rgb(ImageOps.exif_transpose(image))


def image_size(source: str | Path | bytes) -> tuple[int, int]:
    """(H, W) as `read_image` would return it, from the header alone."""
    with _opened(source, MAX_PIXELS) as image:
        width, height = image.size
        turned = image.getexif().get(_EXIF_ORIENTATION, 1) >= 5
    return (width, height) if turned else (height, width)


def read_mask(path: Path, values: MaskValues) -> torch.Tensor:
    """The class of every pixel, uint8 (H W), with `IGNORE` where there is none."""
    raw = read_mask_values(path)
    labels = raw - values.first
    void = (raw == values.void) | (raw == IGNORE)
    wrong = ~void & ((labels < 0) | (labels >= values.classes))
    if wrong.any():
        raise ImageError(
            f"mask value {int(raw[wrong][0])} is neither one of the {values.classes} classes "
            f"({values.first}..{values.first + values.classes - 1}) nor void ({values.void})",
            path.name,
        )
    return torch.from_numpy(np.where(void, IGNORE, labels).astype(np.uint8))


def read_mask_values(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The whole numbers stored in a mask file (H W); a palette's numbers, not its colours."""
    with _opened(path, MAX_PIXELS) as image:
        raw = np.asarray(image)
        if raw.ndim != 2 or raw.dtype.kind not in "ubi":
            raise ImageError(f"expected a mask with one whole number a pixel, got a {image.mode} image")
    return raw.astype(np.int64)


def fit(pixels: torch.Tensor, size: int | None, resize: str) -> torch.Tensor:
    """Make uint8 pixels a square: an image (3 H W) smoothly, a mask (H W) by the nearest pixel.

    "squash" resizes both sides; "crop" brings the shorter side to size / 0.875 and keeps the middle.
    Pillow resizes, so the pixels are those of the published pipelines, bit for bit.
    """
    if size is None or (resize == "squash" and pixels.shape[-2:] == (size, size)):
        return pixels
    if resize == "squash":
        return _resize(pixels, size, size)
    target, shorter = math.floor(size / CROP_SHARE), min(pixels.shape[-2:])
    pixels = _middle(pixels, MAX_ASPECT * shorter)  # or a strip one pixel high would become gigabytes
    height, width = pixels.shape[-2:]
    return _middle(_resize(pixels, target * height // shorter, target * width // shorter), size)


def _middle(pixels: torch.Tensor, most: int) -> torch.Tensor:
    """The middle of the pixels, at most `most` high and wide."""
    height, width = pixels.shape[-2:]
    top, left = (max(0, round((side - most) / 2)) for side in (height, width))
    return pixels[..., top : top + most, left : left + most]


def _resize(pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
    image = pixels.ndim == 3
    pil_image = Image.fromarray((pixels.permute(1, 2, 0) if image else pixels).numpy())
    filtered = Image.Resampling.BILINEAR if image else Image.Resampling.NEAREST
    resized = torch.from_numpy(np.array(pil_image.resize((width, height), filtered)))
    return resized.permute(2, 0, 1) if image else resized


@contextmanager
def _opened(source: str | Path | bytes, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image after looking at its header; whatever goes wrong inside becomes a ImageError."""
    name = "" if isinstance(source, bytes) else Path(source).name
    try:
        data = source if isinstance(source, bytes) else _bytes(Path(source))
        if not data:
            raise ImageError("the file is empty")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of odd metadata; the pixels alone decide
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                _check_header(image, max_pixels)
                yield image
    except ImageError as error:
        raise ImageError(error.reason, name) from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"refused as a decompression bomb ({error})", name) from None
    except UnidentifiedImageError:
        raise ImageError(f"not an image in any of the formats {', '.join(_FORMATS)}", name) from None
    except FileNotFoundError:
        raise ImageError(f"no such file: {source!s}", name) from None
    except Exception as error:  # decoders fail in every way there is, IndexError and zlib.error included
        raise ImageError(str(error) or type(error).__name__, name) from error


def _bytes(path: Path) -> bytes:
    if (size := path.stat().st_size) > MAX_BYTES:
        raise ImageError(f"the file has {size:,} bytes, at most {MAX_BYTES:,} are read")
    return path.read_bytes()


def _check_header(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"refused as a decompression bomb: {width} x {height} pixels, at most {max_pixels:,} are allowed"
        )
    if width * height == 0:
        raise ImageError(f"has no pixels ({width} x {height})")


def _to_rgb(image: Image.Image) -> Image.Image:
    """What the image shows, as 8-bit RGB; decodes it if that has not happened yet."""
    image.load()
    if image.mode.startswith("I"):
        return _from_wide_grey(image)
    if image.mode == "F":
        return _from_floats(image)
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return image.convert("RGB")


def _from_wide_grey(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey; Pillow would clip it, which turns most of such an image white."""
    grey = np.asarray(image).astype(np.int64)
    if grey.min() < 0 or grey.max() > 65535:
        raise ImageError(
            f"expected 16-bit grey values in 0..65535, got {grey.min()}..{grey.max()}; "
            "what is white in such an image cannot be known, so convert it to 8 bits first"
        )
    return Image.fromarray(((grey + 128) // 257).astype(np.uint8)).convert("RGB")


def _from_floats(image: Image.Image) -> Image.Image:
    grey = np.asarray(image)
    if not (grey.min() >= 0 and grey.max() <= 1):  # also catches NaN
        raise ImageError(
            f"expected float grey values in [0,1], got [{grey.min():g}, {grey.max():g}]; "
            "convert the image to 8 bits first"
        )
    return Image.fromarray((grey * 255).round().astype(np.uint8)).convert("RGB")
