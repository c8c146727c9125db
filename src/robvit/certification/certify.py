"""Certifying a ViT on images: what no patch, or no small change in L2, can take from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.certification.head import LEARNED, with_head
from robvit.certification.maps import draw_places
from robvit.certification.patch_certificate import PatchCertificate
from robvit.certification.smoothed_certificate import SmoothedCertificate
from robvit.certification.smoothing import Smoothing, usual_sigma
from robvit.data import ImageDataset
from robvit.drawing.images import save_png
from robvit.errors import InputError
from robvit.evaluation.classifiers import aligned, check_fit, model_facts, open_classifier
from robvit.evaluation.doubts import doubts
from robvit.evaluation.parts import in_parts
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import Data, judged_images
from robvit.loading import load
from robvit.locks import kept_in
from robvit.processes import processes
from robvit.progress import Advance, part_of, silent
from robvit.record import Record

OWN_HEAD = (
    f"The model has no classes of its own: a linear head was learned first, on at most {LEARNED} images of "
    "the data's training part, each whole and with a pair of windows dropped; it lies beside the record."
)
HEAD_SHARE = 0.3  # of the work, where a head is learned first


def certify(
    model: str | Path | Model,
    data: Data,
    *,
    patch: int | Sequence[int] | None = None,
    windows: int | tuple[int, int] = 3,
    maps: bool = False,
    attack_steps: int = 0,
    l2: float | None = None,
    embedding: bool = False,
    sigma: float | None = None,
    samples: int = Smoothing.samples,
    alpha: float = Smoothing.alpha,
    out: str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    batch: int = 32,
    seed: int = 0,
    progress: Advance = silent,
    command: str = "",
) -> Record:
    """Certify a ViT on images: against every square patch, or within an L2 radius by smoothing.

    model: a model, or what `load` opens; for patches a plain ViT, which gets a head that is learned on a
        thousand images of the data's training part if it has no classifier.
    data: an image set, or what `open_data` opens; labelled, unless only embeddings are certified.
    patch: side of the patch in pixels of the model's input, or several for a curve; give this or `l2`.
    windows: windows of dropped tokens along each side, or rows and columns of them; more hide less.
    maps: also tell under which windows an image is safe, and draw it into `out` for
        the largest patch; costs more passes.
    attack_steps: beside the certificate, attack the defended inference with patches that climb so many steps.
    l2: radius in pixels, of the smoothed model.
    embedding: with `l2`, bound the cosine of the class embedding in place of the label.
    sigma: the noise of the smoothing, in pixels; `usual_sigma` of the radius if left out.
    samples, alpha: noisy copies that certify an image, and the chance of error an image.
    out: a folder for record.json and finished parts, from which an interrupted run resumes.
    split: the part of the data; its judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many images, drawn by a fixed seed.
    batch: images in one pass.
    seed: decides every random draw, together with each image.
    progress: takes shares of the work, one in all.
    command: what a person typed, for the record.
    """
    if (patch is None) == (l2 is None):
        raise InputError("certify against a patch or within an L2 radius: give patch= or l2=, one of them")
    if embedding and l2 is None:
        raise InputError("embeddings are certified by smoothing within an L2 radius: give l2=")
    if l2 is not None and not 0 < l2 < math.inf:
        raise InputError(f"l2 must be a radius above 0, such as 0.5, got {l2:g}")
    net = (model if isinstance(model, Model) else load(str(model))).eval().to(processes().device)
    make: Callable[[Model], PatchCertificate | SmoothedCertificate]
    sides = [] if patch is None else [patch] if isinstance(patch, int) else list(patch)
    if l2 is None:
        make = partial(
            PatchCertificate, sides=sides, windows=windows, maps=maps, attack_steps=attack_steps, seed=seed
        )
    else:
        rules = Smoothing(usual_sigma(l2) if sigma is None else sigma, samples=samples, alpha=alpha)
        make = partial(SmoothedCertificate, radius=l2, rules=rules, seed=seed, embedding=embedding)
    notes: list[str] = []
    with kept_in(out) as folder:
        if sides and not net.classes:
            notes.append(OWN_HEAD)
            head = part_of(progress, HEAD_SHARE, "head")
            progress = part_of(progress, 1 - HEAD_SHARE, "images")
            net, part = with_head(
                net, data, folder, max(sides), windows, resize=resize, batch=batch, progress=head
            )
            split = part if split is None else split
        images, doubted = _images(net, data, split=split, resize=resize, limit=limit, labelled=not embedding)
        notes += doubted
        run = make(net)
        facts = [*run.facts, net.identity()]
        rows = in_parts(run.outcomes, images, folder, facts=facts, batch=batch, progress=progress)
        record = Record("certify", model_facts(net), images.facts(), [], command=command)
        run.fill(record, rows, images.labels if images.kind == "labels" else [])
        record.protocol = {"kind": run.kind, **run.settings}
        record.notes = [run.meaning, *notes]
        if out is not None:
            if isinstance(run, PatchCertificate) and maps:
                cover = run.defenses[-1].cover  # of the largest patch
                places = rows[f"{len(run.defenses) - 1}/places"]
                save_png(draw_places(images, places, cover), folder / "places.png")
            record.save(folder / "record.json")
    return record


def _images(
    net: Model, data: Data, *, split: str | None, resize: str | None, limit: int | None, labelled: bool
) -> tuple[ImageDataset, list[str]]:
    """The images as the model takes them, labelled by its own classes, and doubts about judging on them."""
    images = judged_images(data, Subset(count=None), split=split, limit=limit)
    images = images.resized(net.input_size[0], fitting(net, resize))
    if not labelled:
        return images, []
    classifier = open_classifier(net)
    images = aligned(classifier, images)
    check_fit(classifier, images)
    return images, doubts(classifier, images)
