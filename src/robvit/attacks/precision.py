"""Search in low precision, where it is fast; `run` believes only what full precision confirms."""

from __future__ import annotations

import torch

from robvit.attacks.core import Model
from robvit.errors import InputError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_precision(name: str) -> None:
    """Refuse a precision nobody searches in."""
    if name not in PRECISIONS:
        first, *others = PRECISIONS
        raise InputError(f"precision must be {first}, {' or '.join(others)}, got {name!r}")


class Autocast:
    """A model under autocast: pixels to logits in full precision, from layers in low precision."""

    def __init__(self, model: Model, precision: str) -> None:
        check_precision(precision)
        self.__wrapped__ = model
        self.dtype = PRECISIONS[precision]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, self.dtype):
            return self.__wrapped__(x).float()
