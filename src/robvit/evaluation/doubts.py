"""Reasons to think that a model is not judged as it was meant."""

from __future__ import annotations

from torch import nn

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.classifiers import Classifier
from robvit.record import Finding

TRAINED_ON = "training_images"


def doubts(classifier: Classifier, images: ImageDataset) -> list[str]:
    """All of them, in sentences."""
    found = [classifier.doubt] if classifier.doubt else []
    if count := trained_on(classifier, images):
        advice = "judge it on others, of a folder without splits by --split held-out"
        found.append(f"Doubtful: {_too_high(count, len(images))}; {advice}.")
    return [*found, *token_doubts(classifier.net, images)]


def token_doubts(net: nn.Module, images: ImageDataset) -> list[str]:
    """That a model's tokens were learned from some of the images, as far as names tell."""
    known = net.learned_from if isinstance(net, Model) else ()
    count = sum(name in known for name in images.names)
    text = f"Doubtful: by their names, the tokens were learned from {count} of these {len(images)} images"
    return [f"{text}, so they may protect others less; judge on others."] if count else []


def trained_on(classifier: Classifier, images: ImageDataset) -> int:
    """How many of the images a model's head was trained on, as far as its file tells."""
    known = set(getattr(getattr(classifier.net, "head", None), "learned_from", ()))
    return sum(one in known for one in images.checksums()) if known else 0


def training_images(classifier: Classifier, images: ImageDataset) -> Finding | None:
    """The same as a finding; None if there is nothing to find."""
    count = trained_on(classifier, images)
    if not count:
        return None
    return Finding(
        TRAINED_ON,
        "red",
        _too_high(count, len(images)),
        title="The head is judged on images that it was trained on",
        remedy="Judge it on other images; of a folder without splits by `--split held-out`.",
    )


def _too_high(count: int, images: int) -> str:
    return f"the head was trained on {count} of these {images} images, so every accuracy is too high"
