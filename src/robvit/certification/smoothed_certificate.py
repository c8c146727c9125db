"""Certificates within an L2 radius by smoothing, batch by batch, and what a record tells of them."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import torch

from robvit.backbones.model import Model
from robvit.budget import Budget
from robvit.certification.patch_certificate import NO_LABEL, trial
from robvit.certification.smoothing import Smoothing, certify_embedding, certify_label
from robvit.data import ImageDataset
from robvit.evaluation.parts import Rows
from robvit.evaluation.retrieval import embedding
from robvit.record import Curve, Record, Table
from robvit.statistics import interval, mean_interval

LABEL, EMBEDDING = "label", "embedding"
COSINES = ("cosine of smoothed and plain embedding", "certified cosine")


class SmoothedCertificate:
    """The label of the smoothed model within an L2 radius in pixels, or a bound on its embedding's cosine."""

    def __init__(
        self, model: Model, radius: float, rules: Smoothing, *, seed: int = 0, embedding: bool = False
    ) -> None:
        self.model, self.rules, self.seed = model, rules, seed
        self.budget = Budget("l2", radius)
        self.kind = EMBEDDING if embedding else LABEL
        drawn = {k: getattr(rules, k) for k in ("sigma", "select", "samples", "alpha")}
        self.settings: dict[str, Any] = {"radius": radius, **drawn, "seed": seed}

    @property
    def facts(self) -> list[Any]:
        """What decides the outcomes, beside model and images."""
        return [self.kind, self.settings]

    @property
    def meaning(self) -> str:
        """What is certified, in words."""
        rules, smoothed = self.rules, f"under Gaussian noise of sigma {self.rules.sigma:g} in pixels"
        within = f"within {self.budget.eps:g} in L2, for each image with confidence {1 - rules.alpha:g}"
        if self.kind == EMBEDDING:
            return (
                f"Certified is a lower bound on a cosine, {within}: between the smoothed embedding of any "
                f"image in the ball, the mean class embedding {smoothed}, and one fixed direction, that of "
                f"the mean over {rules.select} sampled noisy copies of the clean image, not its exact mean; "
                f"{rules.samples} other copies certify. The network without noise has no certificate."
            )
        return (
            f"Certified is the label of the smoothed model, its mean answer {smoothed}, {within}; "
            f"{rules.select} samples choose, {rules.samples} others certify. The network without noise has "
            "no certificate."
        )

    def outcomes(self, images: ImageDataset) -> Rows:
        rows: Rows = {"plain": [], "label": [], "radius": []}
        if self.kind == EMBEDDING:
            rows = {name: [] for name in COSINES}
        x = images.tensors()[0].to(self.model.mean.device)
        for image, name in zip(x, images.names, strict=True):
            digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
            draws = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            if self.kind == EMBEDDING:
                found: tuple[float, float] = certify_embedding(
                    partial(embedding, self.model), image, self.budget.eps, self.rules, draws
                )
            else:
                found = certify_label(self.model, image, self.rules, draws)
                with torch.no_grad():
                    rows["plain"].append(int(self.model(image[None]).argmax()))
            for column, value in zip(list(rows)[-2:], found, strict=True):
                rows[column].append(value)
        return rows

    def fill(self, record: Record, rows: Rows, labels: list[int]) -> None:
        """Put what was found into the record: trials of labels, the figures to quote, and a table of them."""
        embeddings = self.kind == EMBEDDING
        values, shares = self._cosines(record, rows) if embeddings else self._labels(record, rows, labels)
        means = {name: sum(hits) / len(hits) for name, hits in shares.items()}
        record.metrics |= values | means
        drawn = {"radius, L2": self.budget.eps, "sigma": self.rules.sigma, "samples": self.rules.samples}
        certified = list(shares.values())[-1]
        cells: dict[str, Any] = drawn | {"images": len(certified)} | values
        cells |= {f"{name}, %": 100 * mean for name, mean in means.items()}
        low, high = interval(sum(certified), len(certified))
        cells |= {"from": 100 * low, "to": 100 * high}
        record.tables = [Table(f"Certified by smoothing, {self.kind}", [*cells], [[*cells.values()]])]

    def _cosines(self, record: Record, rows: Rows) -> tuple[dict[str, float], dict[str, list[bool]]]:
        """Means over the images with their intervals, and which images have a bound; one of -1 is none."""
        figures: dict[str, float] = {}
        for name in COSINES:
            mean, _, low, high = mean_interval(rows[name])
            figures |= {f"mean {name}": mean}
            if len(rows[name]) > 1:  # one image tells nothing of others
                figures |= {f"{name}, from": max(-1.0, low), f"{name}, to": min(1.0, high)}
        lines = {name: [[float(n), value] for n, value in enumerate(rows[name])] for name in COSINES}
        note = f"Images are in the order of the record's names. A {COSINES[1]} of -1 is no bound."
        record.curves = [Curve("Cosines, image by image", "number of the image", "cosine", lines, note)]
        return figures, {"images with a bound": [value > 0 for value in rows[COSINES[1]]]}

    def _labels(
        self, record: Record, rows: Rows, labels: list[int]
    ) -> tuple[dict[str, float], dict[str, list[bool]]]:
        """The mean radius, and image by image what is correct and, at last, certified."""
        radius: list[float] = rows["radius"]
        pred = [NO_LABEL if r == 0 else label for label, r in zip(rows["label"], radius, strict=True)]
        sure = [label if r >= self.budget.eps else NO_LABEL for label, r in zip(pred, radius, strict=True)]
        record.trials = [
            trial("clean", rows["plain"], labels, scenario="without the defence", control=True),
            trial("clean", pred, labels, scenario="defended"),
            trial("certificate", sure, labels, self.budget, scenario="defended"),
        ]
        shares = {
            "clean accuracy without noise": record.trials[0].correct,
            "clean accuracy, smoothed": record.trials[1].correct,
            "abstained": [r == 0 for r in radius],
            "certified accuracy": record.trials[2].correct,
        }
        return {"mean radius": sum(radius) / len(radius)}, shares
