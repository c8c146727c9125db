"""What benchmarks compute with has to be right before they measure anything."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
from torch import nn

ROUNDED = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "rounded.py"))["RoundedProducts"]


def _gradients(dtype: torch.dtype) -> list[torch.Tensor]:
    """Answers and gradients of a convolution, a linear layer and a product of batches in a precision."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.Flatten(2), nn.Linear(16, 16)).to(dtype)
    x = torch.rand(2, 3, 16, 16, dtype=dtype, requires_grad=True)
    found = layers(x)
    (found @ found.transpose(1, 2)).float().square().sum().backward()
    grads = [one.grad for one in (x, *layers.parameters())]
    return [found.detach(), *(grad for grad in grads if grad is not None)]


def test_rounded_products_are_those_of_bf16() -> None:
    native = _gradients(torch.bfloat16)
    with ROUNDED():
        ours = _gradients(torch.bfloat16)
    assert len(ours) == 6
    for one, other, exact in zip(ours, native, _gradients(torch.float32), strict=True):
        assert one.dtype == torch.bfloat16
        scale = exact.abs().max()
        assert (one - other).abs().max() <= 0.01 * scale  # two roundings of bf16, of 2**-8 each
        assert (one - exact).abs().max() > 1e-4 * scale  # and rounded it is


def test_rounded_products_leave_fp32_alone() -> None:
    plain = _gradients(torch.float32)
    with ROUNDED():
        ours = _gradients(torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True))
