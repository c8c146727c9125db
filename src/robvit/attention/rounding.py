"""A model whose attention computes its softmax in a narrow number format, on any machine.

Scores and weights are rounded to the format on the way forward and their gradients on the way back, as fused
kernels do, which keep float32 inside. All else stays float32, so what changes is the softmax alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from robvit.attention.hooks import fused_scores
from robvit.attention.scaling import timm_model


class _Rounded(torch.autograd.Function):
    """Values, and the gradients that come back, as the format can hold them."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.dtype = dtype
        return value.to(dtype).to(value.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].to(ctx.dtype).to(grads[0].dtype), None


class _NarrowSoftmax(TorchFunctionMode):
    """Softmax, in the fused kernel too, on rounded scores and with rounded weights."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._softmax(fused_scores(*args, **kwargs), -1) @ args[2]
        if func in (torch.Tensor.softmax, torch.softmax, F.softmax):
            return self._softmax(args[0], kwargs.get("dim", args[1] if len(args) > 1 else -1))
        return func(*args, **kwargs)

    def _softmax(self, scores: torch.Tensor, dim: int) -> torch.Tensor:
        rounded: torch.Tensor = _Rounded.apply(scores, self.dtype)
        weights: torch.Tensor = _Rounded.apply(rounded.softmax(dim), self.dtype)
        return weights


class NarrowAttention(nn.Module):
    """A model, its weights shared, whose attention's softmax is computed in `dtype`."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype
        self.register_buffer("bits", torch.tensor([torch.finfo(dtype).bits, torch.finfo(dtype).eps]))

    @property
    def net(self) -> nn.Module:
        """The network with the attention, for those who look into it."""
        return timm_model(self.model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with _NarrowSoftmax(self.dtype):
            output: torch.Tensor = self.model(x)
        return output
