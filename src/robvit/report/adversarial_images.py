"""The adversarial images that a command left beside its record, as items of a gallery."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from safetensors import safe_open

from robvit.drawing.images import Pixels
from robvit.errors import InputError
from robvit.evaluation.originals import originals_of
from robvit.progress import Log
from robvit.record import Record, Trial
from robvit.report.gallery import GalleryItem, Map

Original = Callable[[int], Pixels]


@dataclass(frozen=True)
class AdversarialImages:
    """One item for each image: under the first attack that succeeds on it, else under the last one.

    `folders` maps the number of a trial to its folder of shards. Only one shard of each is in memory.
    """

    record: Record
    folders: dict[int, Path]
    original: Original | None = None

    def __len__(self) -> int:
        return len(self.record.trials[0].correct) if self.folders else 0

    def __iter__(self) -> Iterator[GalleryItem]:
        trials = self.record.trials
        skipped = {number: trials[number].not_attacked for number in self.folders}
        streams = {number: _images(folder) for number, folder in self.folders.items()}
        for index in range(len(self)):
            versions = {n: next(streams[n]) for n in streams if index not in skipped[n]}
            successes = [n for n in versions if not trials[n].correct[index]]
            number = (successes or list(versions)[-1:] or list(streams))[0]
            adversarial, attention = versions.get(number, (None, None))
            original = self.original(index) if self.original else None
            yield GalleryItem(index, number, adversarial, original, attention)


def images_beside(
    record: Record, folder: Path, images: str | None = None, *, log: Log = print
) -> AdversarialImages:
    """The images beside a record in its folder, with their originals if these can be had.

    The originals are looked for in `images`, or where the record says; `log` is told why there are none.
    """
    folders = shard_folders(record, folder)
    if not folders:
        return AdversarialImages(record, {})
    sides = (e.adversarial.shape[0] for e in AdversarialImages(record, folders) if e.adversarial is not None)
    side = next(sides, None)
    found = None if side is None else originals_of(record, side, images, log=log)
    return AdversarialImages(record, folders, found)


def shard_folders(record: Record, root: Path) -> dict[int, Path]:
    """The folders of shards below `root`, by the number of the trial that names them.

    A folder that is gone, or holds other images than the trial's, has none to show.
    """
    found: dict[int, Path] = {}
    for number, trial in enumerate(record.trials):
        folder = root / trial.shards
        inside = trial.shards and folder.resolve().is_relative_to(root.resolve())
        if inside and folder.is_dir() and _distances(folder) == _expected(trial):
            found[number] = folder
    return found


def _expected(trial: Trial) -> list[float]:
    skipped = trial.not_attacked
    return [distance for index, distance in enumerate(trial.distance) if index not in skipped]


def _distances(folder: Path) -> list[float]:
    """The distance of every image from its original; nothing where a folder holds no images."""
    found: list[float] = []
    for path in sorted(folder.glob("shard-*.safetensors")):
        try:
            with safe_open(path, "np") as file:
                facts = json.loads((file.metadata() or {})["facts"])
                adv = file.get_slice("adv")
                shape, kind = adv.get_shape(), adv.get_dtype()
                if shape[0] != len(facts["distance"]):
                    return []
                if shape[0] and (kind != "U8" or len(shape) != 4 or shape[1] != 3):
                    raise ValueError(f"images must be bytes (B 3 H W), got {kind} {shape}")
                found += facts["distance"]
        except Exception as error:  # it may hold anything
            raise InputError(f"{path} is not a shard that can be read: {error}; attack again") from error
    return found


def _images(folder: Path) -> Iterator[tuple[Pixels, Sequence[Map] | None]]:
    """The images of a folder's shards in order, uint8 (H W 3), each with its maps of attention."""
    for path in sorted(folder.glob("shard-*.safetensors")):
        with safe_open(path, "np") as file:
            images = file.get_tensor("adv").transpose(0, 2, 3, 1)
            maps = file.get_tensor("attention") if "attention" in file.keys() else repeat(None)  # noqa: SIM118
            yield from zip(images, maps, strict=False)
