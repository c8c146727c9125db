"""Judging a classifier by a protocol: every picture's outcome under every attack, in one record.

Each attack is a folder of shards, so that a run that was killed goes on, several processes share the work
(`accelerate launch`), and only one batch is in memory at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch

from robvit.attacks.precision import PRECISIONS
from robvit.errors import InputError
from robvit.evaluation.claims import claims, ladder
from robvit.evaluation.classifiers import Classifier, check_fit, open_classifier
from robvit.evaluation.corruptions import is_imagenet_c, summarise
from robvit.evaluation.forecast import forecast
from robvit.evaluation.protocol import Protocol, find
from robvit.evaluation.record import Record
from robvit.evaluation.runner import Case
from robvit.evaluation.subset import Data, judged_pictures, public_pictures

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
    say: Callable[[str], None] | None = None,
    command: str = "",
) -> Record:
    """Judge a classifier on pictures by a protocol (`robvit evaluate --list`), or one of your own.

    `model` is a model, any callable from pictures (B 3 H W) in [0,1] to logits (B K), or what names one;
    `data` a picture set or what `open_data` opens. `out` is a folder from which an interrupted run goes on
    to the same record; `limit` takes fewer pictures than the protocol wants, which the record then says.
    `public` are the pictures of attackers who learn: the data's training part, if left out. With `say` a
    forecast comes first and progress is shown.
    """
    rules = find(protocol)
    classifier = model if isinstance(model, Classifier) else open_classifier(model)
    if rules.needs_tokens and not classifier.facts.get("tokens"):
        raise InputError(
            f"{rules.name} judges a model with tokens, {classifier.name} has none; give --tokens"
        )
    if precision not in ("fp32", *PRECISIONS):
        raise InputError(f"precision must be fp32, {' or '.join(PRECISIONS)}, got {precision!r}")
    published = is_imagenet_c(data)
    if published and rules.corruptions is None:
        raise InputError(
            f"{rules.name} has no corruptions, and these are corrupted pictures; take corruptions@1"
        )
    first = "gaussian_noise/1" if published else split  # any one names the pictures
    pictures = judged_pictures(data, rules.subset, split=first, limit=limit)
    pictures = pictures.sized(classifier.size or pictures.size, fit)
    classes = check_fit(classifier, pictures)
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        case = Case(classifier, pictures, rules, Path(folder), batch, precision, data)
        case.shown = say is not None
        case.public = public_pictures(public, data, pictures, split=split)
        if rules.learns:
            case.public(1)  # refused now rather than after an hour
        if say is not None:
            say(f"{rules.name}: {rules.about}")
            x = pictures.take(range(min(batch, len(pictures)))).arrays()[0]
            cost = forecast(rules, case.judged, x, count=len(pictures), classes=classes)
            say(f"{classifier.name} on {len(pictures)} pictures: {cost}")
        trials = case.run()
    record = Record(
        kind="evaluate",
        model={"judged": classifier.name, "identity": classifier.identity, **classifier.facts},
        data={
            "spec": str(data) if isinstance(data, str | Path) else "",
            "split": split or "",
            "digest": pictures.digest(),
            "count": len(pictures),
            "names": pictures.names,
            "labels": pictures.labels,
            "classes": pictures.classes,
            "size": pictures.size,
            "fit": pictures.how,
        },
        trials=trials,
        figures=case.figures,
        protocol={**rules.model_dump(mode="json"), "batch": batch, "precision": precision},
        command=command,
    )
    record.tables += ladder(record)
    record.notes += claims(record)
    if rules.corruptions is not None:
        summarise(record, published)
    return record
