"""Certifying a ViT on images: what no patch, or no small change in L2, can take from it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.budget import PATCH, Budget
from robvit.certification.maps import draw_places, places_table
from robvit.certification.patches import PatchDefense
from robvit.certification.smoothing import Smoothing, certify_embedding, certify_label, usual_sigma
from robvit.data import ImageDataset
from robvit.drawing.images import save_png
from robvit.errors import InputError
from robvit.evaluation.classifiers import aligned, check_fit, model_facts, open_classifier
from robvit.evaluation.parts import Rows, in_parts
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import Data, judged_images
from robvit.loading import load
from robvit.locks import kept_in
from robvit.progress import Advance, silent
from robvit.record import Record, Trial
from robvit.statistics import interval

LABEL, EMBEDDING = "label", "embedding"
NO_LABEL = -1  # what is predicted where nothing is certified


def certify(
    model: str | Path | Model,
    data: Data,
    *,
    patch: int | None = None,
    windows: int = 3,
    maps: bool = False,
    l2: float | None = None,
    embedding: bool = False,
    smoothing: Smoothing | None = None,
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

    model: a model, or what `load` opens; a plain ViT with a classifier for patches.
    data: an image set, or what `open_data` opens; labelled, unless only embeddings are certified.
    patch: side of the patch in pixels of the model's input; give this or `l2`.
    windows: windows of dropped tokens along each side; more hide less and cost more passes.
    maps: also tell under which windows an image is safe, and draw it into `out`; costs more passes.
    l2: radius in pixels, of the smoothed model.
    embedding: with `l2`, bound the cosine of the class embedding in place of the label.
    smoothing: sigma, samples and alpha; `usual_sigma` of the radius and 1,000 samples if left out.
    out: a folder for record.json and finished parts, from which an interrupted run goes on.
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
    net = (model if isinstance(model, Model) else load(str(model))).eval()
    images = judged_images(data, Subset(count=None), split=split, limit=limit)
    images = images.resized(net.input_size[0], fitting(net, resize))
    if not embedding:
        images = aligned(open_classifier(net), images)
        check_fit(open_classifier(net), images)
    run: _Run
    if patch is not None:
        run = _patches(net, patch, windows, maps=maps)
    else:
        assert l2 is not None
        run = _smoothed(net, l2, smoothing or Smoothing(sigma=usual_sigma(l2)), seed, embedding=embedding)
    with kept_in(out) as folder:
        facts = [run.kind, str(run.budget), run.settings, net.identity()]
        rows = in_parts(run.outcomes, images, folder, facts=facts, batch=batch, progress=progress)
        rows["labels"] = images.labels if images.kind == "labels" else []
        record = Record("certify", model_facts(net), images.facts(), _trials(run, rows), command=command)
        record.metrics = _metrics(run, rows)
        record.protocol = {"kind": run.kind, **run.settings}
        record.notes = [run.meaning]
        if "places" in rows:
            record.tables = [places_table(rows["places"], windows)]
            if out is not None:
                save_png(draw_places(images, rows["places"], windows), folder / "places.png")
        if out is not None:
            record.save(folder / "record.json")
    return record


@dataclass(frozen=True)
class _Run:
    """One kind of certificate: what it is called, its budget and settings, and its outcomes for a batch."""

    kind: str
    budget: Budget
    settings: dict[str, Any]
    meaning: str  # what is certified, for people
    outcomes: Callable[[ImageDataset], Rows] = field(repr=False)


def _patches(model: Model, patch: int, windows: int, *, maps: bool) -> _Run:
    defense = PatchDefense(model, patch, per_axis=windows)

    @torch.no_grad()
    def outcomes(images: ImageDataset) -> Rows:
        x, y = images.tensors()
        defense.passes = 0
        start = time.process_time()
        defended = defense.classify(x)
        middle = time.process_time()
        places = defense.certified_places(x, y, whole=not maps)
        end = time.process_time()
        return {
            "plain": model(x).argmax(-1).tolist(),
            "label": defended.label.tolist(),
            "disputed": defended.disputed.tolist(),
            "certified": places.all(1).tolist(),
            **({"places": places.tolist()} if maps else {}),
            "inference seconds": [(middle - start) / len(x)] * len(x),
            "certificate seconds": [(end - middle) / len(x)] * len(x),
            "passes": [defense.passes / len(x)] * len(x),
        }

    count, largest = len(defense.cover.windows), max(map(len, defense.cover.windows))
    meaning = (
        f"A certified image keeps its label under the defended inference whatever a {patch}x{patch} patch "
        f"anywhere on the {model.input_size[0]}x{model.input_size[1]} input holds, in the white box. "
        f"{count} windows of at most {largest} of the {len(defense.cover.kept())} tokens cover "
        "every place of the patch, which was checked one by one; dropped tokens are left out of the sequence."
    )
    settings = {"patch": patch, "windows": windows, "pairs": len(defense.cover.pairs), "maps": maps}
    return _Run(PATCH, Budget(PATCH, patch), settings, meaning, outcomes)


def _smoothed(model: Model, radius: float, rules: Smoothing, seed: int, *, embedding: bool) -> _Run:
    def embed(x: torch.Tensor) -> torch.Tensor:
        return model.features(x)[:, 0]

    def outcomes(images: ImageDataset) -> Rows:
        rows: Rows = {"plain": [], "label": [], "radius": []}
        if embedding:
            rows = {"clean cosine": [], "certified cosine": []}
        for image, name in zip(images.tensors()[0], images.names, strict=True):
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
            draws = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            if embedding:
                found: tuple[float, float] = certify_embedding(embed, image, radius, rules, draws)
            else:
                found = certify_label(model, image, rules, draws)
                with torch.no_grad():
                    rows["plain"].append(int(model(image[None]).argmax()))
            for column, value in zip(list(rows)[-2:], found, strict=True):
                rows[column].append(value)
        return rows

    what = "mean class embedding" if embedding else "label"
    meaning = (
        f"Certified is the {what} of the smoothed model, its mean answer under Gaussian noise of sigma "
        f"{rules.sigma:g} in pixels, within {radius:g} in L2, for each image with confidence "
        f"{1 - rules.alpha:g}; {rules.select} samples choose, {rules.samples} others certify. The network "
        "without noise has no certificate."
    )
    settings = {**{k: getattr(rules, k) for k in ("sigma", "select", "samples", "alpha")}, "seed": seed}
    kind = EMBEDDING if embedding else LABEL
    return _Run(kind, Budget("l2", radius), settings, meaning, outcomes)


def _trials(run: _Run, rows: Rows) -> list[Trial]:
    """Accuracy without the defence, with it, and what is certified."""
    if run.kind == EMBEDDING:
        return []
    labels: list[int] = rows["labels"]

    def trial(attack: str, pred: list[int], threat: Budget | None = None, **about: Any) -> Trial:
        correct = [a == b for a, b in zip(pred, labels, strict=True)]
        return Trial(attack, threat, {}, correct, pred, [0.0] * len(pred), **about)

    pred, held = rows["label"], rows.get("certified")
    if held is None:
        pred = [NO_LABEL if r == 0 else label for label, r in zip(pred, rows["radius"], strict=True)]
        held = [r >= run.budget.eps for r in rows["radius"]]
    sure = [label if ok else NO_LABEL for label, ok in zip(pred, held, strict=True)]
    return [
        trial("clean", rows["plain"], scenario="without the defence", control=True),
        trial("clean", pred, scenario="defended"),
        trial("certificate", sure, run.budget, scenario="defended"),
    ]


def _metrics(run: _Run, rows: Rows) -> dict[str, float]:
    """The figures to quote, each share with its 95 % interval."""
    found: dict[str, float] = {}

    def share(name: str, hits: list[bool]) -> None:
        low, high = interval(sum(hits), len(hits))
        found.update({name: sum(hits) / len(hits), f"{name}, low": low, f"{name}, high": high})

    if run.kind == EMBEDDING:
        for name in ("clean cosine", "certified cosine"):
            found[f"mean {name}"] = sum(rows[name]) / len(rows[name])
        return found
    if run.kind == PATCH:
        share("certified accuracy", rows["certified"])
        share("disputed", rows["disputed"])
        for name in ("inference seconds", "certificate seconds", "passes"):
            found[f"{name} an image"] = sum(rows[name]) / len(rows[name])
        return found
    share("certified accuracy", _trials(run, rows)[-1].correct)
    share("abstained", [radius == 0 for radius in rows["radius"]])
    found["mean radius"] = sum(rows["radius"]) / len(rows["radius"])
    return found
