"""Attention with another backward pass, for attacks that are to transfer; outputs stay what they are.

`attention_cut` lets no gradient through the attention maps (PNA, 2109.04176). `token_gradients_levelled`
takes the tokens of extreme gradient out of it and weakens the rest (TGR, 2303.15754). Hooks are gone when
the `with` block ends.

Legend for shapes: B batch, A heads, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from timm.models import xcit
from torch import nn

from robvit.attention.hooks import FUSED, InAttention, fused_scores, inside_attention
from robvit.attention.scaling import attention_blocks, attention_layers

# What is left of a gradient that passes an attention map, the input of attention, and that of an MLP: the
# weights of the published code.
MAP_SHARE, INPUT_SHARE, MLP_SHARE = 0.25, 0.75, 0.5

Change = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def attention_cut(model: nn.Module) -> Iterator[None]:
    """Treat attention maps as constants in every backward pass of what is computed inside the block."""
    with ExitStack() as stack:
        inside_attention(model, _Cut(), stack)
        yield


class _Cut(InAttention):
    """The map depends on queries and keys alone, so that the fused kernel may keep its speed."""

    def attend(self, layer: int, func: Any, args: Any, kwargs: Any) -> Any:
        if func is not FUSED:
            return func(*args, **kwargs).detach()
        query, key, *rest = args
        return func(query.detach(), key.detach(), *rest, **kwargs)


@contextmanager
def token_gradients_levelled(model: nn.Module) -> Iterator[None]:
    """Level the gradients of tokens in every backward pass of what is computed inside the block.

    In each head of an attention map the rows and columns of the largest and the smallest entry of the
    gradient become zero; in each channel of what enters attention or an MLP (B T D), the tokens of the
    largest and the smallest. XCiT's maps, over channels, have no tokens and stay as they are.
    """
    with ExitStack() as stack:
        inside_attention(model, _LevelledMaps(attention_layers(model)), stack)
        mlps = [block.mlp for block in attention_blocks(model) if hasattr(block, "mlp")]
        for parts, share in ((attention_layers(model), INPUT_SHARE), (mlps, MLP_SHARE)):
            hook = partial(_level_input, change=partial(level_tokens, share=share))
            for part in parts:
                assert isinstance(part, nn.Module)
                stack.callback(part.register_forward_pre_hook(hook).remove)
        yield


class _LevelledMaps(InAttention):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.over_tokens = [not isinstance(layer, xcit.XCA) for layer in layers]

    def attend(self, layer: int, func: Any, args: Any, kwargs: Any) -> Any:
        if not self.over_tokens[layer]:
            return func(*args, **kwargs)
        if func is not FUSED:
            return _changed(func(*args, **kwargs), level_map)
        return _changed(fused_scores(*args, **kwargs).softmax(-1), level_map) @ args[2]


def _level_input(_: nn.Module, inputs: tuple[Any, ...], *, change: Change) -> tuple[Any, ...]:
    first, *rest = inputs
    return (_changed(first, change) if first.ndim == 3 else first, *rest)  # convolutions have no tokens


def level_map(grad: torch.Tensor, share: float = MAP_SHARE) -> torch.Tensor:
    """A gradient (B A T S) without the rows and columns of each head's extremes, times `share`."""
    flat, width = grad.flatten(2), grad.shape[-1]
    extreme = torch.stack((flat.argmax(2), flat.argmin(2)), dim=2)
    keep = torch.ones_like(grad)
    rows, columns = extreme.div(width, rounding_mode="floor"), extreme.remainder(width)
    keep.scatter_(2, rows[..., None].expand(*rows.shape, width), 0.0)
    keep.scatter_(3, columns[:, :, None].expand(*grad.shape[:3], 2), 0.0)
    return share * keep * grad


def level_tokens(grad: torch.Tensor, share: float) -> torch.Tensor:
    """A gradient (B T D) without each channel's tokens of the largest and the smallest, times `share`."""
    extreme = torch.stack((grad.argmax(1), grad.argmin(1)), dim=1)
    return share * grad.scatter(1, extreme, 0.0)


def _changed(x: torch.Tensor, change: Change) -> torch.Tensor:
    """The same values, whose gradient is changed on its way back."""
    output: torch.Tensor = _Changed.apply(x, change)
    return output


class _Changed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: Change) -> torch.Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.change(grads[0]), None
