"""Who searches and who judges, and which successes of a search in low precision are to be confirmed.

In low precision an answer may differ with the batch that an image comes in. So it does not suffice to ask the
search again at the end: what counts is whether it ever claimed the image that it returned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch

from robvit.attacks.compiled import Compiled
from robvit.attacks.core import Model
from robvit.attacks.counting import Count
from robvit.attacks.precision import searched

SAME = 1e-3  # marks of one image may differ by so much, by the rounding of their sums


class Remembering:
    """A model that remembers which class it gave to every image, whatever batch it came in."""

    def __init__(self, model: Model) -> None:
        self.__wrapped__ = model
        self._said: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        output = self.__wrapped__(x)
        if output.ndim == 2:
            self._said.append((_marks(x), output.detach().argmax(1)))
        return output

    def forget(self) -> None:
        """Before the next batch: memory stays small."""
        self._said.clear()

    def claimed(self, adv: torch.Tensor, aim: torch.Tensor | None, targeted: bool) -> torch.Tensor:
        """Which of these images (B 3 H W) it ever gave a class that was wanted of them (B,)."""
        found = torch.zeros(len(adv), dtype=torch.bool, device=adv.device)
        if aim is None or aim.ndim != 1 or aim.is_floating_point():
            return found
        marks = _marks(adv)
        for seen, classes in self._said:
            wanted = classes == aim[:, None] if targeted else classes != aim[:, None]
            found |= (wanted & ((marks[:, None] - seen).abs() < SAME)).any(1)
        return found


class Models(NamedTuple):
    """Who is asked what: `search` is attacked, compiled and in low precision if wanted, `judged` decides.

    `own` is the attacked model as it is. `low` says that the search is in low precision, and `memory` is
    there where its successes are to be confirmed.
    """

    search: Count
    own: Count
    judged: Count
    low: bool
    memory: Remembering | None

    def forget(self) -> None:
        """Before the next batch: what low precision said of this one."""
        if self.memory is not None:
            self.memory.forget()
        if self.low:
            self.search.forget_nan()


def models_of(
    model: Model,
    victim: Model | None,
    precision: str,
    compiler: str | None,
    each_pass: Callable[[int], None],
) -> Models:
    """The attacked model and its judge, the victim if there is one; each is counted."""
    source = model if compiler is None else Compiled(model, compiler)
    source = searched(source, precision)
    low = precision != "fp32"
    memory = Remembering(source) if low and victim is None else None
    search = Count(memory or source, each_pass)
    own = search if source is model else Count(model)
    return Models(search, own, own if victim is None else Count(victim), low, memory)


def _marks(x: torch.Tensor) -> torch.Tensor:
    """A number (B,) by which each image is known again: of equal ones it is equal, but for rounding."""
    flat = x.detach().flatten(1)
    return (flat * _weights(flat.shape[1]).to(flat)).sum(1)


@lru_cache(maxsize=4)
def _weights(length: int) -> torch.Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(0))
