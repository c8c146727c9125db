"""What a training learns from, and what it is judged on meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.training.losses import Loss

FEW_SHARE = 0.2  # held out of few images


@dataclass(frozen=True)
class Splits:
    """What a training learns from: `validation` chooses the checkpoint and is never learned from."""

    train: ImageDataset
    validation: ImageDataset
    extra: ImageDataset | None = None


def held_out(images: ImageDataset, amount: float, seed: int) -> tuple[ImageDataset, ImageDataset]:
    """Training and validation images: a share below one, or a number, drawn class by class.

    A number that is made for more images, and would take half of these or more, becomes a fifth of them.
    """
    if amount >= 1 and 2 * amount > len(images):
        amount = FEW_SHARE
    count = round(amount * len(images)) if amount < 1 else round(amount)
    chosen = set(images.balanced_order(seed)[: max(1, count)])
    everything = range(len(images))
    return images.take(i for i in everything if i not in chosen), images.take(sorted(chosen))


def check_labels(splits: Splits, loss: Loss) -> None:
    """Refuse images without the labels that a loss needs."""
    if not loss.needs_labels:
        return
    labels = set(splits.train.labels)
    if splits.train.kind != "labels":
        raise InputError(f"this loss needs labelled images, these have {splits.train.kind}")
    if len(labels) < 2:
        raise InputError(f"a classifier needs two classes or more, all training images are of class {labels}")
