"""A linear head that has seen images with windows dropped, so that more of them can be certified."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch

from robvit.backbones.families import Tokens
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import Cover, cover
from robvit.data import ImageDataset
from robvit.progress import Advance, silent


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
