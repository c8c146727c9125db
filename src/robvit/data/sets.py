"""Picture sets: a map-style dataset of [0,1] pictures with stable names, labels or masks.

Broken pictures are found when a set is opened, not when it is read: a dataset whose length or whose
indices change on the way could never be resumed, compared or named by a digest. So opening decodes
every picture once, cheaply, and leaves the broken ones out, counted and named in `skipped`.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from robvit.data.pictures import (
    MaskValues,
    PictureError,
    check_picture,
    picture_size,
    read_mask,
    read_picture,
)
from robvit.errors import DataError, InputError
from robvit.progress import progress

Stored: TypeAlias = Path | bytes | torch.Tensor
Item: TypeAlias = tuple[torch.Tensor, int | torch.Tensor]

UNLABELLED = -1
CROP_SHARE = 0.875  # of the shorter side, what an ImageNet evaluation keeps
HOWS = ("squash", "crop")


class SkippedPictures(UserWarning):
    """Some pictures could not be decoded and were left out."""


class Pictures(Protocol):
    """Anything that holds pictures by index: a list of paths, or one uint8 tensor (N 3 H W)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Stored: ...


@dataclass(frozen=True)
class Listing:
    """What an opener found."""

    names: list[str]
    pictures: Pictures
    labels: list[int] | None = None
    masks: list[Path] | None = None
    mask_values: MaskValues | None = None
    classes: list[str] = field(default_factory=list)
    class_map: list[int] | None = None


@dataclass(frozen=True, eq=False)
class PictureSet(Dataset[Item]):
    """Pictures in [0,1]; item i is (x (3 H W), label) or (x, mask (H W)), label -1 where there is none.

    `skipped` maps the name of every picture that was left out to the reason. `class_map`, where a set
    covers only some of a model's classes (ImageNet-A and -R), lists the logits to be compared.
    """

    listing: Listing
    picks: list[int]
    size: int | None = None
    how: str = "squash"
    skipped: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.picks)

    def __getitem__(self, index: int) -> Item:
        place = self.picks[index]
        picture, mask = self._read(place)
        x = fit(picture, self.size, self.how).float() / 255
        if mask is not None:
            return x, fit(mask, self.size, self.how).long()
        return x, self.listing.labels[place] if self.listing.labels else UNLABELLED

    @property
    def kind(self) -> str:
        """ "labels", "masks" or "none"."""
        if self.listing.masks is not None:
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
        """One whole number a picture; -1 where there is none."""
        return [self.listing.labels[i] if self.listing.labels else UNLABELLED for i in self.picks]

    def shape(self, index: int) -> tuple[int, int]:
        """(H, W) of a stored picture, before any resizing."""
        stored = self.listing.pictures[self.picks[index]]
        if isinstance(stored, torch.Tensor):
            return stored.shape[-2], stored.shape[-1]
        return picture_size(stored)

    def digest(self) -> str:
        """SHA-256 of the ordered names and labels: it names the subset, not its pixels."""
        rows = list(zip(self.names, self.labels, strict=True))
        return hashlib.sha256(json.dumps([self.kind, rows]).encode()).hexdigest()

    def take(self, indices: Iterable[int]) -> PictureSet:
        """The pictures at these places, in this order."""
        return replace(self, picks=[self.picks[i] for i in indices])

    def sized(self, size: int | None, how: str = "squash") -> PictureSet:
        """The same pictures at another size: "squash" to a square, or "crop" the middle as for ImageNet."""
        if how not in HOWS:
            raise InputError(f"how must be one of {', '.join(HOWS)}, got {how!r}")
        if size is not None and size < 1:
            raise InputError(f"size must be a number of pixels, 1 or more, got {size}")
        return replace(self, size=size, how=how)

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
        """One stored picture, uint8 (3 H W), and its mask, uint8 (H W), where there is one."""
        stored = self.listing.pictures[place]
        picture = stored if isinstance(stored, torch.Tensor) else read_picture(stored)
        if self.listing.masks is None:
            return picture, None
        assert self.listing.mask_values is not None
        path = self.listing.masks[place]
        mask = read_mask(path, self.listing.mask_values)
        if mask.shape != picture.shape[1:]:
            sizes = f"the mask is {tuple(mask.shape)}, the picture {tuple(picture.shape[1:])}"
            raise PictureError(f"{sizes}; they must agree", path.name)
        return picture, mask

    def _flaw(self, place: int) -> str:
        """Why the picture cannot be used, or nothing."""
        try:
            if self.listing.masks is not None:
                self._read(place)
            elif not isinstance(stored := self.listing.pictures[place], torch.Tensor):
                check_picture(stored)
        except PictureError as error:
            return error.reason
        return ""


def select(
    listing: Listing, *, names: list[str] | None, limit: int | None, seed: int, check: bool
) -> PictureSet:
    """The chosen pictures that decode: those named, or all, then at most `limit` drawn by the seed."""
    if limit is not None and limit < 1:
        raise InputError(f"limit must be 1 or more, got {limit}; leave it out to take every picture")
    order = list(range(len(listing.names))) if names is None else _places(listing, names)
    if limit is not None:
        order = draw(listing, order, seed)
    everything = PictureSet(listing, order)
    if not check or isinstance(listing.pictures, torch.Tensor):
        return everything.take(range(min(limit or len(order), len(order))))
    return _sound(everything, limit)


def draw(listing: Listing, places: list[int], seed: int) -> list[int]:
    """All places in a seeded order of which every beginning is as class-balanced as can be.

    Pictures are ranked by a hash of their own name, so that a smaller limit is the beginning of a
    larger one, and the choice depends neither on a library's generator nor on the other files.
    """
    labels = listing.labels or [0] * len(listing.names)
    keys = {i: hashlib.sha256(f"{seed}/{listing.names[i]}".encode()).digest() for i in places}
    seen: dict[int, int] = {}
    ranks: dict[int, int] = {}
    for i in sorted(places, key=keys.__getitem__):
        ranks[i] = seen[labels[i]] = seen.get(labels[i], -1) + 1
    return sorted(places, key=lambda i: (ranks[i], keys[i]))


def fit(pixels: torch.Tensor, size: int | None, how: str) -> torch.Tensor:
    """Resize uint8 pixels to a square: a picture (3 H W) smoothly, a mask (H W) by the nearest pixel."""
    if size is None or (how == "squash" and pixels.shape[-2:] == (size, size)):
        return pixels
    if how == "squash":
        return _resize(pixels, size, size)
    height, width = pixels.shape[-2:]
    target, shorter = math.floor(size / CROP_SHARE), min(height, width)
    resized = _resize(pixels, target * height // shorter, target * width // shorter)
    top, left = (round((side - size) / 2) for side in resized.shape[-2:])
    return resized[..., top : top + size, left : left + size]


def _resize(pixels: torch.Tensor, height: int, width: int) -> torch.Tensor:
    if pixels.ndim == 2:
        return F.interpolate(pixels[None, None], (height, width), mode="nearest-exact")[0, 0]
    return F.interpolate(pixels[None], (height, width), mode="bilinear", antialias=True)[0]


def _places(listing: Listing, names: list[str]) -> list[int]:
    """Where the named pictures are; every one must be there."""
    places = {name: i for i, name in enumerate(listing.names)}
    missing = [name for name in names if name not in places]
    if missing:
        raise DataError(
            f"{len(missing)} of the subset's {len(names)} pictures are not in the data set, "
            f"the first is {missing[0]!r}; the data set's names look like {listing.names[0]!r}"
        )
    if len(set(names)) < len(names):
        raise DataError(
            f"the subset names {len(names) - len(set(names))} pictures twice; remove the repetitions"
        )
    return [places[name] for name in names]


def _sound(pictures: PictureSet, limit: int | None) -> PictureSet:
    """The first `limit` pictures that decode, and a warning that counts and names those that do not."""
    wanted = min(limit or len(pictures), len(pictures))
    skipped: dict[str, str] = {}
    with progress("checking pictures", total=wanted, unit="pictures") as advance:

        def sound(place: int) -> bool:
            flaw = pictures._flaw(place)
            if flaw:
                skipped[pictures.listing.names[place]] = flaw
            else:
                advance()
            return not flaw

        picks = list(islice(filter(sound, pictures.picks), wanted))
    if not picks:
        name, flaw = next(iter(skipped.items()))
        raise DataError(f"none of the {len(skipped)} pictures can be decoded; the first, {name}: {flaw}")
    if skipped:
        shown = "; ".join(f"{name}: {flaw}" for name, flaw in islice(skipped.items(), 3))
        more = f"; and {len(skipped) - 3} more in .skipped" if len(skipped) > 3 else ""
        warnings.warn(
            f"{len(skipped)} of {len(skipped) + len(picks)} pictures were skipped ({shown}{more})",
            SkippedPictures,
            stacklevel=4,
        )
    return replace(pictures, picks=picks, skipped=skipped)


def _stack(items: list[Item]) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = {tuple(x.shape[1:]) for x, _ in items}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise DataError(
            f"pictures of different sizes cannot share a batch, got {first[0]} x {first[1]} and "
            f"{second[0]} x {second[1]}; open the set with size=224 or another size"
        )
    return torch.stack([x for x, _ in items]), torch.stack([torch.as_tensor(y) for _, y in items])
