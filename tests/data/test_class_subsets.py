"""Classes of ImageNet drawn by a seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from robvit.data import imagenet, open_data
from robvit.errors import DataError, InputError

IDS = list(imagenet.labels_by_id())


def write(root: Path, folders: list[str], count: int = 1) -> None:
    for folder in folders:
        (root / folder).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (4, 4), (i, 0, 0)).save(root / folder / f"{i}.png")


@pytest.mark.slow
def test_a_hundred_classes_are_the_same_for_every_split_and_another_seed_draws_others(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / split, IDS[::5])
    parts = {split: open_data(f"imagenet-100:{tmp_path}", split=split) for split in ("train", "val")}
    train, val = parts["train"], parts["val"]
    assert train.classes == val.classes
    assert len(train.classes) == 100
    assert 5 < len(train) == len(val) < 50  # a fifth of the 1,000 classes is in the folder
    names = imagenet.class_names()
    for name, label in zip(train.names, train.labels, strict=True):
        assert train.classes[label] == names[imagenet.labels_by_id()[name.split("/")[0]]]
    other = open_data(f"imagenet-100:{tmp_path}?seed=1", split="val")
    assert other.classes != val.classes
    few = open_data(f"imagenet-100:{tmp_path}?classes=1000", split="val")
    assert len(few) == 200
    with pytest.raises(InputError, match="expected 2 to 1000 classes, got 1"):
        open_data(f"imagenet-100:{tmp_path}?classes=1", split="val")
    with pytest.raises(InputError, match="seed must be a whole number"):
        open_data(f"imagenet-100:{tmp_path}?seed=x", split="val")


def test_a_folder_of_classes_without_any_that_were_drawn_is_refused(tmp_path: Path) -> None:
    write(tmp_path, IDS[:1])
    with pytest.raises(DataError, match="none of the 2 classes that seed 0 draws"):
        open_data(f"imagenet-100:{tmp_path}?classes=2")
