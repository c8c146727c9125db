"""Images that a program holds already: tensors, arrays, datasets and loaders of PyTorch's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from robvit.data.dataset import ImageDataset, Listing
from robvit.errors import DataError, InputError, check_images
from robvit.tensor_files import tensors_sha256

Array = torch.Tensor | np.ndarray[Any, Any]


def from_arrays(
    images: Array, labels: Array | None = None, *, classes: list[str] | None = None
) -> ImageDataset:
    """Images (N 3 H W) or (N H W 3) with labels (N,) as a dataset; kept at 8 bits, as files are.

    images: whole grey levels (uint8), or floats in [0,1], which are rounded to grey levels.
    labels: whole numbers from 0 on; None where there are none.
    classes: what the classes are called, in the order of their numbers.
    """
    levels = _levels(torch.as_tensor(images))
    numbers = None if labels is None else _numbers(torch.as_tensor(labels), len(levels))
    if numbers and classes and max(numbers) >= len(classes):
        raise DataError(f"{len(classes)} classes are named, and the largest label is {max(numbers)}")
    names = [f"{i} {tensors_sha256({'x': one})[:16]}" for i, one in enumerate(levels)]
    listing = Listing(names, levels, labels=numbers, classes=classes or [])
    return ImageDataset(listing, list(range(len(names))))


def from_items(items: Dataset[Any] | DataLoader[Any]) -> ImageDataset:
    """All of a map-style dataset (image, label), or of a loader of batches, in its order.

    Images are tensors in [0,1] or of grey levels, arrays, or Pillow's, all of one size.
    """
    images, labels = list[torch.Tensor](), list[torch.Tensor]()
    loader = isinstance(items, DataLoader)
    held: Any = items
    source: Iterable[Any] = held if loader else (held[i] for i in range(len(held)))
    for item in source:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"expected (image, label), got {type(item).__name__}; give a dataset of such pairs"
            )
        x, y = item
        x = torch.as_tensor(np.array(x) if isinstance(x, Image.Image) else x)
        images.append(_levels(x if loader else x[None]))
        labels.append(torch.as_tensor(y).reshape(-1))
    if not images:
        raise DataError("the dataset holds no images")
    if len({one.shape[1:] for one in images}) > 1:
        raise DataError("images must have one size; resize them in the dataset's transform")
    return from_arrays(torch.cat(images), torch.cat(labels))


def _levels(images: torch.Tensor) -> torch.Tensor:
    """Images as grey levels, uint8 (N 3 H W)."""
    if images.ndim == 4 and images.shape[-1] == 3 and images.shape[1] != 3:
        images = images.permute(0, 3, 1, 2)
    if images.dtype == torch.uint8:
        if images.ndim != 4 or images.shape[1] != 3:
            raise InputError(f"images must be (N 3 H W) or (N H W 3), got {tuple(images.shape)}")
        return images.detach().cpu().contiguous()
    check_images(images)
    return (images.detach().cpu() * 255).round().to(torch.uint8)


def _numbers(labels: torch.Tensor, count: int) -> list[int]:
    if labels.shape != (count,) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            f"labels must be one whole number an image, ({count},), got {tuple(labels.shape)} "
            f"of {labels.dtype}"
        )
    if len(labels) and int(labels.min()) < 0:
        raise InputError(
            f"labels must be 0 or more, got {int(labels.min())}; leave labels out where there are none"
        )
    return [int(label) for label in labels]
