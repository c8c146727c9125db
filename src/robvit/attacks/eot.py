"""Models that resist gradients: averages over randomness (EOT), stand-ins for what has no gradient (BPDA)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from robvit.attacks.core import Model
from robvit.errors import InputError


def eot(model: Model, samples: int) -> Model:
    """The mean output of `samples` passes of a randomised model, gradients included (1707.07397).

    Each pass is a call of its own, so that randomness drawn once a call is averaged as well.
    """
    if samples < 1:
        raise InputError(f"samples must be at least 1, got {samples}")

    def mean(x: torch.Tensor) -> torch.Tensor:
        total = model(x)
        for _ in range(samples - 1):
            total = total + model(x)
        return total / samples

    mean.__dict__["__wrapped__"] = model  # so that an attack finds the network and freezes it
    return mean


def bpda(forward: Model, backward: Model | None = None) -> Model:
    """`forward`, with the gradient of `backward`, a differentiable stand-in (1802.00420).

    Without a stand-in the gradient passes as it is, which fits anything that nearly returns its input,
    such as JPEG or rounding: `defended = lambda x: model(bpda(jpeg)(x))`.
    """

    def through(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = _StandIn.apply(x, forward, backward)
        return output

    through.__dict__["__wrapped__"] = forward
    return through


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, real: Model, stand_in: Model | None) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.stand_in = stand_in
        output = real(x.detach())  # NumPy would refuse an image with a gradient
        if stand_in is None and output.shape != x.shape:
            raise InputError(
                f"without a stand-in the output must have the input's shape {tuple(x.shape)}, "
                f"got {tuple(output.shape)}; give bpda() a differentiable `backward`"
            )
        return output.detach().clone()  # autograd needs a tensor that is not the input itself

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        stand_in: Callable[[torch.Tensor], torch.Tensor] | None = ctx.stand_in
        if stand_in is None:
            return grads[0], None, None
        with torch.enable_grad():
            leaf = ctx.saved_tensors[0].detach().requires_grad_()
            output = stand_in(leaf)
        (grad,) = torch.autograd.grad(output, leaf, grads[0])
        return grad, None, None
