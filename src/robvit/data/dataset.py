"""Image sets: a map-style dataset of [0,1] images with stable names, labels or masks.

Broken images are found when a set is opened, not when it is read: a dataset whose length or whose
indices change on the way could never be resumed, compared or named by a digest. So opening decodes
every image once, cheaply, and leaves the broken ones out, counted and named in `skipped`.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset

from robvit.data.corruptions import corrupt, parse_corruption
from robvit.data.decode import (
    HOWS,
    ImageError,
    MaskValues,
    check_image,
    fit,
    image_size,
    read_image,
    read_mask,
)
from robvit.data.shapes import SIDE, Drawing, Drawings
from robvit.errors import DataError, InputError
from robvit.progress import progress

Stored: TypeAlias = Path | bytes | torch.Tensor | Drawing
Item: TypeAlias = tuple[torch.Tensor, int | torch.Tensor]

UNLABELLED = -1


class SkippedImages(UserWarning):
    """Some images could not be decoded and were left out."""


class Images(Protocol):
    """Anything that holds images by index: a list of paths, one uint8 tensor (N 3 H W), or drawings."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Stored: ...


@dataclass(frozen=True)
class Listing:
    """What an opener found; where images have masks, `mask_values` tells how they are meant.

    Masks lie in files, except those of drawings, which make their own.
    """

    names: list[str]
    images: Images
    labels: list[int] | None = None
    masks: list[Path] | None = None
    mask_values: MaskValues | None = None
    classes: list[str] = field(default_factory=list)
    class_map: list[int] | None = None


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset[Item]):
    """Images in [0,1]; item i is (x (3 H W), label) or (x, mask (H W)), label -1 where there is none.

    `skipped` maps the name of every image that was left out to the reason. `class_map`, where a set
    covers only some of a model's classes (ImageNet-A and -R), lists the logits to be compared.
    `corruption`, as "fog:3", is applied to every image at the size it is given out. `spec` and `split` are
    what `open_data` was asked for.
    """

    listing: Listing
    picks: list[int]
    size: int | None = None
    resize: str = "squash"
    corruption: str = ""
    spec: str = ""
    split: str = ""
    skipped: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.picks)

    def __getitem__(self, index: int) -> Item:
        place = self.picks[index]
        image, mask = self._read(place)
        resize = "squash" if isinstance(self.listing.images, Drawings) else self.resize  # already square
        x = fit(image, self.size, resize).float() / 255
        if self.corruption:
            x = corrupt(x, *parse_corruption(self.corruption), seed=_seed(self.listing.names[place]))
        if mask is not None:
            return x, fit(mask, self.size, resize).long()
        return x, self.listing.labels[place] if self.listing.labels else UNLABELLED

    @property
    def kind(self) -> str:
        """ "labels", "masks" or "none"."""
        if self.listing.mask_values is not None:
            return "masks"
        return "labels" if self.listing.labels is not None else "none"

    @property
    def classes(self) -> list[str]:
        return self.listing.classes

    @property
    def class_map(self) -> list[int] | None:
        return self.listing.class_map

    @property
    def names(self) -> list[str]:
        return [self.listing.names[i] for i in self.picks]

    @property
    def labels(self) -> list[int]:
        """One whole number an image; -1 where there is none."""
        return [self.listing.labels[i] if self.listing.labels else UNLABELLED for i in self.picks]

    def shape(self, index: int) -> tuple[int, int]:
        """(H, W) of a stored image, before any resizing."""
        stored = self.listing.images[self.picks[index]]
        if isinstance(stored, torch.Tensor):
            return stored.shape[-2], stored.shape[-1]
        if isinstance(stored, Drawing):
            return SIDE, SIDE
        return image_size(stored)

    def digest(self) -> str:
        """SHA-256 of the ordered names and labels and the corruption: it names the subset, not its pixels."""
        rows = list(zip(self.names, self.labels, strict=True))
        facts = [self.kind, rows, *filter(None, [self.corruption])]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def facts(self) -> dict[str, Any]:
        """What a record tells of its images: what was opened, which images, and how they were fitted."""
        return {
            "spec": self.spec,
            "split": self.split,
            "digest": self.digest(),
            "count": len(self),
            "names": self.names,
            "labels": self.labels,
            "classes": self.classes,
            "size": self.size,
            "resize": self.resize,
        }

    def take(self, indices: Iterable[int]) -> ImageDataset:
        """The images at these places, in this order."""
        return replace(self, picks=[self.picks[i] for i in indices])

    def sized(self, size: int | None, resize: str = "squash") -> ImageDataset:
        """The same images at another size: "squash" to a square, or "crop" the middle as for ImageNet."""
        if resize not in HOWS:
            raise InputError(f"resize must be one of {', '.join(HOWS)}, got {resize!r}")
        if size is not None and size < 1:
            raise InputError(f"size must be a number of pixels, 1 or more, got {size}")
        return replace(self, size=size, resize=resize)

    def corrupted(self, corruption: str) -> ImageDataset:
        """The same images under "fog:3" or another of `CORRUPTIONS`; with "" as they are.

        What is random depends on an image's name alone, not on the others or on the order.
        """
        if corruption:
            parse_corruption(corruption)
        return replace(self, corruption=corruption)

    def batches(
        self, size: int = 64, *, shuffle: bool = False, seed: int = 0, workers: int = 0
    ) -> DataLoader[Item]:
        """A loader of (x (B 3 H W), y (B,)), or y (B H W) for masks; the seed fixes a shuffled order."""
        order = torch.Generator().manual_seed(seed)
        return DataLoader(
            self, batch_size=size, shuffle=shuffle, generator=order, num_workers=workers, collate_fn=_stack
        )

    def arrays(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Everything at once, for sets that fit in memory: (x (N 3 H W), y (N,) or (N H W))."""
        return _stack([self[i] for i in range(len(self))])

    def _read(self, place: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One stored image, uint8 (3 H W), and its mask, uint8 (H W), where there is one."""
        stored = self.listing.images[place]
        if isinstance(stored, Drawing):
            return stored.draw(self.size or SIDE)
        image = stored if isinstance(stored, torch.Tensor) else read_image(stored)
        if self.listing.masks is None:
            return image, None
        assert self.listing.mask_values is not None
        path = self.listing.masks[place]
        mask = read_mask(path, self.listing.mask_values)
        if mask.shape != image.shape[1:]:
            sizes = f"the mask is {tuple(mask.shape)}, the image {tuple(image.shape[1:])}"
            raise ImageError(f"{sizes}; they must agree", path.name)
        return image, mask

    def _flaw(self, place: int) -> str:
        """Why the image cannot be used, or nothing."""
        try:
            if self.listing.masks is not None:
                self._read(place)
            elif isinstance(stored := self.listing.images[place], Path | bytes):
                check_image(stored)
        except ImageError as error:
            return error.reason
        return ""


def select(
    listing: Listing, *, names: list[str] | None, limit: int | None, seed: int, check: bool
) -> ImageDataset:
    """The chosen images that decode: those named, or all, then at most `limit` drawn by the seed.

    Those that do not decode are counted and named in one warning.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit must be 1 or more, got {limit}; leave it out to take every image")
    places = list(range(len(listing.names))) if names is None else _places(listing, names)
    everything = ImageDataset(listing, places)
    skipped: dict[str, str] = {}

    def ordered(sound: Callable[[int], bool]) -> list[int]:
        order = filter(sound, places) if limit is None else draw(listing, places, seed, sound)
        return list(islice(order, limit))

    if not check or isinstance(listing.images, torch.Tensor | Drawings):
        return replace(everything, picks=ordered(lambda place: True))
    with progress("checking images", total=min(limit or len(places), len(places)), unit="images") as advance:

        def sound(place: int) -> bool:
            flaw = everything._flaw(place)
            if flaw:
                skipped[listing.names[place]] = flaw
            else:
                advance()
            return not flaw

        picks = ordered(sound)
    if skipped:
        _tell(skipped, len(picks))
    return replace(everything, picks=picks, skipped=skipped)


def draw(listing: Listing, places: list[int], seed: int, sound: Callable[[int], bool]) -> Iterator[int]:
    """All sound places in a seeded order of which every beginning is as class-balanced as can be.

    Images are ranked by a hash of their own name, so that a smaller limit is the beginning of a
    larger one, and the choice depends neither on a library's generator nor on the other files. A
    image that is not sound gives its turn to the next of its class.
    """
    labels = listing.labels or [0] * len(listing.names)
    waiting: dict[int, list[tuple[bytes, int]]] = {}
    for place in places:
        key = hashlib.sha256(f"{seed}/{listing.names[place]}".encode()).digest()
        waiting.setdefault(labels[place], []).append((key, place))
    for queue in waiting.values():
        queue.sort(reverse=True)  # the next one is popped off the end
    turns = [(0, *queue.pop(), label) for label, queue in waiting.items()]
    heapify(turns)
    while turns:
        turn, _, place, label = heappop(turns)
        if good := sound(place):
            yield place
        if waiting[label]:
            heappush(turns, (turn + good, *waiting[label].pop(), label))


def _seed(name: str) -> int:
    """A number that belongs to an image's name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7])


def _places(listing: Listing, names: list[str]) -> list[int]:
    """Where the named images are; every one must be there."""
    places = {name: i for i, name in enumerate(listing.names)}
    missing = [name for name in names if name not in places]
    if missing:
        raise DataError(
            f"{len(missing)} of the subset's {len(names)} images are not in the data set, "
            f"the first is {missing[0]!r}; the data set's names look like {listing.names[0]!r}"
        )
    if len(set(names)) < len(names):
        raise DataError(
            f"the subset names {len(names) - len(set(names))} images twice; remove the repetitions"
        )
    return [places[name] for name in names]


def _tell(skipped: dict[str, str], kept: int) -> None:
    """Warn of the images left out, or refuse if none are left."""
    if not kept:
        name, flaw = next(iter(skipped.items()))
        raise DataError(f"none of the {len(skipped)} images can be decoded; the first, {name}: {flaw}")
    shown = "; ".join(f"{name}: {flaw}" for name, flaw in islice(skipped.items(), 3))
    more = f"; and {len(skipped) - 3} more in .skipped" if len(skipped) > 3 else ""
    count = f"{len(skipped)} of {len(skipped) + kept} images were skipped"
    warnings.warn(f"{count} ({shown}{more})", SkippedImages, stacklevel=4)  # at the line that opened the set


def _stack(items: list[Item]) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = {tuple(x.shape[1:]) for x, _ in items}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise DataError(
            f"images of different sizes cannot share a batch, got {first[0]} x {first[1]} and "
            f"{second[0]} x {second[1]}; open the set with size=224 or another size"
        )
    return torch.stack([x for x, _ in items]), torch.stack([torch.as_tensor(y) for _, y in items])
