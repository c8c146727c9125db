"""Which images meet in which step: every epoch a new order, every image once an epoch, no rest.

The orders of all epochs form one endless row, and step s takes the next `batch` images of it; a batch
may reach over the end of an epoch. So the place in the data follows from the step alone, no image is
lost or repeated, all batches are full, and however many processes share a batch, it is the same batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.utils.data import DataLoader, Dataset

from robvit.augmentation import Augment
from robvit.data import ImageDataset
from robvit.data.augment import seed_of, seeded, transform
from robvit.errors import InputError
from robvit.training.recipe import Recipe

Key = tuple[int, ...]  # which set, which epoch of it, which image, and which copy where there are several
Item = tuple[torch.Tensor, int]


@dataclass(frozen=True)
class Sharing:
    """How a batch is shared out: `processes` of which this is number `rank`, in `parts` one after another."""

    processes: int = 1
    rank: int = 0
    parts: int = 1

    def check(self, batch: int) -> None:
        """Refuse a batch that cannot be shared out evenly."""
        shares = self.processes * self.parts
        if batch < self.processes:
            raise InputError(
                f"a batch of {batch} is smaller than the {self.processes} processes; "
                "raise batch, or start fewer processes"
            )
        if batch % shares:
            raise InputError(
                f"a batch of {batch} cannot be shared evenly by {self.processes} processes in {self.parts} "
                f"parts; set batch to a multiple of {shares}"
            )


class Stream:
    """The endless row of images of a training, real ones and a share of extra ones in every batch."""

    def __init__(self, images: ImageDataset, recipe: Recipe, extra: ImageDataset | None = None) -> None:
        self.sets = [images] if extra is None else [images, extra]
        if (extra is None) != (recipe.extra_share == 0):
            raise InputError(
                f"extra data and extra_share go together, got extra_share {recipe.extra_share:g} "
                f"and {'no' if extra is None else 'some'} extra data"
            )
        self.recipe = recipe
        foreign = round(recipe.extra_share * recipe.batch)
        self.amounts = [recipe.batch - foreign, foreign][: len(self.sets)]
        if min(self.amounts) < 1:
            raise InputError(
                f"a batch of {recipe.batch} has no room for an extra share of {recipe.extra_share:g}"
            )
        if any(amount % recipe.repeats for amount in self.amounts):
            raise InputError(
                f"a batch holds every image {recipe.repeats} times and has room for "
                f"{' and '.join(map(str, self.amounts))}; set batch to a multiple of {recipe.repeats}"
            )
        self._order = lru_cache(4)(self._draw)

    @property
    def epoch(self) -> float:
        """How many steps an epoch of the real images takes."""
        return self.recipe.replays * self.recipe.repeats * len(self.sets[0]) / self.amounts[0]

    @property
    def steps(self) -> int:
        """How many steps are taken, each batch replayed to the end."""
        return self._steps(min(self._epochs, self.recipe.stop_after or self._epochs))

    @property
    def all_steps(self) -> int:
        """How many there would be if the training were not stopped before."""
        return self._steps(self._epochs)

    @property
    def _epochs(self) -> float:
        return self.recipe.epochs + self.recipe.cooldown

    def _steps(self, epochs: float) -> int:
        return self.recipe.replays * math.ceil(epochs * self.epoch / self.recipe.replays)

    def time(self, step: int) -> float:
        """The epochs that are over when a step begins; replays of a batch are at one time."""
        return (step // self.recipe.replays) * self.recipe.replays / self.epoch

    def keys(self, step: int) -> list[Key]:
        """The images of a step, in an order of which every even part holds every set's even share."""
        turn, repeats = step // self.recipe.replays, self.recipe.repeats
        rows = []
        for which, amount in enumerate(self.amounts):
            for place in range(turn * amount, (turn + 1) * amount):
                image, copy = divmod(place, repeats)
                epoch, position = divmod(image, len(self.sets[which]))
                rows.append(((place - turn * amount + 0.5) / amount, which, epoch, position, copy))
        return [
            (which, epoch, self._order(which, epoch)[position], *([copy] if repeats > 1 else []))
            for _, which, epoch, position, copy in sorted(rows)
        ]

    def _draw(self, which: int, epoch: int) -> list[int]:
        seeded_ = torch.Generator().manual_seed(seed_of(self.recipe.seed, "order", which, epoch))
        order: list[int] = torch.randperm(len(self.sets[which]), generator=seeded_).tolist()
        return order

    def loader(self, steps: range, sharing: Sharing, size: int) -> DataLoader[Item]:
        """Batches (x, y) of one process for these steps: `parts` of them a step."""
        sharing.check(self.recipe.batch)
        return DataLoader(
            _Augmented(self.sets, self.recipe.augment, size, self.recipe.seed),
            batch_sampler=_Shares(self, steps, sharing),
            num_workers=self.recipe.workers,
            pin_memory=torch.cuda.is_available(),
        )


class _Shares:
    """One process's keys, part by part."""

    def __init__(self, stream: Stream, steps: range, sharing: Sharing) -> None:
        self.stream, self.steps, self.sharing = stream, steps, sharing

    def __len__(self) -> int:
        return len(self.steps) * self.sharing.parts

    def __iter__(self) -> Iterator[list[Key]]:
        share = self.sharing
        for step in self.steps:
            keys = self.stream.keys(step)
            size = len(keys) // (share.processes * share.parts)
            for part in range(share.parts):
                first = (part * share.processes + share.rank) * size
                yield keys[first : first + size]


class _Augmented(Dataset[Item]):
    """Images by key, each augmented by a seed of its own; the first of several copies is left as it is."""

    def __init__(self, sets: list[ImageDataset], settings: Augment, size: int, seed: int) -> None:
        # A random part is cut from the image as it is stored; anything else works on the final size.
        self.sets = [s.resized(None) if settings.takes_any_size else s.resized(size, s.resize) for s in sets]
        self.plain = [s.resized(size, s.resize) for s in sets]
        self.apply = transform(settings, size)
        self.seed = seed

    def __getitem__(self, key: Key) -> Item:
        which, _, place, *copy = key
        if copy == [0]:
            x, y = self.plain[which][place]
            return x, int(y)
        x, y = self.sets[which][place]
        with seeded(seed_of(self.seed, "augment", *key)):
            return self.apply(x), int(y)
