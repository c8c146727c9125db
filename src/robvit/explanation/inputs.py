"""The images to explain: tensors, a dataset, files, or numbers in a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.data.dataset import UNLABELLED
from robvit.data.imagenet import class_names
from robvit.errors import DataError, InputError

Source = ImageDataset | torch.Tensor | str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Inputs:
    """Images x (B 3 H W) in [0,1], their names, and labels (B,) or masks (B H W) where all have them.

    `kind` is "labels", "masks" or "none"; `facts` are what a record tells of them.
    """

    x: torch.Tensor
    names: list[str] = field(default_factory=list)
    truth: torch.Tensor | None = None
    kind: str = "none"
    classes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def truth_for(self, model: Model) -> torch.Tensor | None:
        """The labels or masks, if they are what the model tells apart."""
        wanted = "masks" if getattr(model.head, "kind", "") == "segmentation" else "labels"
        if self.truth is None or self.kind != wanted:
            return None
        known = model.class_names
        if not known or known == self.classes:
            return self.truth if len(self.classes) == model.classes else None
        if wanted == "masks" or not {self.classes[label] for label in self.truth.tolist()} <= set(known):
            return None
        return torch.tensor([known.index(self.classes[label]) for label in self.truth.tolist()])

    def classes_for(self, model: Model) -> list[str]:
        """What a model's classes are called, as far as anything tells: the model, the data, or ImageNet."""
        for known in (model.class_names, self.classes):
            if len(known) == model.classes:
                return list(known)
        return class_names() if model.classes == len(class_names()) else []


def open_inputs(images: Source, size: int, resize: str = "squash") -> Inputs:
    """Images at this size from a tensor, a dataset, "photo.jpg", "sample:3" or a list of such names.

    "sample:3" is one of a dataset's test split, counted from 0.
    """
    if isinstance(images, torch.Tensor):
        return Inputs(images, facts={"spec": "a tensor"})
    if isinstance(images, ImageDataset):
        dataset = images if images.size else images.resized(size, resize)
        return _stacked([(dataset, place) for place in range(len(dataset))], dataset.facts())
    specs = [str(one) for one in ([images] if isinstance(images, str | Path) else images)]
    if not specs:
        raise InputError("expected at least one image, a file or DATA:NUMBER such as sample:3")
    facts = {"spec": " ".join(map(_without_folders, specs)), "size": size, "resize": resize}
    return _stacked([_find(spec, size, resize) for spec in specs], facts)


def _stacked(chosen: list[tuple[ImageDataset, int]], facts: dict[str, Any]) -> Inputs:
    """Images of one or several datasets; labels and classes only where all agree in them."""
    pairs = [dataset[place] for dataset, place in chosen]
    kinds = {dataset.kind for dataset, _ in chosen}
    classes = chosen[0][0].classes
    alike = len(kinds) == 1 and all(dataset.classes == classes for dataset, _ in chosen)
    kind = kinds.pop() if alike else "none"
    truth = torch.stack([torch.as_tensor(y) for _, y in pairs]) if kind != "none" else None
    if truth is not None and kind == "labels" and bool((truth == UNLABELLED).any()):
        truth, kind = None, "none"
    names = [dataset.names[place] for dataset, place in chosen]
    return Inputs(torch.stack([x for x, _ in pairs]), names, truth, kind, classes if alike else [], facts)


def _find(spec: str, size: int, resize: str) -> tuple[ImageDataset, int]:
    """The dataset that holds an image, and its place there."""
    if Path(spec).expanduser().is_file():
        return open_data(spec, size=size, resize=resize), 0
    data, _, number = spec.rpartition(":")
    if not data or not number.isdecimal():
        raise DataError(
            f"expected an image's file, or DATA:NUMBER such as sample:3, got {spec!r}; "
            "`robvit data list` names the datasets"
        )
    dataset = open_data(data, size=size, resize=resize, check=False)
    if int(number) >= len(dataset):
        raise DataError(f"{data} has {len(dataset)} images, numbered from 0, got {number}")
    return dataset, int(number)


def _without_folders(spec: str) -> str:
    """The spec without the folders in which its file or folder lies: records are shown to others."""
    return ":".join(Path(part).name for part in spec.split(":"))
