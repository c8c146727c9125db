"""A map-style dataset of [0,1] images with stable names, labels or masks."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import DataLoader, Dataset

from robvit.data.corruptions import corrupt, parse_corruption
from robvit.data.decode import (
    RESIZE_MODES,
    MaskValues,
    check_image,
    fit,
    image_size,
    read_image,
    read_mask,
)
from robvit.data.sampling import balanced_order, name_seed
from robvit.data.shapes import SIDE, Scene, Scenes
from robvit.decoding import ImageError
from robvit.errors import DataError, InputError, check_batch
from robvit.files import sha256

Stored: TypeAlias = Path | bytes | torch.Tensor | Scene
Item: TypeAlias = tuple[torch.Tensor, int | torch.Tensor]

UNLABELLED = -1


class Images(Protocol):
    """Anything that holds images by index: a list of paths, one uint8 tensor (N 3 H W), or scenes to draw."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Stored: ...


@dataclass(frozen=True)
class Listing:
    """What an opener found; where images have masks, `mask_values` tells how they are meant.

    Masks lie in files, except those of drawn scenes, which make their own. `revision` is the commit of a
    dataset on the model hub. `unread` maps the names of images that lie there too, in formats that are not
    read, to the reason.
    """

    names: list[str]
    images: Images
    labels: list[int] | None = None
    masks: list[Path] | None = None
    mask_values: MaskValues | None = None
    classes: list[str] = field(default_factory=list)
    class_map: list[int] | None = None
    revision: str = ""
    unread: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset[Item]):
    """Images in [0,1]; item i is (x (3 H W), label) or (x, mask (H W)), label -1 where there is none.

    `indices` are those of its images in the `listing`; `skipped` maps the name of every image that was
    left out to the reason. `class_map`, where a set covers only some of a model's classes (ImageNet-A and
    -R), lists the logits to be compared.
    `corruption`, as "fog:3", is applied to every image at the size it is given out. `spec` and `split` are
    what `open_data` was asked for, `available` how many images it could draw from.
    """

    listing: Listing
    indices: list[int]
    size: int | None = None
    resize: str = "squash"
    corruption: str = ""
    spec: str = ""
    split: str = ""
    skipped: dict[str, str] = field(default_factory=dict)
    available: int = 0

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Item:
        source = self.indices[index]
        image, mask = self._read(source)
        resize = "squash" if isinstance(self.listing.images, Scenes) else self.resize  # already square
        x = fit(image, self.size, resize).float() / 255
        if self.corruption:
            x = corrupt(x, *parse_corruption(self.corruption), seed=name_seed(self.listing.names[source]))
        if mask is not None and self.kind == "masks":  # a scene has one, wanted or not
            return x, fit(mask, self.size, resize).long()
        return x, self.listing.labels[source] if self.listing.labels else UNLABELLED

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
        return [self.listing.names[i] for i in self.indices]

    @property
    def labels(self) -> list[int]:
        """One whole number an image; -1 where there is none."""
        return [self.listing.labels[i] if self.listing.labels else UNLABELLED for i in self.indices]

    def shape(self, index: int) -> tuple[int, int]:
        """(H, W) of a stored image, before any resizing."""
        stored = self.listing.images[self.indices[index]]
        if isinstance(stored, torch.Tensor):
            return stored.shape[-2], stored.shape[-1]
        if isinstance(stored, Scene):
            return SIDE, SIDE
        return image_size(stored)

    def digest(self) -> str:
        """SHA-256 of the ordered names and labels and the corruption: it names the subset, not its pixels."""
        rows = list(zip(self.names, self.labels, strict=True))
        facts = [self.kind, rows, *filter(None, [self.corruption])]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def pixels(self) -> str:
        """SHA-256 of what is stored of every image, in order, and of its mask: it names the pixels."""
        digest = hashlib.sha256()
        for index in self.indices:
            digest.update(_stored_sha256(self.listing.images[index]))
            if self.listing.masks is not None:
                digest.update(_stored_sha256(self.listing.masks[index]))
        return digest.hexdigest()

    def shared(self, other: ImageDataset) -> int:
        """How many of another set's images are in this one too, by what is stored of them."""
        mine = set(self.checksums())
        return sum(one in mine for one in other.checksums())

    def without(self, other: ImageDataset) -> ImageDataset:
        """The images that are not in another set too, by what is stored of them."""
        theirs = set(other.checksums())
        return self.take(i for i, one in enumerate(self.checksums()) if one not in theirs)

    def checksums(self) -> list[str]:
        """The beginning of the SHA-256 of what is stored of every image."""
        return [_stored_sha256(self.listing.images[index])[:8].hex() for index in self.indices]

    def facts(self) -> dict[str, Any]:
        """What a record tells of its images: what was opened, which images, and how they were fitted."""
        known = {"hub revision": self.listing.revision} if self.listing.revision else {}
        return known | {
            "spec": self.spec,
            "split": self.split,
            "digest": self.digest(),
            "pixels": self.pixels(),
            "count": len(self),
            "names": self.names,
            "labels": self.labels,
            "classes": self.classes,
            "size": self.size,
            "resize": self.resize,
        }

    def take(self, indices: Iterable[int]) -> ImageDataset:
        """The images at these indices, in this order."""
        return replace(self, indices=[self.indices[i] for i in indices])

    def relabelled(self, numbers: Sequence[int], classes: list[str]) -> ImageDataset:
        """The same images with label i as numbers[i], of these classes."""
        assert self.listing.labels is not None
        labels = [numbers[label] for label in self.listing.labels]
        return replace(self, listing=replace(self.listing, labels=labels, classes=classes))

    def in_order_of(self, classes: list[str]) -> ImageDataset:
        """The same images with labels in the order of these classes, which are to have all that occur."""
        return self.relabelled([classes.index(n) if n in classes else 0 for n in self.classes], classes)

    def balanced_order(self, seed: int) -> list[int]:
        """All indices in the order in which `open_data` draws: seeded, every beginning class-balanced."""
        return list(balanced_order(self.names, self.labels, seed))

    def resized(self, size: int | None, resize: str = "squash") -> ImageDataset:
        """The same images at another size: "squash" to a square, or "crop" the middle as for ImageNet."""
        if resize not in RESIZE_MODES:
            raise InputError(f"resize must be one of {', '.join(RESIZE_MODES)}, got {resize!r}")
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
        check_batch(size)
        order = torch.Generator().manual_seed(seed)
        return DataLoader(
            self, batch_size=size, shuffle=shuffle, generator=order, num_workers=workers, collate_fn=_stack
        )

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Everything at once, for sets that fit in memory: (x (N 3 H W), y (N,) or (N H W))."""
        return _stack([self[i] for i in range(len(self))])

    def _read(self, source: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One stored image, uint8 (3 H W), and its mask, uint8 (H W), where there is one."""
        stored = self.listing.images[source]
        if isinstance(stored, Scene):
            return stored.render(self.size or SIDE)
        image = stored if isinstance(stored, torch.Tensor) else read_image(stored)
        if self.listing.masks is None:
            return image, None
        assert self.listing.mask_values is not None
        path = self.listing.masks[source]
        mask = read_mask(path, self.listing.mask_values)
        if mask.shape != image.shape[1:]:
            sizes = f"the mask is {tuple(mask.shape)}, the image {tuple(image.shape[1:])}"
            raise ImageError(f"{sizes}; they must agree", path.name)
        return image, mask

    def flaw(self, index: int) -> str:
        """Why an image cannot be used, or nothing."""
        source = self.indices[index]
        try:
            if self.listing.masks is not None:
                self._read(source)
            elif isinstance(stored := self.listing.images[source], Path | bytes):
                check_image(stored)
        except ImageError as error:
            return error.reason
        return ""


def _stored_sha256(stored: Stored) -> bytes:
    """The checksum of one stored image; a file is read once as long as its size and time stay."""
    if isinstance(stored, Path):
        found = stored.stat()
        return _file_sha256(stored, found.st_size, found.st_mtime_ns)
    if isinstance(stored, torch.Tensor):
        shape, data = str(tuple(stored.shape)).encode(), stored.contiguous().numpy().tobytes()
        return hashlib.sha256(shape + data).digest()
    return hashlib.sha256(stored if isinstance(stored, bytes) else repr(stored).encode()).digest()


@functools.lru_cache(maxsize=2**20)
def _file_sha256(path: Path, size: int, changed: int) -> bytes:
    return bytes.fromhex(sha256(path))


def _stack(items: list[Item]) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = {tuple(x.shape[1:]) for x, _ in items}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise DataError(
            f"images of different sizes cannot share a batch, got {first[0]} x {first[1]} and "
            f"{second[0]} x {second[1]}; open the set with size=224 or another size"
        )
    return torch.stack([x for x, _ in items]), torch.stack([torch.as_tensor(y) for _, y in items])
