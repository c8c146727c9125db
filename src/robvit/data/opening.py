"""The one door to every dataset: which images are chosen, and which are broken.

How people ask for a dataset, such as `sample` or `imagenet-a:/data/imagenet-a`, is in `robvit.specs`.
Broken images are found when a set is opened, not when it is read: a dataset whose length or whose
indices change on the way could never be resumed, compared or named by a digest. So opening decodes
every image once, cheaply, and leaves the broken ones out, counted and named in `skipped`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from robvit import plugins
from robvit.data import imagenet
from robvit.data.arrays import from_arrays, from_items
from robvit.data.catalog import DATASETS
from robvit.data.dataset import ImageDataset, Listing
from robvit.data.decode import RESIZE_MODES
from robvit.data.folders import NoSplits
from robvit.data.sampling import balanced_order
from robvit.data.shapes import Scenes
from robvit.errors import DataError, InputError
from robvit.files import given_path, read_text
from robvit.progress import progress
from robvit.registry import unknown
from robvit.specs import CORRUPTION, PARTS, parse_spec

LEARN, HELD_OUT = PARTS
HELD_SHARE = 0.2
MOST_SIDE = 4096  # of images that a record may have anyone make
HUB = "hf"  # the dataset that is fetched from the hub


class SkippedImages(UserWarning):
    """Some images could not be decoded and were left out."""


def open_data(
    spec: str | Path,
    *,
    split: str | None = None,
    size: int | None = None,
    resize: str = "squash",
    limit: int | None = None,
    subset: str | Path | Sequence[str] | None = None,
    seed: int = 0,
    check: bool = True,
    corruption: str = "",
) -> ImageDataset:
    """Open a dataset as images (3 H W) in [0,1] with labels or masks (H W).

    spec: a name from `DATASETS`, a name with a place ("imagenet:PATH"), a folder, an image file, or
        "module:function", which is imported and called as those of `DATASETS` are.
    split: "train", "test" or "val"; the test or validation split if left out, never the training split. Of a
        folder without splits "learn" or "held-out": always the same four fifths, and the other fifth.
    size: the side in pixels of square images; as they are stored if left out.
    resize: "squash" to a square, or "crop" the middle, as for ImageNet.
    limit: how many images are drawn, class-balanced where possible; a smaller limit is the beginning of a
        larger one.
    subset: "robustbench-5000", a file with one image name a line, or the names.
    seed: decides which images a limit draws.
    check: decode every image once now and leave broken ones out; if not, they are errors when read.
    corruption: "fog:3" or another of `CORRUPTIONS`, with a severity of 1 to 5.
    """
    asked = str(spec).partition("?")[0].partition(":")[0]
    if asked not in DATASETS and plugins.is_offered(DATASETS.kind, asked):
        DATASETS.entry(asked)  # of an installed package: filed now, its options are known
    name, place, options = parse_spec(spec, dataset_options())
    corruption = options.pop(CORRUPTION, corruption)
    opener = DATASETS[name]
    for option in options:
        if option not in (known := dataset_options()[name]):  # of module:function, imported just now
            raise unknown(f"option of {name}", option, [*known, CORRUPTION])
    divided = split in PARTS and _is_undivided(name, place, options)
    listing = opener(place, None if divided else split, **options)
    if not listing.names:
        raise DataError(f"{spec} holds no images")
    images = ImageDataset(listing, list(range(len(listing.names))))
    if divided:
        images = _fixed_part(images, split == HELD_OUT)
    chosen = _select(images, names=_subset_names(subset), limit=limit, seed=seed, check=check)
    chosen = replace(chosen, spec=str(spec), split=split or "")
    return chosen.resized(size, resize).corrupted(corruption)


def recorded_images(
    data: Mapping[str, Any], place: str | None = None, size: int | None = None
) -> ImageDataset:
    """The images that a record names in its `data`, of a side of `size` or as it says, from `place` if given.

    The record may be a stranger's: whatever stands there, they are opened or refused in words.
    """
    names, side = data.get("names"), data.get("size")
    resize = data.get("resize") or "squash"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError("the record does not name its images")
    if not (side is None or (type(side) is int and 0 < side <= MOST_SIDE)) or resize not in RESIZE_MODES:
        raise DataError(f"the record says that images were made square by {resize!r} to {side!r} pixels")
    return open_data(
        place or recorded_spec(data.get("spec")),
        split=str(data.get("split") or "") or None,
        size=size or side,
        resize=resize,
        subset=names,
        check=False,
    )


def recorded_spec(spec: object) -> str:
    """Where a record says that its images are, if looking there runs no code and asks no network.

    A record may be a stranger's, and module:function is looked for in the working folder too.
    """
    text = str(spec or "")
    head = text.partition("?")[0]
    name, _, place = head.partition(":")
    known = name in DATASETS.names or plugins.is_offered(DATASETS.kind, name)
    if plugins.is_spec(head) and not known:
        raise DataError(f"a record does not make anyone run code, and {head} is a function of somebody's")
    if name == HUB:
        raise DataError("a record does not make anyone fetch images from the hub")
    if any(path.startswith(("//", "\\\\")) for path in (head, place)):
        raise DataError("a record does not make anyone ask another machine for images")
    return text


def _adopt(name: str, function: Callable[..., Any]) -> None:
    """File a function of somebody's: it may return a listing, (images, labels), a dataset or a loader."""

    @functools.wraps(function)
    def listed(place: str, split: str | None, **options: Any) -> Listing:
        found = function(place, split, **options)
        if isinstance(found, Listing):
            return found
        images = from_arrays(*found) if isinstance(found, tuple) else from_items(found)
        return images.listing

    DATASETS.add(name, about=inspect.getdoc(function) or "", example=name)(listed)


DATASETS.adopt = _adopt


def open_to_learn(spec: str | Path, split: str | None = None, **options: Any) -> ImageDataset:
    """Labelled images to learn from: the training split, or four fifths of a folder without splits."""
    try:
        return open_data(spec, split=split or "train", **options)
    except NoSplits:
        if split is not None:
            raise
        return open_data(spec, split=LEARN, **options)


def _is_undivided(name: str, place: str, options: dict[str, str]) -> bool:
    """Whether it is a folder without splits."""
    try:
        DATASETS[name](place, "train", **options)
    except NoSplits:
        return True
    return False


def _fixed_part(images: ImageDataset, held_out: bool) -> ImageDataset:
    """The fifth of the images that is kept to judge on, drawn class by class by a fixed seed, or the rest."""
    kept = set(images.balanced_order(0)[: max(1, round(HELD_SHARE * len(images)))])
    part = images.take(i for i in range(len(images)) if (i in kept) == held_out)
    if not len(part):
        name, count = HELD_OUT if held_out else LEARN, len(images)
        raise DataError(
            f"the folder has {count} image{'s' * (count != 1)}, which leaves none for {name!r}; add images, "
            "five or more"
        )
    return part


def dataset_options() -> dict[str, list[str]]:
    """Every dataset's name with the options that may follow its question mark."""
    found = {}
    for entry in DATASETS:
        parameters = inspect.signature(entry.value).parameters.values()
        found[entry.name] = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return found


def _subset_names(subset: str | Path | Sequence[str] | None) -> list[str] | None:
    if subset is None:
        return None
    if not isinstance(subset, str | Path):
        return list(subset)
    if str(subset) == imagenet.ROBUSTBENCH:
        return imagenet.robustbench_list()
    path = given_path(subset)
    if not path.is_file():
        raise DataError(f"expected {imagenet.ROBUSTBENCH} or a file with one image name a line, got {subset}")
    names = [line.strip() for line in read_text(path, "a list of names").splitlines() if line.strip()]
    if not names:
        raise DataError(f"{path} names no images")
    return names


def _select(
    images: ImageDataset, *, names: list[str] | None, limit: int | None, seed: int, check: bool
) -> ImageDataset:
    """The chosen images that decode: those named, or all, then at most `limit` drawn by the seed.

    Those that do not decode, or are in formats that are not read, are counted and named in one warning.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be 1 or more, got {limit}; leave it out to take every image")
    if names is not None:
        images = images.take(_named(images, names))
    images = replace(images, available=len(images))
    if not check or isinstance(images.listing.images, torch.Tensor | Scenes):
        return images.take(islice(_order(images, limit, seed, lambda index: True), limit))
    skipped = dict(images.listing.unread) if names is None else {}
    total = min(limit or len(images), len(images))
    with progress("checking images", total=total, unit="images") as advance:

        def usable(index: int) -> bool:
            flaw = images.flaw(index)
            if flaw:
                skipped[images.listing.names[images.indices[index]]] = flaw
            else:
                advance()
            return not flaw

        chosen = images.take(islice(_order(images, limit, seed, usable), limit))
    if skipped:
        _warn_of(skipped, len(chosen))
    return replace(chosen, skipped=skipped)


def _order(
    images: ImageDataset, limit: int | None, seed: int, usable: Callable[[int], bool]
) -> Iterator[int]:
    """The usable images, as they stand where all are wanted, else as the seed draws them."""
    if limit is None:
        return filter(usable, range(len(images)))
    return balanced_order(images.names, images.labels, seed, usable)


def _named(images: ImageDataset, names: list[str]) -> list[int]:
    """The indices of the named images; every one must be there."""
    indices = {name: i for i, name in enumerate(images.names)}
    missing = [name for name in names if name not in indices]
    if missing:
        raise DataError(
            f"{len(missing)} of the subset's {len(names)} images are not in the dataset, "
            f"the first is {missing[0]!r}; the dataset's names look like {images.names[0]!r}"
        )
    if len(set(names)) < len(names):
        raise DataError(
            f"the subset names {len(names) - len(set(names))} images twice; remove the repetitions"
        )
    return [indices[name] for name in names]


def _warn_of(skipped: dict[str, str], left: int) -> None:
    """Warn of the images left out, or refuse if none are left."""
    if not left:
        name, flaw = next(iter(skipped.items()))
        raise DataError(f"none of the {len(skipped)} images can be decoded; the first, {name}: {flaw}")
    shown = "; ".join(f"{name}: {flaw}" for name, flaw in islice(skipped.items(), 3))
    more = f"; and {len(skipped) - 3} more in .skipped" if len(skipped) > 3 else ""
    count = f"{len(skipped)} of {len(skipped) + left} images were skipped"
    warnings.warn(f"{count} ({shown}{more})", SkippedImages, stacklevel=4)  # at the line that opened the set
