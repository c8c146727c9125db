"""Reviewing a model that somebody hands over: evaluate it, and look for reasons not to believe that."""

from __future__ import annotations

from pathlib import Path

from robvit.backbones import zoo
from robvit.backbones.trained_on import fitting
from robvit.diagnosis.doctor import doctor
from robvit.evaluation.classifiers import Classifier, aligned, open_classifier
from robvit.evaluation.evaluate import Judged, evaluate
from robvit.evaluation.protocol import Protocol, find
from robvit.evaluation.subset import Data, judged_images
from robvit.files import sha256, written_whole
from robvit.progress import Advance, Log, part_of, silent
from robvit.report.html import write_report
from robvit.report.verdict import Review, junit, markdown, sarif
from robvit.threat import Threat

FORMS = {"review.md": markdown, "junit.xml": junit, "review.sarif": sarif}
EXAMINED = 32  # images that the doctor sees


def review(
    model: Judged,
    data: Data,
    *,
    protocol: str | Path | Protocol = "linf-4-audited@1",
    out: str | Path,
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
    protocol: a name with its version, a YAML file, or a `Protocol`.
    out: a folder for both records, report.html, review.md, junit.xml and review.sarif; an interrupted review
        goes on.
    split: the part of the data; its judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many images.
    batch: images in one pass.
    log: takes a forecast of the cost in words, before the work starts.
    progress: takes shares of the work, one in all, with a note each.
    command: what a person typed, for the records.
    """
    place, rules = Path(out), find(protocol)
    classifier = model if isinstance(model, Classifier) else open_classifier(model)
    judged = evaluate(
        classifier,
        data,
        protocol=rules,
        out=place / "evaluation",
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
    threat = rules.threat.threat() if rules.threat else Threat("linf", 4 / 255)
    examined = doctor(
        classifier,
        images,
        threat=threat,
        out=place / "doctor",
        batch=batch,
        command=command,
        progress=part_of(progress, 0.3, "doctor"),
    )
    made = Review(judged, examined, _file_hash(model))
    for name, form in FORMS.items():
        with written_whole(place / name) as aside:
            aside.write_text(form(made), encoding="utf-8")
    write_report([judged, examined], place / "report.html")
    return made


def _file_hash(model: Judged) -> str:
    """The SHA-256 of a model that was given as a file; empty for any other."""
    if not isinstance(model, str | Path) or not zoo.is_path(str(model)):
        return ""
    path = zoo.local_file(str(model))
    return "" if path is None else sha256(path)
