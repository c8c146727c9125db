"""Looking into attention, through hooks that are gone when the `with` block ends.

`watch` records what passes: the residual stream after each block, the scores that enter each softmax
and the attention maps that leave it.

Legend for shapes: B batch, A heads, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from robvit.attention.scaling import attention_blocks, attention_layers
from robvit.errors import Unsupported


@dataclass
class Recording:
    """What passed in the last forward pass; every list is in the order of the layers.

    residual: the stream after each attention block, mostly (B T D). scores, maps: (B A T T), for XCiT's
    channel attention (B A D/A D/A), for windows (B*windows A T T), for class attention (B A 1 T).
    """

    residual: list[torch.Tensor] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)
    maps: list[torch.Tensor] = field(default_factory=list)


FUSED = F.scaled_dot_product_attention
SOFTMAX = (torch.Tensor.softmax, torch.softmax, F.softmax)


class InAttention(TorchFunctionMode):
    """While an attention layer runs, its softmax, or the fused kernel with it, goes through `attend`."""

    layer: int | None = None

    def attend(self, layer: int, func: Any, args: Any, kwargs: Any) -> Any:
        """What takes the place of `func`, which is `FUSED` or one of `SOFTMAX`."""
        raise NotImplementedError

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.layer is not None and (func is FUSED or func in SOFTMAX):
            return self.attend(self.layer, func, args, kwargs)
        return func(*args, **kwargs)


class _SoftmaxInputs(InAttention):
    """Notes what enters the softmax of each layer."""

    def __init__(self, note: Callable[[int, torch.Tensor], None]) -> None:
        super().__init__()
        self.note = note

    def attend(self, layer: int, func: Any, args: Any, kwargs: Any) -> Any:
        self.note(layer, fused_scores(*args, **kwargs) if func is FUSED else args[0])
        return func(*args, **kwargs)


def inside_attention(model: nn.Module, mode: InAttention, stack: ExitStack) -> None:
    """Have the mode at work inside the attention layers of a model until the stack unwinds."""
    for index, layer in enumerate(attention_layers(model)):

        def enter(_: nn.Module, __: Any, index: int = index) -> None:
            mode.layer = index

        def leave(_: nn.Module, __: Any, ___: Any) -> None:
            mode.layer = None

        stack.callback(layer.register_forward_pre_hook(enter).remove)
        stack.callback(layer.register_forward_hook(leave, always_call=True).remove)
    stack.enter_context(mode)


def fused_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> torch.Tensor:
    """The scores that the fused kernel computes and never shows."""
    assert not is_causal
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is None:
        return scores
    return scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


@contextmanager
def watch(
    model: nn.Module, *, residual: bool = False, scores: bool = False, maps: bool = False
) -> Iterator[Recording]:
    """Record the asked parts of every forward pass inside the block; the outputs stay as they are."""
    recording = Recording()
    with ExitStack() as stack:
        if residual:
            _watch_residual(model, recording, stack)
        if scores or maps:
            _watch_attention(model, recording, stack, scores=scores, maps=maps)
        yield recording


def _watch_residual(model: nn.Module, recording: Recording, stack: ExitStack) -> None:
    blocks = attention_blocks(model)

    def hook(block: nn.Module, _: Any, output: torch.Tensor) -> None:
        if block is blocks[0]:
            recording.residual.clear()
        recording.residual.append(output)

    for block in blocks:
        stack.callback(block.register_forward_hook(hook).remove)


def _watch_attention(
    model: nn.Module, recording: Recording, stack: ExitStack, *, scores: bool, maps: bool
) -> None:
    def note(layer: int, score: torch.Tensor) -> None:
        if layer == 0:
            recording.scores.clear()
            recording.maps.clear()
        if scores:
            recording.scores.append(score)
        if maps:
            recording.maps.append(score.softmax(dim=-1))

    inside_attention(model, _SoftmaxInputs(note), stack)


@torch.no_grad()
def class_attention(model: Any, x: torch.Tensor) -> torch.Tensor | None:
    """What a robvit model's class token looks at in the last block, over all heads: (B 3 H W) to (B h w).

    None where no such map exists: attention over channels or in windows, or no class token.
    """
    maps = []
    for part in x.split(32):  # the maps of all blocks are large
        try:
            with watch(model, maps=True) as recording:
                tokens = model.tokens(part)
        except Unsupported:
            return None
        last, count = recording.maps[-1], tokens.patch.shape[1]
        end = last.shape[-1] - tokens.extra.shape[1]  # patches stand between the prefix and extra tokens
        if len(last) != len(part) or tokens.prefix.shape[1] == 0 or end <= count:
            return None
        maps.append(last.mean(1)[:, 0, end - count : end].unflatten(1, tokens.grid))
    return torch.cat(maps)
