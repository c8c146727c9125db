"""How well a segmentation meets its masks: mean IoU over a whole set, pixel accuracy of each image."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

from robvit.data import IGNORE, ImageDataset

Segmenter = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class MaskScore:
    """The mean IoU over all pixels of a set, of the classes that occur, and each image's pixel accuracy."""

    miou: float
    accuracy: list[float]

    @property
    def mean_accuracy(self) -> float:
        """The mean over images."""
        return sum(self.accuracy) / max(len(self.accuracy), 1)


def pixel_counts(predicted: torch.Tensor, masks: torch.Tensor, classes: int) -> torch.Tensor:
    """How many pixels of each class (rows) were predicted as each (columns): twice (B H W) -> (B K K)."""
    pairs = masks * classes + predicted
    each = [torch.bincount(p[m != IGNORE], minlength=classes**2) for p, m in zip(pairs, masks, strict=True)]
    return torch.stack(each).view(-1, classes, classes)


def image_miou(counts: torch.Tensor) -> torch.Tensor:
    """Each image's mean IoU over the classes in its mask or its prediction: (B K K) -> (B,).

    The mean of these is the published code's number for attacked segmentations; the headline elsewhere
    is that of the whole set. An image that is all void counts as met.
    """
    both = counts.diagonal(dim1=1, dim2=2).double()
    either = counts.sum(1) + counts.sum(2) - both
    there = either > 0
    iou = torch.where(there, both / either.clamp_min(1), 0.0).sum(1) / there.sum(1).clamp_min(1)
    return torch.where(there.any(1), iou, 1.0)


def score_of(counts: Iterable[torch.Tensor], classes: int) -> MaskScore:
    """The score of a set from the `pixel_counts` of its batches; an image that is all void counts as met."""
    total, accuracy = torch.zeros(classes, classes, dtype=torch.long), []
    for some in counts:
        total += some.sum(0).cpu()
        labelled = some.sum((1, 2))
        share = some.diagonal(dim1=1, dim2=2).sum(1) / labelled.clamp_min(1)
        accuracy += torch.where(labelled > 0, share, 1.0).tolist()
    both = total.diag().double()
    either = total.sum(0) + total.sum(1) - both
    return MaskScore(float((both / either)[either > 0].mean()), accuracy)


def device_of(model: Segmenter) -> torch.device:
    """Where a model's weights are; the CPU for a callable that has none."""
    inside = model.parameters() if isinstance(model, nn.Module) else ()
    return next(iter(inside), torch.zeros(0)).device


@torch.no_grad()
def score_masks(model: Segmenter, images: ImageDataset, *, batch: int = 64) -> MaskScore:
    """The score of a model (B 3 H W) -> (B K H W) on images with masks."""
    classes = len(images.classes)
    device = device_of(model)
    batches = ((model(x.to(device)).argmax(1).cpu(), y) for x, y in images.batches(batch))
    return score_of((pixel_counts(predicted, y, classes) for predicted, y in batches), classes)
