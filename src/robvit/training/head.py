"""A head on a frozen backbone: learned from features, and judged on images it did not learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robvit.backbones.heads import HEADS, FeatureHead
from robvit.backbones.heads.base import MOST_REMEMBERED
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn, fitting
from robvit.data import open_data
from robvit.data.opening import HELD_OUT, LEARN, open_to_learn
from robvit.errors import DataError
from robvit.evaluation.clean import Score, clean_score
from robvit.progress import Advance, part_of, silent


@dataclass(frozen=True)
class TrainedHead:
    """A head, its score on `judged` images, and whether images had "labels" or "masks".

    `learned` tells how many of those it had learned from: where it is not none, the score is no test.
    `split` is the part they are, where a folder had to be divided.
    """

    head: FeatureHead
    score: Score
    judged: int
    kind: str
    learned: int = 0
    split: str = ""


def train_head(
    model: Model,
    data: str | Path,
    *,
    kind: str = "linear",
    fit: Callable[..., FeatureHead] | None = None,
    passes: int = 1,
    out: str | Path | None = None,
    split: str | None = None,
    test_split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    batch: int = 64,
    progress: Advance = silent,
) -> TrainedHead:
    """Train a head on a frozen model's features, and tell how good it is on other images.

    Args:
        model: the backbone; its weights stay as they are.
        data: what `open_data` opens, with a part to learn from and another to judge on.
        kind: "linear", "knn" or "segmentation".
        fit: another way to learn one, called as fit(model, images, progress=...).
        passes: how often it looks at every image, for its progress.
        out: a file for the head.
        split: the part to learn from; train if left out, or "learn", four fifths of a folder without splits.
        test_split: the part to judge on; the data's own if left out, or "held-out", the other fifth.
        resize: "squash" images to a square, or "crop" their middle; if left out as for the model's tokens,
            else squash.
        limit: at most so many images of each part, drawn by a fixed seed.
        batch: images in one pass.
        progress: takes shares of the work, one in all.
    """
    size, resize = model.input_size[0], fitting(model, resize)
    options: dict[str, Any] = {"size": size, "resize": resize, "limit": limit}
    train = open_to_learn(data, split, **options)
    if train.kind != (wanted := HEADS[kind].learns_from):
        raise DataError(f"a {kind} head learns from {wanted}, the images of {data} have {train.kind}")
    test_split = HELD_OUT if train.split == LEARN and test_split is None else test_split
    test = open_data(data, split=test_split, **options)
    share = part_of(progress, 1 / (len(train) * passes))
    if fit is None:
        batches, names = train.batches(batch), train.classes
        head = HEADS[kind].fit(model, batches, len(names), names=names, progress=share)
    else:
        head = fit(model, train, progress=share)
    score = clean_score(model.replace(head=head.to(model.mean.device)), test, batch=batch)
    head.trained_on = TrainedOn(model.input_size, resize)
    if len(train) <= MOST_REMEMBERED:
        head.learned_from = tuple(train.checksums())
    if out is not None:
        head.save(out)
    divided = HELD_OUT if train.split == LEARN else ""
    return TrainedHead(head, score, len(test), train.kind, train.shared(test), divided)
