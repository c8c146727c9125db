"""Images from strangers: the same pixels as everywhere, in processes that cannot do harm."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from helpers.bombs import BOMBS, encoded, exif_bomb, many_scans, png
from robvit.data import decoder as module
from robvit.data.decode import fit, read_image
from robvit.data.decoder import Decoder, DecoderBusy
from robvit.decoding import ImageError, check_scans, upright

RNG = np.random.default_rng(0)
REFUSED = {
    "PNG, promises 400 megapixels": "decompression bomb",
    "JPEG, 2000 scans": "at most 32 scans",
    "TIFF": "formats JPEG, PNG, BMP, GIF, WEBP$",
}
LINUX = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux about processes")


def noise(*shape: int) -> Image.Image:
    return Image.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8))


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    one = Decoder(max_pixels=25_000_000, seconds=120)  # the machine may be busy
    one.open()
    yield one
    one.close()


@pytest.mark.parametrize("resize", ["squash", "crop"])
@pytest.mark.parametrize(
    "data",
    [
        encoded(noise(40, 61, 3), "PNG"),
        encoded(noise(300, 61, 4), "PNG"),
        encoded(noise(40, 61, 3), "JPEG"),
        encoded(noise(40, 61, 4), "WEBP", lossless=True),
        encoded(noise(40, 61), "GIF"),
        encoded(noise(40, 61, 3), "BMP"),
        encoded(noise(700, 11).convert("P"), "PNG", transparency=3),
        png(2, 300, 16, 0, b"".join(b"\0" + os.urandom(4) for _ in range(300))),
        encoded(noise(1100, 1000, 3), "PNG"),
    ],
    ids=["png", "alpha", "jpeg", "webp", "gif", "bmp", "palette", "16 bits", "large"],
)
def test_pixels_are_those_of_files(decoder: Decoder, data: bytes, resize: str) -> None:
    expected = fit(read_image(data), 32, resize).permute(1, 2, 0).numpy()
    assert np.array_equal(decoder.decode(data, 32, resize), expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("turned", range(10))
def test_an_image_is_turned_as_pillow_turns_it(kind: str, turned: int) -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    exif[0x0112] = turned
    with Image.open(io.BytesIO(encoded(noise(8, 16, 3), kind, exif=exif))) as image:
        expected = ImageOps.exif_transpose(image)
        assert np.array_equal(np.asarray(upright(image)), np.asarray(expected))


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_or_decoded_and_the_next_image_is_too(decoder: Decoder, name: str) -> None:
    if name in REFUSED:
        with pytest.raises(ImageError, match=REFUSED[name]):
            decoder.decode(BOMBS[name](), 32, "squash")
    else:  # no more than is allowed
        assert decoder.decode(BOMBS[name](), 32, "squash").shape == (32, 32, 3)
    assert decoder.decode(encoded(noise(9, 9, 3), "PNG"), 9, "squash").shape == (9, 9, 3)


def test_scans_and_metadata_are_counted_before_anything_is_decoded() -> None:
    with pytest.raises(ImageError, match="at most 32 scans"):
        check_scans(many_scans(64, 40))
    assert check_scans(many_scans(64, 3)) > 3
    assert check_scans(encoded(noise(9, 9, 3), "JPEG")) == 1
    plain = encoded(noise(9, 9, 3), "JPEG")
    piece = b"\xff\xe1" + (60_002).to_bytes(2, "big")
    with pytest.raises(ImageError, match="metadata"):
        check_scans(plain[:2] + (piece + b"Exif\0\0" + bytes(59_994)) * 2 + plain[2:])
    with pytest.raises(ImageError, match="metadata"):
        check_scans(plain[:2] + (piece + bytes(60_000)) * 20 + plain[2:])


def test_nine_megabytes_of_exif_are_not_read(decoder: Decoder) -> None:
    start = time.monotonic()
    assert decoder.decode(exif_bomb(), 4, "squash").shape == (4, 4, 3)
    assert time.monotonic() - start < 5  # reading every tag takes tens of gigabytes


@pytest.mark.slow
def test_memory_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_PER_PIXEL", 0)
    monkeypatch.setattr(module, "SPARE_MEMORY", 40_000_000)
    one = Decoder(max_pixels=25_000_000, seconds=120)  # the machine may be busy
    with pytest.raises(ImageError, match="memory"):
        one.decode(BOMBS["PNG, 24 megapixels with alpha"](), 32, "squash")
    assert one.decode(encoded(noise(9, 9, 3), "PNG"), 9, "squash").shape == (9, 9, 3)
    one.close()


def pid(worker: module._Worker) -> int:
    assert worker._process is not None
    return worker._process.pid


@pytest.mark.slow
@LINUX
def test_what_takes_too_long_is_killed_and_replaced() -> None:
    small = encoded(noise(9, 9, 3), "PNG")
    one = Decoder(max_pixels=1000, seconds=3)
    one.decode(small, 9, "squash")
    stuck = pid(one._small)
    os.kill(stuck, signal.SIGSTOP)
    with pytest.raises(ImageError, match="more than 3 seconds"):
        one.decode(small, 9, "squash")
    assert one.decode(small, 9, "squash").shape == (9, 9, 3)
    assert pid(one._small) != stuck
    os.kill(pid(one._small), signal.SIGKILL)
    with suppress(ImageError):  # it may have begun before the process was found dead
        one.decode(small, 9, "squash")
    assert one.decode(small, 9, "squash").shape == (9, 9, 3)
    one.close()


@LINUX
def test_large_images_keep_no_small_one_waiting_and_are_bounded() -> None:
    large, small = encoded(Image.new("L", (1200, 1200)), "PNG"), encoded(noise(9, 9, 3), "PNG")
    one = Decoder(max_pixels=25_000_000, waiting=1, seconds=60)
    one.open()
    os.kill(pid(one._large), signal.SIGSTOP)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(one.decode(large, 9, "squash").shape))
    waiting.start()
    end = time.monotonic() + 30
    while one._waiting._value and time.monotonic() < end:
        time.sleep(0.01)
    for _ in range(3):
        assert one.decode(small, 9, "squash").shape == (9, 9, 3)
    with pytest.raises(DecoderBusy):
        one.decode(large, 9, "squash")
    os.kill(pid(one._large), signal.SIGCONT)
    waiting.join(60)
    assert answers == [(9, 9, 3)]
    one.close()


@pytest.mark.slow
@LINUX
def test_the_processes_have_no_torch_and_no_secret_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBVIT_APP_PASSWORD", "correct horse battery")
    one = Decoder(max_pixels=1000)
    one.decode(encoded(noise(9, 9, 3), "PNG"), 9, "squash")
    process = Path(f"/proc/{pid(one._small)}")
    assert "torch" not in (process / "maps").read_text()
    assert b"correct horse" not in (process / "environ").read_bytes()
    one.close()
    assert not process.exists()
    with pytest.raises(ImageError, match="shutting down"):
        one.decode(b"x", 9, "squash")
