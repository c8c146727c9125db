"""Common corruptions: ImageNet-C where it is at hand, the same fifteen made on the fly anywhere else.

Published figures are mean corruption errors (mCE): for each corruption the errors at all five severities
over AlexNet's, then the mean. They belong to ImageNet-C's own files; on images corrupted here errors
are not normalised, and are called so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from robvit.data import ImageDataset, open_data
from robvit.data.corruptions import SEVERITIES
from robvit.evaluation.corruption_error import ALEXNET_ERRORS, corruption_errors, mean_corruption_error
from robvit.evaluation.protocol import Corruptions
from robvit.record import Record, Table

IMAGENET_C = "imagenet-c:"


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
