"""Reviewing a model that somebody hands over: evaluate it, and look for reasons not to believe that."""

from __future__ import annotations

from pathlib import Path

import torch

from robvit.backbones.trained_on import fitting
from robvit.data import ImageDataset
from robvit.diagnosis.doctor import doctor, weakness
from robvit.diagnosis.grading import surely_more
from robvit.errors import InputError
from robvit.evaluation.black_boxes import STATISTICS
from robvit.evaluation.classifiers import Classifier, Judged, aligned, model_facts, open_classifier
from robvit.evaluation.doubts import training_images
from robvit.evaluation.evaluate import evaluate
from robvit.evaluation.protocol import Protocol, find
from robvit.evaluation.subset import Data, judged_images
from robvit.files import written_whole
from robvit.progress import Advance, Log, part_of, silent
from robvit.record import Finding, Record
from robvit.report.html import write_report
from robvit.report.verdict import Review
from robvit.report.verdict_files import junit, markdown, sarif
from robvit.threat import Threat

TEXTS = {"review.md": markdown, "junit.xml": junit, "review.sarif": sarif}
USUAL, USUAL_BLACK_BOX = "linf-4-audited@1", "linf-4-black-box@1"
EXAMINED = 32  # images that the doctor sees
CLEARLY = 0.1  # of the images must become correct by another normalisation to be red


def review(
    model: Judged,
    data: Data,
    *,
    protocol: str | Path | Protocol | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    batch: int = 32,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
) -> Review:
    """Evaluate a model, examine it with the doctor, and write a verdict that can be passed on.

    model: a model, any callable from images (B 3 H W) in [0,1] to logits (B K), or what names one.
    data: labelled images, or what `open_data` opens.
    protocol: a name with its version, a YAML file, or a `Protocol`; linf-4-audited@1 if left out, or
        linf-4-black-box@1 for a file of which only answers can be had.
    out: a folder for both records, report.html, review.md, junit.xml and review.sarif; an interrupted review
        resumes. Without it nothing is left behind. Only the records hold local paths.
    split: the part of the data; its judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many images.
    batch: images in one pass.
    log: takes a forecast of the cost in words, before the work starts.
    progress: takes shares of the work, one in all, with a note each.
    command: what a person typed, for the records.
    """
    place, given = None if out is None else Path(out), None if protocol is None else find(protocol)
    classifier = open_classifier(model)
    rules = given or find(USUAL_BLACK_BOX if classifier.black_box else USUAL)
    judged = evaluate(
        classifier,
        data,
        protocol=rules,
        out=place and place / "evaluation",
        split=split,
        resize=resize,
        limit=limit,
        batch=batch,
        log=log,
        progress=part_of(progress, 0.7, "evaluate"),
        command=command,
    )
    images = judged_images(data, rules.subset, split=split, limit=min(EXAMINED, limit or EXAMINED))
    fit = fitting(classifier.net, resize)
    images = aligned(classifier, images.resized(classifier.size or images.size, fit))
    examined = _examined(
        classifier,
        images,
        threat=rules.threat.threat() if rules.threat else Threat("linf", 4 / 255),
        out=place and place / "doctor",
        batch=batch,
        command=command,
        progress=part_of(progress, 0.3, "doctor"),
    )
    learned = training_images(classifier, judged_images(data, rules.subset, split=split, limit=limit))
    own = [weakness(judged.headline(), "red"), normalisation(classifier, images), learned]
    made = Review(
        judged.without_places(),
        examined.without_places(),
        classifier.file_sha256,
        [one for one in own if one is not None],
    )
    if place is not None:
        for name, text in TEXTS.items():
            with written_whole(place / name) as aside:
                aside.write_text(text(made), encoding="utf-8")
        write_report([judged, examined], place / "report.html", review=made)
    return made


def _examined(
    classifier: Classifier, images: ImageDataset, *, out: Path | None, command: str, **settings: object
) -> Record:
    """The doctor's record, or one that says why there is nothing to examine."""
    try:
        return doctor(classifier, images, out=out, command=command, **settings)  # type: ignore[arg-type]
    except InputError as error:
        reason = Finding("doctor", "skipped", str(error), title="The doctor's checks of the attacks")
        facts = model_facts(classifier), images.facts()
        record = Record("doctor", *facts, [], findings=[reason], command=command)
        if out is not None:
            record.save(out / "record.json")
        return record


@torch.no_grad()
def normalisation(classifier: Classifier, images: ImageDataset) -> Finding | None:
    """That the model is clearly better on pixels that are normalised otherwise; None if it is not."""
    x, y = images.tensors()
    device = next(iter(classifier.net.parameters()), torch.zeros(0)).device
    x, y = x.to(device), y.to(device)
    now = classifier.net(x).argmax(1) == y
    for name, (mean, std) in {"ImageNet's": STATISTICS["imagenet"], "0.5": ((0.5,) * 3, (0.5,) * 3)}.items():
        shift, scale = (torch.tensor(one, device=device).view(1, 3, 1, 1) for one in (mean, std))
        try:
            other = classifier.net((x - shift) / scale).argmax(1) == y
        except InputError:  # a model of robvit's takes pixels only, and normalises them itself
            return None
        gained, lost = int((other & ~now).sum()), int((now & ~other).sum())
        if surely_more(gained, lost) and gained - lost > CLEARLY * len(y):
            return Finding(
                "normalisation",
                "red",
                f"of {len(y)} images {int(now.sum())} are correct as pixels are given now, "
                f"{int(other.sum())} if mean and deviation {name} are applied first",
                title="The pixels are not normalised as the model expects",
                remedy="Give --normalise, or normalise inside the model, and review again.",
            )
    return None
