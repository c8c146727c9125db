"""Adversarial weight perturbation (2004.05884) around any loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from robvit.training.inner_attack import InnerAttack

Closure = Callable[[], torch.Tensor]
Mean = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def awp(
    network: nn.Module, objective: Closure, attack: InnerAttack, *, gamma: float, mean: Mean
) -> Iterator[None]:
    """Inside, the weights are moved to where the loss is worse; afterwards they are as before, bit for bit.

    Every weight of two or more axes moves along its gradient by `gamma` times its own length. The attack
    gives the same images to the objective inside. `mean` averages over processes. Statistics that the
    extra pass would leave in buffers are put back.
    """
    weights = [p for p in network.parameters() if p.requires_grad and p.ndim > 1]
    buffers = [(b, b.clone()) for b in network.buffers()]
    gradients = torch.autograd.grad(objective(), weights, allow_unused=True)
    attack.again()
    originals = [w.detach().clone() for w in weights]
    try:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    grad = mean(gradient)
                    weight.add_(grad * (gamma * weight.norm() / grad.norm().clamp_min(1e-12)))
        yield
    finally:
        with torch.no_grad():
            for weight, original in zip(weights, originals, strict=True):
                weight.copy_(original)
