"""Folders of images: one folder a class, no classes at all, or images beside masks."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

from robvit.data.dataset import Listing
from robvit.data.decode import SUFFIXES, MaskValues, read_mask_values
from robvit.data.sampling import balanced_order
from robvit.decoding import ImageError
from robvit.errors import IGNORE, DataError, InputError
from robvit.files import given_path
from robvit.progress import progress
from robvit.specs import SPLITS

EVALUATION_SPLITS = ("test", "val")
PETS_SEED = 37  # of the split of Oxford-IIIT Pet, which brings none of its own
MASK_FOLDERS = ("masks", "annotations", "labels")
# Formats of images that people have and robvit does not read; other files are none of its business.
UNREAD = frozenset(
    (".avif", ".cr2", ".dng", ".heic", ".heif", ".jp2", ".jpe", ".jxl", ".nef", ".psd", ".raw", ".tga")
)
WORDNET_ID = re.compile(r"n\d{8}(?![0-9])")


class NoSplits(DataError):
    """A folder that is not divided into splits, of which one was asked for."""


def existing_folder(path: str | Path) -> Path:
    """The folder of that name, which must be there."""
    folder = given_path(path)
    if not str(path):
        raise DataError(
            "this dataset needs a folder after the colon, as in imagenet:PATH; write ./NAME for a folder of "
            "images that is called like a dataset"
        )
    if not folder.is_dir():
        raise DataError(f"expected a folder of images, got {folder}, which {_what_is(folder)}")
    return folder


def images_below(root: Path) -> list[Path]:
    """Every image file under a folder, sorted; links are followed, hidden files are not images."""
    return _found_below(root)[0]


def _found_below(root: Path) -> tuple[list[Path], list[Path]]:
    """The image files under a folder, and those of formats that are not read, both sorted."""
    found: list[Path] = []
    visited: set[str] = set()
    for folder, inner, files in os.walk(root, followlinks=True):
        if (real := os.path.realpath(folder)) in visited:  # a link that leads back up
            inner.clear()
            continue
        visited.add(real)
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(folder, name) for name in files if _is_image_name(name, SUFFIXES | UNREAD)]
    found = [path for path in found if path.is_file()]
    found.sort(key=lambda path: path.relative_to(root).as_posix())
    for path in found:
        check_path(path)
    read = [path for path in found if _is_image_name(path.name)]
    return read, [path for path in found if not _is_image_name(path.name)]


def check_path(path: Path) -> None:
    """Refuse a path that is no text, which no record could name."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise DataError(
            f"expected names of files and folders in UTF-8, got {str(path)!r}; rename it"
        ) from None


def named(root: Path, paths: list[Path]) -> list[str]:
    """Names that mean the same on every machine: the paths below the root, with forward slashes."""
    return [path.relative_to(root).as_posix() for path in paths]


def split_folder(root: Path, split: str | None) -> Path:
    """The folder of a split: root/train for "train" or "training"; without one, that of test or validation.

    A folder without splits is evaluated on as a whole.
    """
    folders = _subfolders(root)
    splits = {name: folder for name, names in SPLITS.items() for folder in folders if folder.name in names}
    if split is None:
        only_splits = bool(folders) and len(splits) == len(folders)
        if not only_splits and "train" not in splits:  # then "test" may well be a class
            return root
        for name in EVALUATION_SPLITS:
            if name in splits:
                return splits[name]
        if only_splits:  # never evaluate on the training split unasked
            raise DataError(f"{root} has only a training split; ask for it by split='train' (--split train)")
        return root
    for folder in folders:
        if folder.name == split:
            return folder
    for name, names in SPLITS.items():
        if split in names and name in splits:
            return splits[name]
    inside = not Path(split).is_absolute() and ".." not in Path(split).parts
    if inside and (root / split).is_dir():
        return root / split
    known = ", ".join(folder.name for folder in folders[:20]) or "no folders"
    error = DataError if splits else NoSplits
    raise error(f"{root} has no split called {split!r}; it holds {known}")


def class_folders(root: Path) -> Listing:
    """One folder a class, numbered in the order of their names, as torchvision's ImageFolder does."""
    folders = _subfolders(root)
    if {folder.name for folder in folders} in [{"images", masks} for masks in MASK_FOLDERS]:
        raise DataError(
            f"{root} holds images beside masks, not one folder a class; open it as masks:PATH or "
            f"camvid:PATH, or give {root / 'images'} for the images alone"
        )
    names: list[str] = []
    paths: list[Path] = []
    labels: list[int] = []
    unread: dict[str, str] = {}
    for label, folder in enumerate(folders):
        inside, others = _found_below(folder)
        if not inside:
            why = f", its {len(others)} are in formats that are not read" if others else ""
            raise DataError(f"class folder {folder} holds no images{why}; fill it or remove it")
        names += [f"{folder.name}/{name}" for name in named(folder, inside)]
        paths += inside
        labels += [label] * len(inside)
        unread |= _reasons(root, others)
    return Listing(names, paths, labels=labels, classes=[folder.name for folder in folders], unread=unread)


def held_out(listing: Listing, share: str, split: str | None) -> Listing:
    """A part of a folder that has none: "test", the share of each class that is held out, or "train".

    Names alone decide, so that both parts are the same on every machine.
    """
    try:
        part = float(share)
    except ValueError:
        part = 0.0
    if not 0 < part < 1:
        raise InputError(f"test must be a share between 0 and 1, such as 0.25, got {share!r}")
    wanted = next((name for name, names in SPLITS.items() if (split or "test") in names), "")
    if wanted not in ("test", "train"):
        raise DataError(f"a folder divided by test={share} has the splits train and test, got {split!r}")
    labels = listing.labels or [0] * len(listing.names)
    chosen: list[int] = []
    for label in sorted(set(labels)):
        own = [i for i, other in enumerate(labels) if other == label]
        own.sort(key=lambda i: hashlib.sha256(listing.names[i].encode()).digest())
        count = max(1, round(part * len(own)))
        chosen += own[:count] if wanted == "test" else own[count:]
    if not chosen:
        raise DataError("every class has a single image, which is held out; none are left to learn from")
    chosen.sort()
    assert isinstance(listing.images, list)
    return replace(
        listing,
        names=[listing.names[i] for i in chosen],
        images=[listing.images[i] for i in chosen],
        labels=None if listing.labels is None else [labels[i] for i in chosen],
    )


def plain_folder(root: Path) -> Listing:
    """Images without labels."""
    paths, others = _found_below(root)
    if not paths:
        raise DataError(
            f"{root} holds no images; expected files ending in {' '.join(sorted(SUFFIXES))}, "
            "directly or in one folder for each class"
        )
    return Listing(named(root, paths), paths, unread=_reasons(root, others))


def is_flat(root: Path) -> bool:
    """Whether the images lie in the folder itself; a mixture is refused, for part of it would be lost."""
    folders = _subfolders(root)
    if not _has_loose_images(root):
        return not folders
    if filled := [folder.name for folder in folders if images_below(folder)]:
        raise DataError(
            f"{root} holds both images and folders of images ({', '.join(filled[:3])}); "
            "move the images into class folders, or the folders elsewhere"
        )
    return True


def masked_images(root: Path, split: str | None) -> tuple[list[str], list[Path], list[Path]]:
    """Names, images and masks: images/SPLIT + masks/SPLIT, SPLIT/images + SPLIT/masks, or no splits."""
    if (root / "images").is_dir():
        images, masks = root / "images", _mask_folder(root)
        if split is not None or not _has_loose_images(images):
            images = split_folder(images, split)
            masks = masks / images.name
    else:
        folder = split_folder(root, split)
        images, masks = folder / "images", _mask_folder(folder)
    paths = images_below(existing_folder(images))
    if not paths:
        raise DataError(f"{images} holds no images")
    return named(images, paths), paths, [_mask_of(path, images, masks) for path in paths]


def pets(root: Path, split: str, target: str) -> Listing:
    """Oxford-IIIT Pet, whose split is drawn here once and for all, breed by breed."""
    if target not in ("masks", "breeds"):
        raise InputError(f"target must be masks or breeds, got {target!r}")
    listing = class_folders(existing_folder(root / "images"))
    labels = listing.labels or []
    order = balanced_order(listing.names, labels, PETS_SEED)
    tested = set(islice(order, len(listing.names) // 4))
    places = [i for i in range(len(listing.names)) if (i in tested) == (split == "test")]
    names = [listing.names[i] for i in places]
    paths = [root / "images" / name for name in names]
    if target == "breeds":
        return Listing(names, paths, labels=[labels[i] for i in places], classes=listing.classes)
    masks = [_mask_of(path, root / "images", _mask_folder(root)) for path in paths]
    return mask_listing((names, paths, masks), MaskValues(2, first=1, void=3), ["pet", "background"])


def count_mask_classes(masks: list[Path], void: int) -> int:
    """One more than the largest class found in any readable mask."""
    largest = -1
    with progress("counting the masks' classes", total=len(masks), unit="masks") as advance:
        for path in masks:
            advance()
            try:
                values = read_mask_values(path)
            except ImageError:
                continue  # opening the set names and counts it
            values = values[(values != void) & (values != IGNORE)]
            largest = max(largest, int(values.max(initial=-1)))
    if not 0 <= largest < IGNORE:
        raise DataError(f"expected mask values in 0..{IGNORE - 1}, the largest is {largest}; 255 is void")
    return largest + 1


def mask_listing(
    found: tuple[list[str], list[Path], list[Path]], values: MaskValues, classes: list[str]
) -> Listing:
    """A set of images with masks, whose classes are numbered where nobody named them."""
    names, paths, masks = found
    numbered = [f"class {values.first + i}" for i in range(values.classes)]
    return Listing(names, paths, masks=masks, mask_values=values, classes=classes or numbered)


def _mask_folder(root: Path) -> Path:
    for name in MASK_FOLDERS:
        if (root / name).is_dir():
            return root / name
    raise DataError(f"expected masks in {root} in a folder called {' or '.join(MASK_FOLDERS)}, found none")


def _mask_of(image: Path, images: Path, masks: Path) -> Path:
    beside = masks / image.relative_to(images)
    for suffix in (".png", ".tif", ".bmp", ".gif"):  # lossless: JPEG would invent classes at every edge
        if (mask := beside.with_suffix(suffix)).is_file():
            return mask
    raise DataError(f"no mask for {image}; expected {beside.with_suffix('.png')}")


def _subfolders(root: Path) -> list[Path]:
    return sorted(
        entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__"))
    )


def _has_loose_images(folder: Path) -> bool:
    return any(entry.is_file() and _is_image_name(entry.name) for entry in folder.iterdir())


def _is_image_name(name: str, suffixes: frozenset[str] = SUFFIXES) -> bool:
    return Path(name).suffix.lower() in suffixes and not name.startswith(".")


def _reasons(root: Path, paths: list[Path]) -> dict[str, str]:
    """Why images of formats that are not read are left out, by their names."""
    return {name: f"{Path(name).suffix} is not read; convert it to PNG, say" for name in named(root, paths)}


def _what_is(path: Path) -> str:
    return "is a file" if path.is_file() else "does not exist"
