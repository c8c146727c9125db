"""A linear head that has seen images with windows dropped, so that more of them can be certified."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from robvit.backbones.families import Tokens
from robvit.backbones.heads import LinearHead, load_head
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn, fitting
from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import Cover, cover
from robvit.data import ImageDataset
from robvit.data.opening import HELD_OUT, LEARN, open_to_learn
from robvit.errors import DataError, InputError
from robvit.evaluation.subset import Data
from robvit.progress import Advance, part_of, silent

LEARNED = 1000  # images that a model without a classifier is given a head by


def with_head(
    model: Model,
    data: Data,
    folder: Path,
    patch: int,
    windows: int | tuple[int, int],
    *,
    resize: str | None,
    batch: int,
    progress: Advance = silent,
) -> tuple[Model, str | None]:
    """A model without classes, with a head that is learned on the data's training part and kept in a folder.

    Each image is seen whole and with one pair of windows dropped. Also the part of the data to judge on: its
    own, or what was kept apart of a folder without splits.
    """
    if not isinstance(data, str | Path):
        raise InputError(f"{model.name} has no classes that a patch could change; give it a head")
    size, resize = model.input_size, fitting(model, resize)
    images = open_to_learn(data, size=size[0], resize=resize, limit=LEARNED)
    if images.kind != "labels":
        raise DataError(f"a head learns from labels, the images of {data} have {images.kind}; give --head")
    decisive = json.dumps([images.facts(), patch, windows, model.identity()])
    place = folder / f"head-{hashlib.sha256(decisive.encode()).hexdigest()[:12]}.safetensors"
    if not place.exists():
        share = part_of(progress, 1 / (2 * len(images)))
        head = fit_dropped_head(
            model, images, patch=patch, windows=windows, draws=1, batch=batch, progress=share
        )
        head.trained_on = TrainedOn(size, resize)
        head.learned_from = tuple(images.checksums())
        head.save(place)
    learned = model.replace(head=load_head(place).to(model.mean.device)).eval()
    return learned, HELD_OUT if images.split == LEARN else None


def fit_dropped_head(
    model: Model,
    images: ImageDataset,
    *,
    patch: int,
    windows: int | tuple[int, int] = 3,
    draws: int = 4,
    batch: int = 32,
    seed: int = 0,
    progress: Advance = silent,
) -> LinearHead:
    """A head learned on every labelled image whole, and `draws` times with a random pair of windows dropped.

    The backbone stays as it is. `progress` counts images, (draws + 1) times as many as there are.
    """
    dropping = TokenDropping(model)
    windowed = _Windowed(dropping, cover(model.input_size, dropping.token, patch, windows), seed)
    again = _repeated(images, batch, draws + 1, windowed)
    twin: Model = windowed  # type: ignore[assignment]  # it has all that a head asks of a model
    return LinearHead.fit(twin, again, len(images.classes), names=images.classes, progress=progress)


class _Windowed:
    """What a head learns from: the tokens of whole images in the first pass, then with a pair dropped."""

    def __init__(self, dropping: TokenDropping, windows: Cover, seed: int) -> None:
        self.dropping, self.cover = dropping, windows
        self.draws = random.Random(seed)
        self.whole = True

    def tokens(self, x: torch.Tensor) -> Tokens:
        pair = () if self.whole else self.draws.choice(self.cover.pairs)
        kept = torch.tensor(self.cover.kept(*pair), device=x.device).expand(len(x), -1)
        return self.dropping.tokens(self.dropping.embed(x), kept)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a head asks for is the model's own."""
        return getattr(self.dropping.model, name)


def _repeated(
    images: ImageDataset, batch: int, times: int, windowed: _Windowed
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for number in range(times):
        windowed.whole = number == 0
        yield from images.batches(batch)
