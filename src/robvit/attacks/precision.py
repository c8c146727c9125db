"""Search in low precision or with another attention kernel; `run` believes what the model itself confirms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from robvit.attacks.core import Model, modules_of
from robvit.errors import InputError

PLAIN = "/plain"  # after a precision: attention by plain matrix products, not by a fused kernel
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = (*DTYPES, *(name + PLAIN for name in DTYPES))


def check_precision(name: str, auto: bool = False) -> None:
    """Refuse a precision nobody searches in; `auto` may be among them."""
    known = ("auto", *DTYPES) if auto else tuple(DTYPES)
    if name not in PRECISIONS and name not in known:
        words = f"{', '.join(known[:-1])} or {known[-1]}"
        raise InputError(f"precision must be {words}, the last with {PLAIN} too, got {name!r}")


class Autocast:
    """A model as an attack searches on it: pixels to logits in full precision, its layers in another.

    With "/plain", attention is computed by plain matrix products during its passes: on some processors the
    backward pass of the fused kernel is slow in low precision.
    """

    def __init__(self, model: Model, precision: str) -> None:
        check_precision(precision)
        self.__wrapped__ = model
        self.dtype = DTYPES[precision.removesuffix(PLAIN)]
        self.fused = fused_layers(model) if precision.endswith(PLAIN) else []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        low = self.dtype is not torch.float32
        with plain_attention(self.fused), torch.autocast(x.device.type, self.dtype, enabled=low):
            return self.__wrapped__(x).float() if low else self.__wrapped__(x)


def searched(model: Model, precision: str) -> Model:
    """The model as attacks search on it in a precision: in fp32 the model itself."""
    return model if precision == "fp32" else Autocast(model, precision)


def fused_layers(model: object) -> list[nn.Module]:
    """The attention layers of timm's that use a fused kernel."""
    parts = (part for network in modules_of(model) for part in network.modules())
    return [part for part in parts if getattr(part, "fused_attn", False) is True]


@contextmanager
def plain_attention(layers: list[nn.Module]) -> Iterator[None]:
    """The layers without their fused kernel inside, and with it afterwards."""
    try:
        for layer in layers:
            layer.fused_attn = False  # type: ignore[assignment]
        yield
    finally:
        for layer in layers:
            layer.fused_attn = True  # type: ignore[assignment]
