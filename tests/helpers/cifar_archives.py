"""CIFAR in miniature, as each of its sources packs it."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robvit import fetch
from robvit.data import cifar
from robvit.errors import CannotFetch
from robvit.tensor_files import tensors_sha256

RNG = np.random.default_rng(0)


EACH = {"train": 5, "test": 1}  # images a class in the miniature


def parts() -> dict[str, tuple[np.ndarray, list[int]]]:
    """Images (N 3 32 32) and labels: five training batches of ten, one test batch of ten."""
    rng = np.random.default_rng(1)
    return {
        split: (rng.integers(0, 256, (10 * each, 3, 32, 32), dtype=np.uint8), [*range(10)] * each)
        for split, each in EACH.items()
    }


def python2_text(text: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(text)) + text


def python2_batch(images: np.ndarray, labels: list[int], label_key: bytes = b"labels") -> bytes:
    """The pickle that Python 2 wrote for a batch, opcode by opcode."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + python2_text(b"b") + b"\x87R"
        b"(K\x01" + b"".join(b"J" + struct.pack("<i", side) for side in (len(images), 3072)) + b"\x86"
        b"cnumpy\ndtype\n" + python2_text(b"u1") + b"K\x00K\x01\x87R"
        b"(K\x03" + python2_text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89" + python2_text(images.tobytes()) + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + python2_text(b"data") + array + python2_text(label_key) + numbers + b"u."


def python2_names(names: list[str], key: bytes = b"label_names") -> bytes:
    items = b"".join(python2_text(name.encode()) for name in names)
    return b"\x80\x02}(" + python2_text(key) + b"](" + items + b"eu."


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def torchvision_like() -> dict[str, bytes]:
    found = parts()
    members = {"cifar-10-batches-py/batches.meta": python2_names(cifar.CIFAR10_CLASSES)}
    (x, y), (x_test, y_test) = found["train"], found["test"]
    for i in range(5):
        rows = slice(10 * i, 10 * i + 10)
        members[f"cifar-10-batches-py/data_batch_{i + 1}"] = python2_batch(x[rows], y[rows])
    members["cifar-10-batches-py/test_batch"] = python2_batch(x_test, y_test)
    return members


def npm_like() -> dict[str, bytes]:
    """Each row of a sprite is one image: its pixels one after another."""
    members = {}
    for split, (images, labels) in parts().items():
        members[f"package/{split}_lables.json"] = json.dumps(labels).encode()
        for i in range(len(images) // 10):
            rows = images[10 * i : 10 * i + 10].transpose(0, 2, 3, 1).reshape(10, 1024, 3)
            file = io.BytesIO()
            Image.fromarray(rows).save(file, "PNG")
            name = f"data_batch_{i + 1}" if split == "train" else "test_batch"
            members[f"package/{name}.png"] = file.getvalue()
    return members


@pytest.fixture
def mini(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> cifar.Cifar:
    """A CIFAR-10 of 60 images; no test touches the network or the user's cache."""
    expected = {
        split: tensors_sha256({"images": torch.from_numpy(x), "labels": torch.tensor(y, dtype=torch.uint8)})
        for split, (x, y) in parts().items()
    }
    small = replace(cifar.SETS["cifar10"], per_class=EACH, sha256=expected)
    monkeypatch.setitem(cifar.SETS, "cifar10", small)
    monkeypatch.setenv("ROBVIT_CACHE", str(tmp_path / "cache"))

    def unreachable(address: str, path: Path) -> Path:
        raise CannotFetch("cannot be reached (no network in tests)")

    monkeypatch.setattr(cifar, "download", unreachable)
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    monkeypatch.setattr(cifar, "with_digest", lambda path, expected, kind: path)
    return small
