"""Reasons to think that a model is not judged as it was meant."""

from __future__ import annotations

from robvit.data import ImageDataset
from robvit.evaluation.classifiers import Classifier
from robvit.record import Finding

TRAINED_ON = "training_images"


def doubts(classifier: Classifier, images: ImageDataset) -> list[str]:
    """All of them, in sentences."""
    learned = trained_on(classifier, images)
    return [*filter(None, [classifier.doubt]), *([f"Doubtful: {learned}."] if learned else [])]


def trained_on(classifier: Classifier, images: ImageDataset) -> str:
    """That a model's head was trained on some of the images, as far as its file tells; else empty."""
    known = set(getattr(getattr(classifier.net, "head", None), "learned_from", ()))
    count = sum(one in known for one in images.checksums()) if known else 0
    if not count:
        return ""
    return (
        f"the head was trained on {count} of these {len(images)} images, so every accuracy is too high; "
        "judge it on others, of a folder without splits by --split held-out"
    )


def training_images(classifier: Classifier, images: ImageDataset) -> Finding | None:
    """The same as a finding; None if there is nothing to find."""
    learned = trained_on(classifier, images)
    if not learned:
        return None
    return Finding(
        TRAINED_ON,
        "red",
        learned.partition(";")[0],
        title="The head is judged on images that it was trained on",
        remedy="Judge it on other images; of a folder without splits by `--split held-out`.",
    )
