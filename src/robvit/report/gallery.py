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
from robvit.report.summary import AttackerSummary, Labels, clean_of, outcome, trial_name

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
    """A record's image number `place` as trial number `trial` left it, uint8 (H W 3).

    Either image may be missing: the original where it is not at hand, the other where it was wrong
    from the start and no attack took it up. `attention` is a map (h w) of any scale for each of the two.
    """

    place: int
    trial: int
    adversarial: Pixels | None
    clean: Pixels | None = None
    attention: Sequence[Map] | None = None


@dataclass(frozen=True)
class Gallery:
    """What the page needs: facts of every item, and their images in chunks of data addresses."""

    items: list[dict[str, Any]]
    chunks: list[list[list[str]]]
    columns: list[str]
    left_out: bool


def gallery(
    record: Record, standings: list[AttackerSummary], exhibits: Iterable[GalleryItem], *, room: float = 1.0
) -> Gallery:
    """Facts and small images of the exhibits; `room` is the part of the page that they may fill."""
    most = max(1, round(MOST * room))
    count = len(exhibits) if isinstance(exhibits, Sized) else most
    budget = int(BUDGET * room) // max(1, min(count, most))
    items, images, columns = [], [], COLUMNS[:3]
    labels, small = Labels(record), Small(budget)
    waiting = iter(exhibits)
    for exhibit in islice(waiting, most):
        items.append(_facts(record, standings, labels, exhibit))
        images.append(small.images(exhibit))
        if exhibit.attention is not None:
            columns = COLUMNS
    chunks = [images[i : i + CHUNK] for i in range(0, len(images), CHUNK)]
    return Gallery(items, chunks, columns, next(waiting, None) is not None)


def _facts(
    record: Record, standings: list[AttackerSummary], labels: Labels, exhibit: GalleryItem
) -> dict[str, Any]:
    trial, place = _found(record, exhibit), exhibit.place
    standing = next((s for s in standings if any(t is trial for t in s.trials)), None)
    if standing is None:
        raise InputError("an exhibit must belong to an attack, not to the clean trial")
    clean = clean_of(record, trial.scenario)

    def name(one: Trial) -> str:
        return trial_name(one, standing.trials)

    return {
        "name": str(labels.images[place]),
        "truth": labels.truth(place),
        "before": labels.class_name(clean.predicted[place]) if clean else "",
        "after": labels.class_name(trial.predicted[place]),
        "correct": bool(trial.correct[place]),
        "outcome": outcome(standing, clean, place),
        "attack": name(trial) if exhibit.adversarial is not None else "not attacked",
        "scenario": trial.scenario,
        "threat": trial.strength,
        "distance": float(trial.distance[place]),
        "factor": factor(exhibit),
        "misclassified": [
            name(t) for t in standing.trials if not t.correct[place] and place not in t.skipped
        ],
        "said": [
            [t.scenario, name(t), t.strength, labels.class_name(t.predicted[place]), bool(t.correct[place])]
            for t in record.trials
            if place not in t.skipped
        ],
    }


def _found(record: Record, exhibit: GalleryItem) -> Trial:
    """The exhibit's trial, if there are such a trial and such an image."""
    if not 0 <= exhibit.trial < len(record.trials):
        raise InputError(f"an exhibit names trial {exhibit.trial}, the record has {len(record.trials)}")
    trial = record.trials[exhibit.trial]
    if not 0 <= exhibit.place < len(trial.correct):
        raise InputError(f"an exhibit names image {exhibit.place}, the record has {len(trial.correct)}")
    return trial


def factor(exhibit: GalleryItem) -> int:
    """How much the difference is amplified, so that its largest value just fills the range; 0 for none."""
    if exhibit.clean is None or exhibit.adversarial is None:
        return 0
    return amplification([(exhibit.clean, exhibit.adversarial)])


class Small:
    """Makes images small enough: so many characters for each exhibit, on the average.

    A size that proved too large is not tried again, so that the images of a page look alike.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.allowed, self.coarser = budget, 0, 0

    def images(self, exhibit: GalleryItem) -> list[str]:
        """Data addresses of clean, attacked and difference, and of attention; what is missing is empty.

        The smallest size is taken where none fits.
        """
        images = views(exhibit)
        side = max([0] + [max(p.size) for p in images if p is not None])
        self.allowed += self.budget
        while True:
            ways = list(_ways(side))
            way = ways[min(self.coarser, len(ways) - 1)]
            found = [_address(image, *way, noise=i == 2) for i, image in enumerate(images)]
            used = sum(map(len, found))
            if used <= self.allowed or way == ways[-1]:
                self.allowed -= used
                return found
            self.coarser += 1


def views(exhibit: GalleryItem) -> list[Image.Image | None]:
    """Clean, attacked and amplified difference, then attention on both where there are maps of it."""
    clean, attacked = exhibit.clean, exhibit.adversarial
    shown = [None if pixels is None else Image.fromarray(pixels) for pixels in (clean, attacked)]
    if clean is None or attacked is None:
        return [*shown, None]
    shown.append(Image.fromarray(amplified(clean, attacked, factor(exhibit))))
    if exhibit.attention is not None:
        shown += map(heat, exhibit.attention, shown[:2])
    return shown


def _ways(side: int) -> Iterator[tuple[int, int | None]]:
    """Sides and qualities to try; a quality of None keeps every pixel."""
    if side <= EXACT:
        yield side, None
    yield from ((min(wide, side), quality) for wide, quality in SIZES if wide <= max(side, SIZES[-1][0]))


def _address(image: Image.Image | None, side: int, quality: int | None, *, noise: bool) -> str:
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
