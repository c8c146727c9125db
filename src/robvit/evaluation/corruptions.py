"""Common corruptions: ImageNet-C where it is at hand, the same fifteen made on the fly anywhere else.

Published numbers are mean corruption errors (mCE): for each corruption the errors at all five severities
over AlexNet's, then the mean. They belong to ImageNet-C's own files; on images corrupted here errors
are not normalised, and are called so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from robvit.data import ImageDataset, open_data
from robvit.data.corruptions import SEVERITIES
from robvit.errors import InputError
from robvit.evaluation.protocol import Corruptions
from robvit.record import Record, Table

IMAGENET_C = "imagenet-c:"

# AlexNet's error on ImageNet-C, the mean over the five severities (Hendrycks and Dietterich, ICLR 2019).
ALEXNET_ERRORS = {
    "gaussian_noise": 0.886,
    "shot_noise": 0.894,
    "impulse_noise": 0.923,
    "defocus_blur": 0.820,
    "glass_blur": 0.826,
    "motion_blur": 0.786,
    "zoom_blur": 0.798,
    "snow": 0.867,
    "frost": 0.827,
    "fog": 0.819,
    "brightness": 0.565,
    "contrast": 0.853,
    "elastic_transform": 0.646,
    "pixelate": 0.718,
    "jpeg_compression": 0.607,
}


class Corrupted(NamedTuple):
    """All images under one corruption."""

    name: str
    severity: int
    images: ImageDataset


def is_imagenet_c(data: object) -> bool:
    return isinstance(data, str | Path) and str(data).startswith(IMAGENET_C)


def corrupted(data: object, images: ImageDataset, wanted: Corruptions) -> Iterator[Corrupted]:
    """The same images under each corruption at each severity: ImageNet-C's files, or made here."""
    for name in wanted.names or ALEXNET_ERRORS:
        for severity in sorted(set(wanted.severities)):
            if is_imagenet_c(data):
                split = f"{name}/{severity}"
                found = open_data(str(data), split=split, subset=images.names, check=False)
                yield Corrupted(name, severity, found.resized(images.size, images.resize))
            else:
                yield Corrupted(name, severity, images.corrupted(f"{name}:{severity}"))


def summarise(record: Record, published: bool) -> None:
    """Add the table of errors and their mean to a record; `published` says the files are ImageNet-C's."""
    errors: dict[str, list[float]] = {}
    severities = sorted({trial.severity for trial in record.trials if trial.severity is not None})
    for trial in record.trials:
        if trial.kind == "corruption":
            errors.setdefault(trial.attack, []).append(1 - sum(trial.correct) / len(trial.correct))
    means = {name: sum(found) / len(found) for name, found in errors.items()}
    normalised = published and set(means) == set(ALEXNET_ERRORS) and tuple(severities) == SEVERITIES
    rows: list[list[object]] = [[name, *found, means[name]] for name, found in errors.items()]
    columns = ["corruption", *(f"severity {s}" for s in severities), "mean"]
    if normalised:
        columns.append("over AlexNet")
        over = corruption_errors(errors)
        rows = [[name, *found, means[name], over[name]] for name, found in errors.items()]
    mean = sum(means.values()) / len(means)
    record.metrics["mean error under corruptions, unnormalised"] = mean
    if normalised:
        record.metrics["mCE"] = mean_corruption_error(errors)
        note = "ImageNet-C's own files; mCE is the mean of the last column."
        record.notes.append(f"Mean corruption error (mCE, over AlexNet) {record.metrics['mCE']:.1%}.")
    else:
        note = "Not normalised by AlexNet's errors, so not to be set beside published mCE."
        made = "on ImageNet-C's files" if published else "on images corrupted here"
        record.notes.append(f"Mean error {mean:.1%} {made}, not normalised: no mCE as papers report it.")
    record.tables.append(Table("Errors under common corruptions", columns, rows, note))


def corruption_errors(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Each corruption's mean error over its severities, divided by AlexNet's; 1 is as bad as AlexNet."""
    if errors.keys() != ALEXNET_ERRORS.keys():
        odd = ", ".join(sorted(errors.keys() ^ ALEXNET_ERRORS.keys()))
        raise InputError(f"expected errors for the 15 published corruptions, missing or unknown: {odd}")
    for name, values in errors.items():
        if not values or not all(0 <= value <= 1 for value in values):
            raise InputError(f"expected errors of {name} in 0..1, one a severity, got {list(values)}")
    return {name: sum(errors[name]) / len(errors[name]) / base for name, base in ALEXNET_ERRORS.items()}


def mean_corruption_error(errors: Mapping[str, Sequence[float]]) -> float:
    """The mCE of ImageNet-C; it compares with published numbers only for models of ImageNet's classes."""
    each = corruption_errors(errors)
    return sum(each.values()) / len(each)
