"""Single images by what people call them: a file, or a number in a data set."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from robvit.data import ImageDataset, open_data
from robvit.data.dataset import UNLABELLED
from robvit.data.imagenet import class_names
from robvit.errors import DataError, InputError


@dataclass(frozen=True)
class Images:
    """Images x (B 3 H W) in [0,1], their names, and labels (B,) or masks (B H W) where all have them."""

    x: torch.Tensor
    names: list[str]
    truth: torch.Tensor | None
    kind: str
    classes: list[str]


def open_images(specs: list[str], size: int, resize: str = "squash") -> Images:
    """Images from "photo.jpg", or "sample:3" for one of a data set's judging part, counted from 0."""
    if not specs:
        raise InputError("expected at least one image, a file or DATA:NUMBER such as sample:3")
    found = [_image(spec, size, resize) for spec in specs]
    pairs = [images[place] for images, place in found]
    kinds = {images.kind for images, _ in found}
    classes = found[0][0].classes
    alike = len(kinds) == 1 and all(images.classes == classes for images, _ in found)
    kind = kinds.pop() if alike else "none"
    truth = torch.stack([torch.as_tensor(y) for _, y in pairs]) if kind != "none" else None
    if truth is not None and kind == "labels" and bool((truth == UNLABELLED).any()):
        truth, kind = None, "none"
    names = [images.names[place] for images, place in found]
    return Images(torch.stack([x for x, _ in pairs]), names, truth, kind, classes if alike else [])


def _image(spec: str, size: int, resize: str) -> tuple[ImageDataset, int]:
    """The set that holds an image, and its place there."""
    if Path(spec).expanduser().is_file():
        return open_data(spec, size=size, resize=resize), 0
    data, _, number = spec.rpartition(":")
    if not data or not number.isdecimal():
        raise DataError(
            f"expected an image's file, or DATA:NUMBER such as sample:3, got {spec!r}; "
            "`robvit data list` names the data sets"
        )
    images = open_data(data, size=size, resize=resize, check=False)
    if int(number) >= len(images):
        raise DataError(f"{data} has {len(images)} images, numbered from 0, got {number}")
    return images, int(number)


def names_for(images: Images, classes: int, head_names: list[str]) -> list[str]:
    """What a model's classes are called, as far as anything tells: its head, the data, or ImageNet."""
    for known in (head_names, images.classes):
        if len(known) == classes:
            return known
    return class_names() if classes == len(class_names()) else []
