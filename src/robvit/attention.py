"""Looking into attention and scaling it, through hooks that are gone when the `with` block ends.

`watch` records what passes: the residual stream after each block, the scores that enter each softmax
and the attention maps that leave it. `scaled` multiplies every block's query-key products before the
softmax, exactly and with the fused kernel too, by scaling the queries.

Legend for shapes: B batch, A heads, T tokens, D width, M attention layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention, AttentionRope
from timm.models import cait, eva, levit, swin_transformer, xcit
from torch import nn
from torch.overrides import TorchFunctionMode

from robvit.errors import InputError, Unsupported

Scale = torch.Tensor | float
Remove = Callable[[], None]


def _net(model: nn.Module) -> nn.Module:
    """The timm model inside a robvit model, or the timm model itself."""
    inner = getattr(model, "net", model)
    assert isinstance(inner, nn.Module)
    return inner


# --- scaling -----------------------------------------------------------------------------------------


def _scale_output(module: nn.Module, scale: Scale, share: int = 1) -> Remove:
    """Multiply a module's output, or only the first 1/`share` of its channels, by `scale`."""

    def hook(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        if share == 1:
            return output * scale
        width = output.shape[-1] // share
        return torch.cat((output[..., :width] * scale, output[..., width:]), dim=-1)

    return module.register_forward_hook(hook).remove


def _scale_q_norm(attention: Any, scale: Scale) -> Remove:
    return _scale_output(attention.q_norm, scale)  # timm calls it even where it is the identity


def _scale_q(attention: Any, scale: Scale) -> Remove:
    return _scale_output(attention.q, scale)


def _scale_first_third(attention: Any, scale: Scale) -> Remove:
    return _scale_output(attention.qkv, scale, share=3)


def _scale_levit(attention: Any, scale: Scale) -> Remove:
    """LeViT interleaves queries, keys and values head by head."""

    channels = 1 if attention.use_conv else 2

    def hook(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        heads = output.unflatten(channels, (attention.num_heads, -1))
        query, rest = heads.tensor_split([attention.key_dim], dim=channels + 1)
        return torch.cat((query * scale, rest), dim=channels + 1).flatten(channels, channels + 1)

    layer: nn.Module = attention.qkv
    return layer.register_forward_hook(hook).remove


def _scale_temperature(attention: Any, scale: Scale) -> Remove:
    """XCiT normalises queries and keys, so only its temperature can carry the scale.

    The parameter steps aside while the layer runs and is back before anyone else can look.
    """
    parameter: nn.Parameter = attention.temperature

    def swap(_: nn.Module, __: Any) -> None:
        del attention._parameters["temperature"]
        attention.temperature = parameter * scale

    def restore(_: nn.Module, __: Any, ___: Any) -> None:
        if "temperature" not in attention._parameters:
            del attention.temperature
            attention._parameters["temperature"] = parameter

    before = attention.register_forward_pre_hook(swap)
    after = attention.register_forward_hook(restore, always_call=True)

    def remove() -> None:
        before.remove()
        after.remove()

    return remove


# One line for each attention layer of timm that robvit knows; the line says where its queries are.
SCALERS: dict[type[nn.Module], Callable[[Any, Scale], Remove]] = {
    Attention: _scale_q_norm,
    AttentionRope: _scale_q_norm,
    eva.EvaAttention: _scale_q_norm,
    cait.TalkingHeadAttn: _scale_first_third,
    cait.ClassAttn: _scale_q,
    swin_transformer.WindowAttention: _scale_first_third,
    levit.Attention: _scale_levit,
    levit.AttentionDownsample: _scale_q,
    xcit.XCA: _scale_temperature,
}


def attention_layers(model: nn.Module) -> list[nn.Module]:
    """The model's attention layers in the order in which they run; an error if there are none."""
    net = _net(model)
    layers = [m for m in net.modules() if type(m) in SCALERS]
    if not layers:
        raise Unsupported(
            f"{type(net).__name__} has no attention layer that robvit knows; "
            "this needs a transformer such as ViT, DeiT, DINOv2, CLIP, EVA, CaiT, XCiT, Swin or LeViT"
        )
    return layers


def attention_blocks(model: nn.Module) -> list[nn.Module]:
    """The block around each attention layer, in the same order: the smallest module that holds it."""
    holder = {child: parent for parent in _net(model).modules() for child in parent.children()}
    return [holder[layer] for layer in attention_layers(model)]


@contextmanager
def scaled(model: nn.Module, scales: torch.Tensor | Sequence[float]) -> Iterator[None]:
    """Multiply the query-key products of attention layer i by `scales[i]` before the softmax.

    scales (M,) may carry gradients. Biases and masks are not scaled. A scale of 1 changes no bit.
    """
    layers = attention_layers(model)
    if len(scales) != len(layers):
        raise InputError(f"expected one scale for each of {len(layers)} attention layers, got {len(scales)}")
    with ExitStack() as stack:
        for layer, scale in zip(layers, scales, strict=True):
            stack.callback(SCALERS[type(layer)](layer, scale))
        yield


# --- watching ----------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What the last forward pass showed; every list is in the order of the layers.

    residual: the stream after each attention block, mostly (B T D). scores, maps: (B A T T), for XCiT's
    channel attention (B A D/A D/A), for windows (B*windows A T T), for class attention (B A 1 T).
    """

    residual: list[torch.Tensor] = field(default_factory=list)
    scores: list[torch.Tensor] = field(default_factory=list)
    maps: list[torch.Tensor] = field(default_factory=list)


class _SeeSoftmax(TorchFunctionMode):
    """While an attention layer runs, note what enters its softmax, in the fused kernel too."""

    def __init__(self, note: Callable[[int, torch.Tensor], None]) -> None:
        super().__init__()
        self.note = note
        self.layer: int | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.layer is not None:
            if func is F.scaled_dot_product_attention:
                self.note(self.layer, _fused_scores(*args, **kwargs))
            elif func in (torch.Tensor.softmax, torch.softmax, F.softmax):
                self.note(self.layer, args[0])
        return func(*args, **kwargs)


def _fused_scores(
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
) -> Iterator[Seen]:
    """Record the asked parts of every forward pass inside the block; the outputs stay as they are."""
    seen = Seen()
    with ExitStack() as stack:
        if residual:
            _watch_residual(model, seen, stack)
        if scores or maps:
            _watch_attention(model, seen, stack, scores=scores, maps=maps)
        yield seen


def _watch_residual(model: nn.Module, seen: Seen, stack: ExitStack) -> None:
    blocks = attention_blocks(model)

    def hook(block: nn.Module, _: Any, output: torch.Tensor) -> None:
        if block is blocks[0]:
            seen.residual.clear()
        seen.residual.append(output)

    for block in blocks:
        stack.callback(block.register_forward_hook(hook).remove)


def _watch_attention(model: nn.Module, seen: Seen, stack: ExitStack, *, scores: bool, maps: bool) -> None:
    def note(layer: int, score: torch.Tensor) -> None:
        if layer == 0:
            seen.scores.clear()
            seen.maps.clear()
        if scores:
            seen.scores.append(score)
        if maps:
            seen.maps.append(score.softmax(dim=-1))

    mode = _SeeSoftmax(note)
    for index, layer in enumerate(attention_layers(model)):

        def enter(_: nn.Module, __: Any, index: int = index) -> None:
            mode.layer = index

        def leave(_: nn.Module, __: Any, ___: Any) -> None:
            mode.layer = None

        stack.callback(layer.register_forward_pre_hook(enter).remove)
        stack.callback(layer.register_forward_hook(leave, always_call=True).remove)
    stack.enter_context(mode)
