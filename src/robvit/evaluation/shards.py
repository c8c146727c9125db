"""The files of a job: a shard holds one batch of adversarial images and what became of each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.files import sha256, written_whole
from robvit.tensor_files import read_tensors, tensors_sha256


@dataclass(frozen=True)
class Shard:
    """One finished batch: adversarial images, uint8 (B 3 H W), and the facts of each image's outcome.

    A job that makes no images of its own keeps none. Where there are masks, `counts` and `clean_counts`
    (B K K) are of the pixels. `attention` (B 2 h w), uint8, is where the judged model's class token looks,
    before and after the attack.
    """

    adv: torch.Tensor
    facts: dict[str, Any]
    counts: torch.Tensor | None = None
    clean_counts: torch.Tensor | None = None
    attention: torch.Tensor | None = None


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"shard-{index:05d}.safetensors"


def shard_files(folder: Path) -> list[Path]:
    """The shards of a folder in order."""
    return sorted(folder.glob("shard-*.safetensors"))


def folder_sha256(folder: Path) -> str:
    """One checksum of all shards of a folder: their names and contents."""
    lines = [f"{path.name} {sha256(path)}\n" for path in shard_files(folder)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_shards(folder: Path, count: int) -> Iterator[Shard]:
    """All finished shards in order; only one is in memory at a time."""
    for index in range(count):
        with safe_open(shard_path(folder, index), "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            yield Shard(**tensors, facts=json.loads(file.metadata()["facts"]))


def read_images(folder: Path, index: int) -> torch.Tensor:
    """The adversarial images (B 3 H W) of one shard, in [0,1]."""
    with safe_open(shard_path(folder, index), "pt") as file:
        adv: torch.Tensor = file.get_tensor("adv")
    return adv.float() / 255


def write_shard(path: Path, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
    with written_whole(path) as aside:
        text = json.dumps(facts)
        save_file(tensors, aside, {"facts": text, "sha256": _checksum(tensors, text)})


def finished(path: Path, images: ImageDataset) -> dict[str, Any] | None:
    """The facts of a whole shard of these very pixels and labels; any other is made again."""
    if not path.exists():
        return None
    try:
        tensors, about = read_tensors(path, "a shard")
        whole = about.get("sha256") == _checksum(tensors, about["facts"])
        facts: dict[str, Any] = json.loads(about["facts"])
        same = facts["clean"] == pixels_sha256(*images.tensors())
    except (InputError, KeyError, TypeError, ValueError):
        return None
    return facts if whole and same else None


def pixels_sha256(x: torch.Tensor, y: torch.Tensor) -> str:
    """Names images (B 3 H W) with their labels or masks by their very values."""
    return tensors_sha256({"x": x, "y": y})


def _checksum(tensors: dict[str, torch.Tensor], facts: str) -> str:
    """Names all that a shard holds."""
    return hashlib.sha256(f"{tensors_sha256(tensors)} {facts}".encode()).hexdigest()
