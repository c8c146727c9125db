"""The gallery: every image before and after, small enough that a thousand stay under fifteen megabytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from robvit.drawing.images import Pixels, data_url, encoded, heat
from robvit.drawing.perturbation import amplification, amplified
from robvit.errors import InputError
from robvit.record import Record, Trial
from robvit.report.summary import AttackerSummary, Labels, outcome, trial_name

MOST = 1000  # images on one page
BUDGET = 11_500_000  # characters for all of them
CHUNK = 24  # images that are unpacked together
COLUMNS = ["clean", "attacked", "difference", "attention, clean", "attention, attacked"]

# Side and quality of an image, best first; the first one that the budget allows is taken.
SIZES = ((224, 85), (160, 80), (128, 75), (112, 65), (96, 60), (80, 50), (64, 40), (48, 30))
EXACT = 64  # images up to this side are kept pixel by pixel where the budget allows

Map = np.ndarray[tuple[int, int], np.dtype[np.float32]]


@dataclass(frozen=True)
class GalleryItem:
    """A record's image number `index` under trial number `trial`, uint8 (H W 3).

    Either image may be missing: the original where it is not at hand, the other where it was misclassified
    from the start and not attacked. `attention` is a map (h w) of any scale for each of the two.
    """

    index: int
    trial: int
    adversarial: Pixels | None
    clean: Pixels | None = None
    attention: Sequence[Map] | None = None


@dataclass(frozen=True)
class Gallery:
    """What the page needs: facts of every item, and their images in chunks of data URLs."""

    items: list[dict[str, Any]]
    chunks: list[list[list[str]]]
    columns: list[str]
    left_out: bool


def gallery(
    record: Record, summaries: list[AttackerSummary], items: Iterable[GalleryItem], *, room: float = 1.0
) -> Gallery:
    """Facts and small images of the items; `room` is the part of the page that they may fill."""
    most = max(1, round(MOST * room))
    count = len(items) if isinstance(items, Sized) else most
    budget = int(BUDGET * room) // max(1, min(count, most))
    facts, images, columns = [], [], COLUMNS[:3]
    labels, shrink = Labels(record), Shrinker(budget)
    waiting = iter(items)
    for item in islice(waiting, most):
        facts.append(_facts(record, summaries, labels, item))
        images.append(shrink(item))
        if item.attention is not None:
            columns = COLUMNS
    chunks = [images[i : i + CHUNK] for i in range(0, len(images), CHUNK)]
    return Gallery(facts, chunks, columns, next(waiting, None) is not None)


def _facts(
    record: Record, summaries: list[AttackerSummary], labels: Labels, item: GalleryItem
) -> dict[str, Any]:
    trial, index = _trial(record, item), item.index
    summary = next((s for s in summaries if any(t is trial for t in s.trials)), None)
    if summary is None:
        raise InputError("a gallery item must belong to an attack, not to the clean trial")
    clean = record.clean(trial.scenario)

    def name(one: Trial) -> str:
        return trial_name(one, summary.trials)

    return {
        "name": str(labels.images[index]),
        "label": labels.label(index),
        "clean_predicted": labels.class_name(clean.predicted[index]) if clean else "",
        "predicted": labels.class_name(trial.predicted[index]),
        "correct": bool(trial.correct[index]),
        "outcome": outcome(summary, clean, index),
        "attack": name(trial) if item.adversarial is not None else "not attacked",
        "scenario": trial.scenario,
        "threat": trial.strength,
        "distance": float(trial.distance[index]),
        "factor": factor(item),
        "successes": [
            name(t) for t in summary.trials if not t.correct[index] and index not in t.not_attacked
        ],
        "predictions": [
            [t.scenario, name(t), t.strength, labels.class_name(t.predicted[index]), bool(t.correct[index])]
            for t in record.trials
            if index not in t.not_attacked
        ],
    }


def _trial(record: Record, item: GalleryItem) -> Trial:
    """The item's trial, if there are such a trial and such an image."""
    if not 0 <= item.trial < len(record.trials):
        raise InputError(f"a gallery item names trial {item.trial}, the record has {len(record.trials)}")
    trial = record.trials[item.trial]
    if not 0 <= item.index < len(trial.correct):
        raise InputError(f"a gallery item names image {item.index}, the record has {len(trial.correct)}")
    return trial


def factor(item: GalleryItem) -> int:
    """How much the difference is amplified, so that its largest value just fills the range; 0 for none."""
    if item.clean is None or item.adversarial is None:
        return 0
    return amplification([(item.clean, item.adversarial)])


class Shrinker:
    """Makes images small enough: so many characters for each item, on average.

    A size that proved too large is not tried again, so that the images of a page look alike.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.allowed, self.coarser = budget, 0, 0

    def __call__(self, item: GalleryItem) -> list[str]:
        """Data URLs of clean, attacked and difference, and of attention; what is missing is empty.

        The smallest size is taken where none fits.
        """
        images = views(item)
        side = max([0] + [max(p.size) for p in images if p is not None])
        self.allowed += self.budget
        while True:
            sizes = list(_sizes(side))
            size = sizes[min(self.coarser, len(sizes) - 1)]
            urls = [_data_url(image, *size, noise=i == 2) for i, image in enumerate(images)]
            used = sum(map(len, urls))
            if used <= self.allowed or size == sizes[-1]:
                self.allowed -= used
                return urls
            self.coarser += 1


def views(item: GalleryItem) -> list[Image.Image | None]:
    """Clean, attacked and amplified difference, then attention on both where there are maps of it."""
    clean, attacked = item.clean, item.adversarial
    shown = [None if pixels is None else Image.fromarray(pixels) for pixels in (clean, attacked)]
    if clean is None or attacked is None:
        return [*shown, None]
    shown.append(Image.fromarray(amplified(clean, attacked, factor(item))))
    if item.attention is not None:
        shown += map(heat, item.attention, shown[:2])
    return shown


def _sizes(side: int) -> Iterator[tuple[int, int | None]]:
    """Sides and qualities to try; a quality of None keeps every pixel."""
    if side <= EXACT:
        yield side, None
    yield from ((min(wide, side), quality) for wide, quality in SIZES if wide <= max(side, SIZES[-1][0]))


def _data_url(image: Image.Image | None, side: int, quality: int | None, *, noise: bool) -> str:
    if image is None:
        return ""
    if max(image.size) > side:
        # Averaging would cancel the noise of a difference and make it look weaker than it is.
        filter_ = Image.Resampling.NEAREST if noise else Image.Resampling.LANCZOS
        scale = side / max(image.size)
        size = tuple(max(1, round(edge * scale)) for edge in image.size)
        image = image.resize((size[0], size[1]), filter_)
    setting = {"lossless": True} if quality is None else {"quality": quality}
    return data_url(encoded(image, "WEBP", method=2, **setting), "WEBP")
