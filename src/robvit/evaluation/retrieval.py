"""Retrieval with embeddings, clean and under attack: what people run foundation models for.

A query finds its nearest neighbours in a gallery by the cosine of class embeddings. An attacker who has the
model pushes the query's embedding away from where it was, or makes it collide with an image of another
class. Copy detection is judged along, with each query's clean original put into the gallery: whether it is
the nearest, and the share of sign bits that flip; a copy in JPEG shows what harmless changes do. A model with
secret tokens also meets attackers who have the public model only.

Legend for shapes: Q queries, G gallery, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from robvit.attacks.run import run
from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.data import ImageDataset, open_data
from robvit.data.corruptions import corrupt
from robvit.errors import DataError, InputError
from robvit.evaluation.classifiers import model_facts
from robvit.evaluation.doubts import token_doubts
from robvit.evaluation.parts import Rows, in_parts
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import Data, judged_images
from robvit.loading import load
from robvit.locks import kept_in
from robvit.processes import processes
from robvit.progress import Advance, part_of, silent
from robvit.record import Record, Table, Trial
from robvit.statistics import share_of
from robvit.threat import Threat

USUAL = Threat("linf", 2 / 255)
AWAY, COLLISION = "away", "collision"  # what an attacker is after
COPY = ("jpeg_compression", 3)  # a harmless change, and its severity
BEST = (1, 5)  # recall among so many neighbours
SHOWN = (*(f"recall@{k}" for k in BEST), "mAP", "bits", "original")


class Query(NamedTuple):
    """How queries come: untouched, copied in JPEG, or moved to a goal by who has the tokens or has not."""

    goal: str = ""
    has_tokens: bool = True
    copied: bool = False

    @property
    def name(self) -> str:
        """What tables call it."""
        who = "" if self.has_tokens else ", without its tokens"
        return f"feature ({self.goal}){who}" if self.goal else "a copy in JPEG" if self.copied else "clean"


class Gallery(NamedTuple):
    """Embeddings of length one (G D), their labels (G,), and their mean, about which sign bits are taken."""

    embeddings: torch.Tensor
    labels: torch.Tensor
    mean: torch.Tensor


def evaluate_retrieval(
    model: str | Path | Model,
    data: Data,
    *,
    gallery: Data | None = None,
    threat: Threat = USUAL,
    steps: int = 30,
    out: str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    gallery_limit: int | None = None,
    batch: int = 32,
    seed: int = 0,
    progress: Advance = silent,
    command: str = "",
) -> Record:
    """Judge a backbone by retrieval: recall@1, recall@5 and mAP, clean, pushed away and made to collide.

    model: a model, or what `load` opens; no classifier is needed.
    data: labelled queries, or what `open_data` opens.
    gallery: where neighbours are looked for; the data's training part if left out. Queries are taken out
        of it, by what is stored of them.
    threat: the budget of both attacks, which have the model itself.
    steps: gradient steps of each.
    out: a folder for record.json and finished parts, from which an interrupted run resumes.
    split: the part of the queries; the judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many queries.
    gallery_limit: at most so many images in the gallery.
    batch: images in one pass.
    seed: decides starts and the images that queries are to collide with.
    progress: takes shares of the work, one in all.
    command: what a person typed, for the record.
    """
    net = (model if isinstance(model, Model) else load(str(model))).eval()
    size, resize = net.input_size[0], fitting(net, resize)
    queries = judged_images(data, Subset(count=None), split=split, limit=limit).resized(size, resize)
    stored = _check(queries, _gallery_images(gallery, data, queries, gallery_limit).resized(size, resize))
    net.to(processes().device)
    found = embed_gallery(net, stored, batch, part_of(progress, 0.1, "gallery"))

    make = partial(_attacked, net, found, threat=threat, steps=steps, seed=seed)
    with kept_in(out) as folder:
        facts = [net.identity(), stored.facts(), str(threat), steps, seed, COPY]
        rest = part_of(progress, 0.9, "queries")
        rows = in_parts(make, queries, folder, facts=facts, batch=batch, progress=rest)
        asked = _queries(net)
        trials = [_trial(rows, query, threat, steps, seed) for query in asked if not query.copied]
        record = Record("retrieval", model_facts(net), queries.facts(), trials)
        record.metrics, record.tables = _metrics(rows, asked), [_table(rows, asked, len(stored))]
        record.notes = [
            f"Neighbours are looked for among {len(stored)} images of {stored.spec or 'your own'} by the "
            f"cosine of class embeddings; the attacker has the model, {threat}, {steps} steps.",
            *token_doubts(net, queries),
        ]
        record.command = command
        if out is not None:
            record.save(folder / "record.json")
    return record


@torch.no_grad()
def embed(model: Model, x: torch.Tensor) -> torch.Tensor:
    """Embeddings of length one, for the processor: (B 3 H W) -> (B D)."""
    return F.normalize(embedding(model, x.to(model.mean.device)), dim=-1).cpu()


def embedding(model: Model, x: torch.Tensor) -> torch.Tensor:
    """What an image is looked up by, the class token or else the mean patch: (B 3 H W) -> (B D)."""
    features = model.features(x)
    return features[:, 0] if model.has_class_token else features.mean(1)


def embed_gallery(model: Model, images: ImageDataset, batch: int, progress: Advance = silent) -> Gallery:
    """The gallery as it is searched."""
    parts = []
    for x, _ in images.batches(batch):
        parts.append(embed(model, x))
        progress(len(x) / len(images))
    embeddings = torch.cat(parts)
    return Gallery(embeddings, torch.tensor(images.labels), embeddings.mean(0))


def ranked(queries: torch.Tensor, gallery: Gallery) -> torch.Tensor:
    """The numbers of the gallery's images for each query (Q D), nearest first: (Q G)."""
    return (queries @ gallery.embeddings.T).argsort(dim=1, descending=True, stable=True)


def is_nearest(originals: torch.Tensor, queries: torch.Tensor, gallery: Gallery) -> torch.Tensor:
    """Whether a query (Q D) is nearer to its own original (Q D) than to all of the gallery: (Q,) bool."""
    return (queries * originals).sum(1) > (queries @ gallery.embeddings.T).amax(1)


def flipped_bits(queries: torch.Tensor, originals: torch.Tensor, gallery: Gallery) -> torch.Tensor:
    """The share of sign bits, about the gallery's mean, in which a query (Q D) leaves its original: (Q,)."""
    return ((queries > gallery.mean) != (originals > gallery.mean)).double().mean(1)


def average_precision(relevant: torch.Tensor) -> torch.Tensor:
    """Of ranked lists (Q G), true where the label is the query's: the mean precision at each hit, (Q,)."""
    hits = relevant.double()
    precision = hits.cumsum(1) / torch.arange(1, hits.shape[1] + 1)
    return (precision * hits).sum(1) / hits.sum(1).clamp_min(1)


def _gallery_images(
    gallery: Data | None, data: Data, queries: ImageDataset, limit: int | None
) -> ImageDataset:
    if gallery is not None:
        found = judged_images(gallery, Subset(count=None), split=None, limit=limit)
    elif not isinstance(data, str | Path):
        raise InputError("a gallery is needed beside images of your own; give gallery=")
    else:
        try:
            found = open_data(data, split="train", limit=limit)
        except DataError as error:
            raise InputError(f"a gallery is needed: {error}; give --gallery, a folder of images") from error
    return found.without(queries)


def _check(queries: ImageDataset, stored: ImageDataset) -> ImageDataset:
    """The gallery with its labels as queries have them, by the names of classes where both have some."""
    for images, what in ((queries, "queries"), (stored, "the gallery")):
        if images.kind != "labels":
            raise DataError(f"{what} must have labels, or no neighbour is right, got {images.kind}")
    classes = queries.classes
    if classes and stored.classes and classes != stored.classes:
        classes = list(dict.fromkeys([*classes, *stored.classes]))
        stored = stored.in_order_of(classes)
    if missing := sorted(set(queries.labels) - set(stored.labels)):
        name = classes[missing[0]] if classes else missing[0]
        raise InputError(f"the gallery has no image of class {name}, which queries have; take more images")
    if len(set(stored.labels)) < 2:
        raise InputError("the gallery must hold two classes or more, or every neighbour is right")
    return stored


def _attacked(
    model: Model, gallery: Gallery, images: ImageDataset, threat: Threat, steps: int, seed: int
) -> Rows:
    """For each query and attacker: the neighbours' facts and the bits that flipped."""
    x, labels = images.tensors()
    target = torch.tensor(list(_collisions(images, gallery, seed)))
    settings: dict[str, Any] = {"steps": steps, "seed": seed, "psnr": None}
    device = model.mean.device

    clean = embed(model, x)
    rows: Rows = {}
    for query in _queries(model):
        name, dist = query.name, torch.zeros(len(x))
        adv = corrupt(x, *COPY, seed=seed) if query.copied else x
        if query.goal:
            source = partial(embedding, model if query.has_tokens else model.replace(tokens=None).eval())
            wanted = gallery.embeddings[target].to(device) if query.goal == COLLISION else None
            outcome = run("feature", source, x.to(device), wanted, threat, batch=len(x), **settings)
            adv, dist = outcome.adv, outcome.distance
        queried = embed(model, adv)
        order = ranked(queried, gallery)
        relevant = gallery.labels[order] == labels[:, None]
        rows[f"{name}/label"] = gallery.labels[order[:, 0]].tolist()
        for k in BEST:
            rows[f"{name}/recall@{k}"] = relevant[:, :k].any(1).tolist()
        rows[f"{name}/mAP"] = average_precision(relevant).tolist()
        rows[f"{name}/bits"] = flipped_bits(queried, clean, gallery).tolist()
        rows[f"{name}/original"] = is_nearest(clean, queried, gallery).tolist()
        rows[f"{name}/collided"] = (order[:, 0] == target).tolist()
        rows[f"{name}/distance"] = dist.tolist()
    return rows


def _queries(model: Model) -> list[Query]:
    """Untouched ones, copies, and those of attackers; of a model with secret tokens also of who has none."""
    attackers = (True,) if model.extra is None else (True, False)
    return [
        Query(),
        Query(copied=True),
        *(Query(goal, has) for has in attackers for goal in (AWAY, COLLISION)),
    ]


def _collisions(images: ImageDataset, gallery: Gallery, seed: int) -> Iterator[int]:
    """For each query an image of another class in the gallery, drawn by the query's name alone."""
    for name, label in zip(images.names, images.labels, strict=True):
        others = (gallery.labels != label).nonzero()[:, 0]
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        yield int(others[int.from_bytes(digest[:8], "big") % len(others)])


def _trial(rows: Rows, query: Query, threat: Threat, steps: int, seed: int) -> Trial:
    """A query counts as correct where its nearest neighbour has its label."""
    attack, budget, settings = "clean", None, dict[str, Any]()
    if query.goal:
        attack, budget = "feature", threat.budget
        settings = {"steps": steps, "seed": seed, "psnr": None}
    return Trial(
        attack,
        budget,
        settings,
        rows[f"{query.name}/recall@1"],
        rows[f"{query.name}/label"],
        rows[f"{query.name}/distance"],
        variant=query.goal,
        surrogate="" if query.has_tokens else "the public model",
    )


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values))


def _metrics(rows: Rows, asked: list[Query]) -> dict[str, float]:
    kept = (*SHOWN, "collided")
    return {f"{what}, {q.name}": _mean(rows[f"{q.name}/{what}"]) for q in asked for what in kept}


def _table(rows: Rows, asked: list[Query], count: int) -> Table:
    first, *others = (f"recall@{k}, %" for k in BEST)
    columns = ["", first, "from", "to", *others, "mAP, %", "bits flipped, %"]
    columns += ["nearest is its original, %", "nearest is the target, %"]
    lines: list[list[Any]] = []
    for query in asked:
        found = share_of(rows[f"{query.name}/{SHOWN[0]}"])  # the share and its interval
        shares = [*found, *(_mean(rows[f"{query.name}/{what}"]) for what in SHOWN[1:])]
        hit = 100 * _mean(rows[f"{query.name}/collided"]) if query.goal == COLLISION else None
        lines.append([query.name, *(100 * share for share in shares), hit])
    return Table(
        "Retrieval", columns, lines, f"Gallery of {count} images, and for copies each query's own original."
    )
