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

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from robvit import decoding
from robvit.decoding import MAX_PIXELS, ImageError, opened, to_rgb, upright
from robvit.errors import IGNORE

RESIZE_MODES = ("squash", "crop")
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
)


@dataclass(frozen=True)
class MaskValues:
    """How a mask file's values are meant: class k is stored as `first + k`, `void` is no class."""

    classes: int
    first: int = 0
    void: int = IGNORE


def read_image(source: str | Path | bytes, *, max_pixels: int = MAX_PIXELS) -> torch.Tensor:
    """The image in a file, or in a file's bytes, as uint8 RGB (3 H W)."""
    with opened(source, max_pixels) as image:
        pixels = np.array(to_rgb(upright(image)))
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def check_image(source: str | Path | bytes, *, max_pixels: int = MAX_PIXELS) -> None:
    """Raise what `read_image` would raise, sooner.

    A JPEG is decoded at an eighth of its size: all of its data is read, little of it is computed.
    """
    with opened(source, max_pixels) as image:
        image.draft(None, (1, 1))
        to_rgb(upright(image))


def image_size(source: str | Path | bytes) -> tuple[int, int]:
    """(H, W) as `read_image` would return it, from the header alone."""
    with opened(source, MAX_PIXELS) as image:
        width, height = image.size
        turned = 5 <= decoding.orientation(image) <= 8
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
    with opened(path, MAX_PIXELS) as image:
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
    image = pixels.ndim == 3
    pil_image = Image.fromarray((pixels.permute(1, 2, 0) if image else pixels).numpy())
    fitted = torch.from_numpy(np.array(decoding.fit(pil_image, size, resize)))
    return fitted.permute(2, 0, 1) if image else fitted
