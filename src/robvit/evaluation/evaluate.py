"""Judging a classifier by a protocol: every image's outcome under every attack, in one record.

Each attack is a folder of shards, so that a run that was killed goes on, several processes share the work
(`accelerate launch`), and only one batch is in memory at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from robvit.attacks.precision import check_precision
from robvit.errors import InputError
from robvit.evaluation.claims import claims, ladder
from robvit.evaluation.classifiers import Classifier, check_fit, model_facts, open_classifier
from robvit.evaluation.corruptions import is_imagenet_c, summarise
from robvit.evaluation.forecast import forecast
from robvit.evaluation.protocol import Protocol, find
from robvit.evaluation.runner import Case
from robvit.evaluation.subset import Data, judged_images, public_images
from robvit.progress import Log
from robvit.record import Record

Judged = str | Path | Classifier | Callable[[torch.Tensor], torch.Tensor]


def evaluate(
    model: Judged,
    data: Data,
    *,
    protocol: str | Path | Protocol = "quick@1",
    out: str | Path | None = None,
    split: str | None = None,
    fit: str = "squash",
    limit: int | None = None,
    public: Data | None = None,
    batch: int = 32,
    precision: str = "fp32",
    log: Log | None = None,
    command: str = "",
) -> Record:
    """Judge a classifier on images by a protocol (`robvit evaluate --list`), or one of your own.

    `model` is a model, any callable from images (B 3 H W) in [0,1] to logits (B K), or what names one;
    `data` an image set or what `open_data` opens. `out` is a folder from which an interrupted run goes on
    to the same record; `limit` takes fewer images than the protocol wants, which the record then says.
    `public` are the images of attackers who learn: the data's training part, if left out. With `log` a
    forecast comes first and progress is shown.
    """
    rules = find(protocol)
    classifier = model if isinstance(model, Classifier) else open_classifier(model)
    if rules.needs_tokens and not classifier.hardened:
        raise InputError(
            f"{rules.name} judges a model with tokens, {classifier.name} has none; give --tokens"
        )
    check_precision(precision)
    published = is_imagenet_c(data)
    if published and rules.corruptions is None:
        raise InputError(
            f"{rules.name} has no corruptions, and these are corrupted images; take corruptions@1"
        )
    first = "gaussian_noise/1" if published else split  # any one names the images
    images = judged_images(data, rules.subset, split=first, limit=limit)
    images = images.resized(classifier.size or images.size, fit)
    classes = check_fit(classifier, images)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        case = Case(classifier, images, rules, Path(folder), batch, precision, data)
        case.shown = log is not None
        case.public = public_images(public, data, images, split=split)
        if rules.learns:
            case.public(1)  # refused now rather than after an hour
        if log is not None:
            log(f"{rules.name}: {rules.about}")
            x = images.take(range(min(batch, len(images)))).tensors()[0]
            cost = forecast(rules, case.judged, x, count=len(images), classes=classes)
            log(f"{classifier.name} on {len(images)} images: {cost}")
        trials = case.run()
    record = Record(
        kind="evaluate",
        model=model_facts(classifier),
        data=images.facts() | ({"split": split or ""} if published else {}),
        trials=trials,
        metrics=case.metrics,
        protocol={**rules.model_dump(mode="json"), "batch": batch, "precision": precision},
        command=command,
    )
    record.tables += ladder(record)
    record.notes += claims(record)
    if rules.corruptions is not None:
        summarise(record, published)
    return record
