"""Models that resist gradients: averages over randomness (EOT), stand-ins for what has no gradient (BPDA)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from robvit.attacks.core import Model, input_gradient
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


def bpda_moved(defended: Model, model: nn.Module) -> Model:
    """`defended`, with the gradient of `model` at the image that the defence hands to it, passed straight on.

    Purification moves an image, and the gradient where it lands may point elsewhere than at its start.
    Where the model gets no image of the same shape, its gradient is taken at the start.
    """

    def through(x: torch.Tensor) -> torch.Tensor:
        start, seen = x.detach(), [x.detach()]

        def watched(image: torch.Tensor) -> torch.Tensor:
            with _handed_to(model, seen):
                return defended(image)

        return bpda(watched, lambda leaf: model(leaf + (seen[-1] - start)))(x)

    through.__dict__["__wrapped__"] = defended
    return through


def moves(defended: Model, model: nn.Module, x: torch.Tensor) -> bool:
    """Whether a defence hands its model an image of the shape of x (B 3 H W) that is another than x."""
    seen = [x]
    with _handed_to(model, seen):
        defended(x)
    return not torch.equal(seen[-1], x)


@contextmanager
def _handed_to(model: nn.Module, seen: list[torch.Tensor]) -> Iterator[None]:
    """The last image that `model` gets takes the place of the one in `seen`, if their shapes agree.

    The last, for it gives the answer: a defence that optimises asks the model on the way there as well.
    """

    def keep(_: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], torch.Tensor) and given[0].shape == seen[-1].shape:
            seen[:] = [given[0].detach()]

    hook = model.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()


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
            total = (stand_in(leaf) * grads[0]).sum()
        return input_gradient(total, leaf), None, None
