"""Which images: those a protocol judges on, and those from which attackers learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from robvit.attacks.core import Prepared, prepared
from robvit.data import ImageDataset, from_arrays, from_items, open_data
from robvit.data.opening import open_to_learn
from robvit.errors import DataError, InputError
from robvit.evaluation.classifiers import Classifier, aligned
from robvit.evaluation.protocol import Subset
from robvit.processes import processes
from robvit.progress import Log, silent

Arrays = tuple[Any, Any]  # images and labels, as `from_arrays` takes them
Data = str | Path | ImageDataset | Dataset[Any] | DataLoader[Any] | Arrays


def judged_images(
    data: Data, subset: Subset, *, split: str | None, limit: int | None, log: Log = silent
) -> ImageDataset:
    """The images a protocol wants, or fewer, drawn as `open_data` draws; a pinned list is compared.

    Where the limit leaves some out, `log` hears of how many.
    """
    most = min([n for n in (subset.count, limit) if n is not None], default=None)
    if not isinstance(data, str | Path):
        data = as_dataset(data)
    if isinstance(data, ImageDataset):
        images, there = _drawn(data, most, subset.seed), len(data)
    else:
        images = open_data(data, split=split, limit=most, seed=subset.seed)
        there = images.available
    if limit is not None and limit < there:
        log(f"{len(images):,} of {there:,} images are judged; for all of them: --limit {there}")
    if subset.digest is not None and images.digest() != subset.digest:
        raise DataError(
            f"the protocol is for the images with digest {subset.digest[:12]}, these have "
            f"{images.digest()[:12]}; names, labels and order must agree"
        )
    return images


def as_dataset(data: ImageDataset | Dataset[Any] | DataLoader[Any] | Arrays) -> ImageDataset:
    """Images that a program holds as a dataset of ours."""
    if isinstance(data, ImageDataset):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return from_arrays(*data)
    if isinstance(data, DataLoader) or hasattr(data, "__getitem__"):
        return from_items(data)
    raise InputError(
        f"data must be a name, a folder, (images, labels), a dataset or a loader, got {type(data).__name__}"
    )


def public_images(
    public: Data | None,
    data: Data,
    judged: ImageDataset,
    *,
    split: str | None,
    taken: Set[str] = frozenset(),
) -> Callable[[int], ImageDataset]:
    """Images of attackers who learn, at most so many; never those on which is judged, nor those `taken`.

    `taken` are the defender's. Unless others are given, attackers have the last to be drawn of the judged
    data's training part: whoever hardens a model with a part of it has the first ones.
    """

    def some(count: int) -> ImageDataset:
        source = data if public is None else public
        if not isinstance(source, str | Path):
            source = as_dataset(source)
        if isinstance(source, ImageDataset):
            if public is None:
                raise InputError("attackers who learn need images of their own; give public=")
            free = [place for place in source.balanced_order(0) if source.names[place] not in taken]
            found = source.take(free[:count])
        else:
            try:
                found = _free(source, count, split, taken) if public else _last_free(source, count, taken)
            except DataError as error:
                raise InputError(
                    f"attackers who learn need images of their own: {error}; give --public"
                ) from error
        if not len(found):
            raise InputError("all images there are for attackers are the defender's; give others: --public")
        if common := set(found.names) & set(judged.names):
            raise InputError(f"attackers may not learn from judged images ({min(common)}); give --public")
        return found.resized(judged.size, judged.resize)

    return some


def learned_settings(
    attack: str,
    settings: dict[str, Any],
    classifier: Classifier,
    public: Callable[[int], ImageDataset],
) -> Prepared:
    """An attack's settings with what it learns first on images that are not judged, if it learns anything."""
    device = processes().device

    def batches(count: int, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        try:
            images = public(count)
        except InputError as error:
            raise InputError(
                f"{attack} learns from training images: {error}; or fit on the attacked ones, --set fit=batch"
            ) from error
        for x, y in aligned(classifier, images).batches(size):
            yield x.to(device), y.to(device)

    return prepared(attack, classifier.net.to(device), settings, batches)


def _free(spec: str | Path, count: int, split: str | None, taken: Set[str]) -> ImageDataset:
    """The first images to be drawn that are not taken."""
    if not taken:
        return open_data(spec, split=split, limit=count)
    listed = open_data(spec, split=split, check=False)
    names = (listed.names[index] for index in listed.balanced_order(0))
    return open_data(spec, split=split, subset=[n for n in names if n not in taken][:count])


def _last_free(spec: str | Path, count: int, taken: Set[str]) -> ImageDataset:
    """The last images to learn from, in the order in which `open_data` draws, that are not taken."""
    listed = open_to_learn(spec, check=False)
    names = (listed.names[index] for index in reversed(listed.balanced_order(0)))
    return open_to_learn(spec, subset=[n for n in names if n not in taken][:count])


def _drawn(images: ImageDataset, most: int | None, seed: int) -> ImageDataset:
    if most is None or most >= len(images):
        return images
    return images.take(images.balanced_order(seed)[:most])
