"""The pixels' gradient through a patch projection by one matrix product, while a network is attacked.

The first layer of most ViTs is a convolution whose windows do not overlap, so its gradient for the pixels is
a product of matrices; on a processor torch's convolution takes several times as long for it. What the
layer returns stays the convolution's, bit for bit, and so do the gradients of weights that are trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn import functional as F


class _Projection(torch.autograd.Function):
    """A convolution of windows side by side, whose weights get no gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.conv2d(x, weight, bias, stride=weight.shape[-2:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def jvp(ctx: Any, *tangents: torch.Tensor) -> torch.Tensor:
        (weight,) = ctx.saved_tensors
        return F.conv2d(tangents[0], weight, stride=weight.shape[-2:])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (weight,), (grad,) = ctx.saved_tensors, grads
        count, outs, rows, columns = grad.shape
        colours, high, wide = weight.shape[1:]
        windows = grad.reshape(count, outs, rows * columns).transpose(1, 2) @ weight.flatten(1)
        apart = windows.reshape(count, rows, columns, colours, high, wide).permute(0, 3, 1, 4, 2, 5)
        return apart.reshape(count, colours, rows * high, columns * wide), None, None


@contextmanager
def quick_projections(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Patch projections among these modules give their pixels' gradient quickly inside.

    A layer whose `forward` somebody has put there is left alone, be it this function further out.
    """
    # A wrapper such as `eot` may list a layer twice.
    found = dict.fromkeys(part for part in parts if _is_projection(part) and "forward" not in vars(part))
    try:
        for part in found:
            part.forward = partial(_project, part)  # type: ignore[method-assign]
        yield
    finally:
        for part in found:
            del part.forward


def _is_projection(part: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether it is a convolution on a processor, of windows side by side that miss nothing inside."""
    return (
        type(part) is nn.Conv2d
        and part.weight.device.type == "cpu"
        and part.kernel_size == part.stride
        and part.kernel_size != (1, 1)
        and part.padding in ((0, 0), "valid")
        and (part.dilation, part.groups) == ((1, 1), 1)
    )


def _project(part: nn.Conv2d, x: torch.Tensor) -> torch.Tensor:
    """What the convolution returns; where the quick gradient would not be right, all is its own."""
    fits = x.ndim == 4 and all(s % k == 0 for s, k in zip(x.shape[-2:], part.kernel_size, strict=True))
    trained = any(p.requires_grad for p in part.parameters())
    plain = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    if fits and plain and not trained and x.requires_grad and torch.is_grad_enabled():
        out: torch.Tensor = _Projection.apply(x, part.weight, part.bias)
        return out
    return nn.Conv2d.forward(part, x)
