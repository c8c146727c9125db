"""A head on a frozen backbone: learned from features, and judged on images it did not learn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from robvit.backbones.heads import HEADS, FeatureHead
from robvit.backbones.model import Model
from robvit.data import open_data
from robvit.evaluation.clean import Score, clean_score
from robvit.progress import Advance, part_of, silent


@dataclass(frozen=True)
class TrainedHead:
    """A head, its score on `judged` other images, and whether images had "labels" or "masks"."""

    head: FeatureHead
    score: Score
    judged: int
    kind: str


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
    resize: str = "squash",
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
        split: the part to learn from; train if left out.
        test_split: the part to judge on; the data's own if left out.
        resize: "squash" images to a square, or "crop" their middle.
        limit: at most so many images of each part, drawn by a fixed seed.
        batch: images in one pass.
        progress: takes shares of the work, one in all.
    """
    size = model.input_size[0]
    train = open_data(data, split=split or "train", size=size, resize=resize, limit=limit)
    test = open_data(data, split=test_split, size=size, resize=resize, limit=limit)
    share = part_of(progress, 1 / (len(train) * passes))
    if fit is None:
        batches, names = train.batches(batch), train.classes
        head = HEADS[kind].fit(model, batches, len(names), names=names, progress=share)
    else:
        head = fit(model, train, progress=share)
    score = clean_score(model.replace(head=head), test, batch=batch)
    if out is not None:
        head.save(out)
    return TrainedHead(head, score, len(test), train.kind)
