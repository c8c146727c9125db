"""Every kind of image file, by its values."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from robvit.data import IGNORE, ImageError, read_image
from robvit.data.decode import MaskValues, check_image, fit, image_size, read_mask

RNG = np.random.default_rng(0)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixel(data: bytes, row: int = 0, column: int = 0) -> list[int]:
    return read_image(data)[:, row, column].tolist()


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG written by hand, for kinds that Pillow cannot write."""

    def chunk(tag: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def test_rgb_keeps_every_value_and_its_place() -> None:
    values = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = read_image(encoded(Image.fromarray(values)))
    assert image.dtype == torch.uint8
    assert image.shape == (3, 5, 7)
    assert torch.equal(image.permute(1, 2, 0), torch.from_numpy(values))


def test_grey_and_one_bit() -> None:
    assert pixel(encoded(Image.new("L", (2, 2), 77))) == [77] * 3
    black_and_white = Image.fromarray(np.array([[True, False]]))
    assert pixel(encoded(black_and_white), 0, 0) == [255] * 3
    assert pixel(encoded(black_and_white), 0, 1) == [0] * 3


def test_palette_shows_its_colours_not_its_numbers() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    assert pixel(encoded(image), 0, 0) == [10, 20, 30]
    assert pixel(encoded(image), 0, 1) == [200, 100, 50]
    assert pixel(encoded(image, transparency=0), 0, 0) == [255] * 3
    assert pixel(encoded(image, transparency=0), 0, 1) == [200, 100, 50]


def test_transparency_is_laid_over_white() -> None:
    assert pixel(encoded(Image.new("RGBA", (2, 2), (9, 9, 9, 0)))) == [255] * 3
    assert pixel(encoded(Image.new("RGBA", (2, 2), (9, 8, 7, 255)))) == [9, 8, 7]
    half = pixel(encoded(Image.new("RGBA", (2, 2), (0, 100, 200, 128))))
    assert half == pytest.approx([127, 177, 227], abs=1)
    assert pixel(encoded(Image.new("LA", (2, 2), (40, 0)))) == [255] * 3
    assert pixel(encoded(Image.new("LA", (2, 2), (40, 255)))) == [40] * 3
    assert pixel(encoded(Image.new("RGB", (2, 2), (1, 2, 3)), transparency=(1, 2, 3))) == [255] * 3


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (257, 1), (25700, 100), (65535, 255), (300, 1)])
def test_sixteen_bit_grey_is_scaled_not_clipped(value: int, expected: int) -> None:
    image = Image.fromarray(np.full((2, 2), value, np.uint16))
    for kind in ("PNG", "TIFF"):
        assert pixel(encoded(image, kind)) == [expected] * 3


def test_sixteen_bit_portable_grey() -> None:
    data = b"P5\n2 1\n65535\n" + struct.pack(">HH", 25700, 65535)
    assert pixel(data, 0, 0) == [100] * 3
    assert pixel(data, 0, 1) == [255] * 3


def test_sixteen_bit_colour_and_grey_with_alpha() -> None:
    colour = png(1, 1, 16, 2, b"\0" + struct.pack(">HHH", 0x1234, 0x8000, 0xFFFF))
    assert pixel(colour) == [0x12, 0x80, 0xFF]
    alpha = png(1, 1, 16, 4, b"\0" + struct.pack(">HH", 0x5000, 0xFFFF))
    assert pixel(alpha) == [0x50] * 3


def test_floats_in_the_unit_interval_or_refused() -> None:
    def tiff(value: float) -> bytes:
        return encoded(Image.fromarray(np.full((2, 2), value, np.float32)), "TIFF")

    assert pixel(tiff(0.5)) == [128] * 3
    assert pixel(tiff(1.0)) == [255] * 3
    for wrong in (2.0, -0.1, float("nan")):
        with pytest.raises(ImageError, match="float grey"):
            read_image(tiff(wrong))


def test_thirty_two_bit_grey_is_refused() -> None:
    with pytest.raises(ImageError, match="16-bit"):
        read_image(encoded(Image.fromarray(np.full((2, 2), 70000, np.int32)), "TIFF"))


def test_cmyk_has_the_right_sign() -> None:
    paper = Image.new("CMYK", (16, 16), (0, 0, 0, 0))
    cyan = Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    for kind in ("JPEG", "TIFF"):  # Pillow writes JPEG the way Adobe does, inverted
        assert min(pixel(encoded(paper, kind))) >= 250
        assert pixel(encoded(cyan, kind)) == pytest.approx([0, 255, 255], abs=6)


def test_ycck_jpeg_has_the_right_colours() -> None:
    data = encoded(Image.new("CMYK", (16, 16), (0, 0, 255, 0)), "JPEG")  # stored inverted: 255 255 0 255
    transform = data.index(b"Adobe") + 11
    ycck = data[:transform] + b"\x02" + data[transform + 1 :]
    # The same numbers as Y Cb Cr K: red 255 + 1.402 (0 - 128) = 76, green and blue beyond 255; these
    # are the complements of CMY, which Adobe stores inverted once more.
    assert pixel(ycck) == pytest.approx([255 - 76, 0, 0], abs=6)


def test_exif_orientation_is_applied() -> None:
    values = np.zeros((2, 4, 3), np.uint8)
    values[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    data = encoded(Image.fromarray(values), "PNG", exif=exif)
    assert read_image(data).shape == (3, 4, 2)
    assert image_size(data) == (4, 2)
    assert pixel(data, 0, 1) == [255] * 3


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    for kind in ("GIF", "WEBP"):
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
        assert pixel(data) == pytest.approx([250, 0, 0], abs=8)


NOISE = Image.fromarray(RNG.integers(0, 256, (64, 64, 3), dtype=np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_truncated_images_are_refused(kind: str) -> None:
    data = encoded(NOISE, kind)
    check_image(data)
    for refuse in (read_image, check_image):
        with pytest.raises(ImageError):
            refuse(data[: len(data) // 2])


def test_progressive_jpeg_cut_short_is_found_by_the_quick_check() -> None:
    data = encoded(NOISE, "JPEG", progressive=True)
    with pytest.raises(ImageError, match="truncated"):
        check_image(data[: len(data) // 3])


def test_what_is_not_a_image_is_refused_by_name(tmp_path: Path) -> None:
    for name, data, reason in [
        ("empty.jpg", b"", "empty"),
        ("text.png", b"hello there", "not an image"),
        ("print.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    ]:
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ImageError, match=f"{name}: .*{reason}"):
            read_image(path)
    with pytest.raises(ImageError, match="no such file"):
        read_image(tmp_path / "nowhere.png")
    with pytest.raises(ImageError):
        read_image(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no such pipes")
def test_what_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero"), tmp_path):
        with pytest.raises(ImageError, match="not a regular file"):
            read_image(path)


def test_a_decompression_bomb_is_refused_before_decoding() -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    for side in (9_700, 10_100, 60_000):  # Pillow warns of the first; its own error comes at the last
        bomb = png(side, side, 8, 0, b"\0")
        with pytest.raises(ImageError, match="decompression bomb" if side > 10_000 else "truncated"):
            read_image(bomb)
    with pytest.raises(ImageError, match="at most 99 are"):
        read_image(encoded(Image.new("RGB", (10, 10))), max_pixels=99)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


HEADS = [
    encoded(Image.new("RGB", (9, 9), "red"), kind) for kind in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP")
]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from([b"", *HEADS]), st.integers(0, 400), st.binary(max_size=120))
def test_any_bytes_are_a_image_or_refused(head: bytes, keep: int, junk: bytes) -> None:
    data = head[:keep] + junk + head[keep + len(junk) :]
    try:
        image = read_image(data, max_pixels=100_000)
    except ImageError:
        return
    assert image.dtype == torch.uint8
    assert image.ndim == 3
    assert image.shape[0] == 3
    check_image(data, max_pixels=100_000)


def test_squash_and_crop_are_torchvision_on_pillow() -> None:
    from torchvision import transforms

    values = RNG.integers(0, 256, (50, 83, 3), dtype=np.uint8)
    image, pixels = Image.fromarray(values), torch.from_numpy(values).permute(2, 0, 1)
    squash = transforms.Compose([transforms.Resize((28, 28)), transforms.PILToTensor()])
    assert torch.equal(fit(pixels, 28, "squash"), squash(image))
    for size in (28, 35, 112):
        crop = [transforms.Resize(int(size / 0.875)), transforms.CenterCrop(size), transforms.PILToTensor()]
        assert torch.equal(fit(pixels, size, "crop"), transforms.Compose(crop)(image))


def test_a_strip_does_not_become_gigabytes() -> None:
    assert fit(torch.zeros(3, 1, 90_000, dtype=torch.uint8), 224, "crop").shape == (3, 224, 224)


def test_mask_values(tmp_path: Path) -> None:
    path = tmp_path / "m.png"
    Image.fromarray(np.array([[0, 1, 150, 255]], np.uint8)).save(path)
    assert read_mask(path, MaskValues(150, first=1, void=0)).tolist() == [[IGNORE, 0, 149, IGNORE]]
    with pytest.raises(ImageError, match=r"mask value 150 .*0\.\.10"):
        read_mask(path, MaskValues(11, void=77))
    palette = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "L").convert("P")
    palette.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    palette.putdata([0, 1, 2])
    palette.save(path)
    assert read_mask(path, MaskValues(2, void=2)).tolist() == [[0, 1, IGNORE]]
    Image.new("RGB", (2, 2)).save(path)
    with pytest.raises(ImageError, match="one whole number"):
        read_mask(path, MaskValues(2))


def test_masks_are_resized_without_new_classes() -> None:
    mask = torch.tensor([[0, 9], [9, 255]], dtype=torch.uint8)
    for resize in ("squash", "crop"):
        resized = fit(mask, 7, resize)
        assert resized.shape == (7, 7)
        assert set(resized.unique().tolist()) <= {0, 9, 255}
