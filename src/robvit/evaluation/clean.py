"""How good a model is on untouched images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from robvit.data import ImageDataset
from robvit.errors import DataError
from robvit.evaluation.masks import device_of, score_masks

Classifier = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Score:
    """A figure in [0,1] and its name."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name} {self.value:.1%}"


@torch.no_grad()
def clean_score(model: Classifier, images: ImageDataset, *, batch: int = 64) -> Score:
    """Accuracy for labels; for masks the mean IoU over the whole set, of the classes that occur."""
    if images.kind == "none":
        raise DataError("these images have no labels, so nothing can be judged on them")
    if images.kind == "labels":
        device = device_of(model)
        correct = sum(int((model(x.to(device)).argmax(1).cpu() == y).sum()) for x, y in images.batches(batch))
        return Score("accuracy", correct / len(images))
    return Score("mIoU", score_masks(model, images, batch=batch).miou)
