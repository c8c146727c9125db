"""What an attack costs: forward and backward passes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from robvit.attacks.core import Model
from robvit.progress import silent


class Count:
    """A model that counts: `forward` and `backward` are passes summed over images.

    >>> counted = Count(model)
    >>> adv = pgd(counted, x, y, threat, steps=10)
    >>> counted.forward / len(x)
    """

    def __init__(self, model: Model, each_pass: Callable[[int], None] = silent) -> None:
        self.__wrapped__ = model
        self.each_pass = each_pass  # is told of every forward pass, over how many images
        self.forward = 0
        self.backward = 0
        self._nan: torch.Tensor | None = None

    @property
    def nan_seen(self) -> bool:
        """Whether any output so far held a NaN."""
        return self._nan is not None and bool(self._nan)

    def forget_nan(self) -> None:
        """As if no output had held a NaN: what followed from it was made anew."""
        self._nan = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        output = self.__wrapped__(x)
        self.forward += len(x)
        self.each_pass(len(x))
        bad = output.detach().isnan().any()
        self._nan = bad if self._nan is None else self._nan | bad  # read at the end: no wait for the device
        if output.requires_grad:
            output.register_hook(self._note)
        return output

    def _note(self, grad: torch.Tensor) -> None:
        self.backward += len(grad)
