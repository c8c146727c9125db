"""Looking into attention and scaling it, through hooks that are gone when the `with` block ends.

`watch` records what passes: the residual stream after each block, the scores that enter each softmax
and the attention maps that leave it. `scaled` multiplies every block's query-key products before the
softmax, exactly and with the fused kernel too, by scaling the queries; `keep_scales` makes such scales a
part of the model.

Legend for shapes: B batch, A heads, T tokens, D width, M attention layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers.attention import Attention, AttentionRope
from timm.models import cait, eva, levit, swin_transformer, xcit
from torch import nn
from torch.overrides import TorchFunctionMode

from robvit.errors import InputError, Unsupported

Scale = torch.Tensor | float
Remove = Callable[[], None]
# From the module that the queries pass to its scale. Hooks are made of such functions and not of closures,
# so that a deep copy of a model has hooks that look at the copy.
ScaleOf = Callable[[nn.Module], Scale]

KEPT = "score_scale"  # the buffer of a model whose scales are its own


def _net(model: nn.Module) -> nn.Module:
    """The timm model inside a robvit model, or the timm model itself."""
    inner = getattr(model, "net", model)
    assert isinstance(inner, nn.Module)
    return inner


# --- scaling -----------------------------------------------------------------------------------------


def _times(
    module: nn.Module, _: Any, output: torch.Tensor, *, scale_of: ScaleOf, share: int = 1
) -> torch.Tensor:
    """A module's output, or only the first 1/`share` of its channels, multiplied."""
    if share == 1:
        return output * scale_of(module)
    width = output.shape[-1] // share
    return torch.cat((output[..., :width] * scale_of(module), output[..., width:]), dim=-1)


def _times_heads(
    module: nn.Module, _: Any, output: torch.Tensor, *, scale_of: ScaleOf, heads: int, width: int, axis: int
) -> torch.Tensor:
    """LeViT interleaves queries, keys and values head by head."""
    query, rest = output.unflatten(axis, (heads, -1)).tensor_split([width], dim=axis + 1)
    return torch.cat((query * scale_of(module), rest), dim=axis + 1).flatten(axis, axis + 1)


def _swap_temperature(module: Any, _: Any, *, scale_of: ScaleOf) -> None:
    """XCiT normalises queries and keys, so only its temperature can carry the scale.

    The parameter steps aside while the layer runs and is back before anyone else can look.
    """
    temperature = module.temperature
    if "temperature" in module._parameters:
        module.__dict__["_aside"] = module._parameters.pop("temperature")
    module.temperature = temperature * scale_of(module)


def _restore_temperature(module: Any, _: Any, __: Any) -> None:
    if "_aside" in module.__dict__:
        del module.temperature
        module._parameters["temperature"] = module.__dict__.pop("_aside")


def _whole(_: Any, site: nn.Module, scale_of: ScaleOf) -> Remove:
    return site.register_forward_hook(partial(_times, scale_of=scale_of)).remove


def _first_third(_: Any, site: nn.Module, scale_of: ScaleOf) -> Remove:
    return site.register_forward_hook(partial(_times, scale_of=scale_of, share=3)).remove


def _each_head(layer: Any, site: nn.Module, scale_of: ScaleOf) -> Remove:
    shape = {"heads": layer.num_heads, "width": layer.key_dim, "axis": 1 if layer.use_conv else 2}
    return site.register_forward_hook(partial(_times_heads, scale_of=scale_of, **shape)).remove


def _temperature(_: Any, site: nn.Module, scale_of: ScaleOf) -> Remove:
    before = site.register_forward_pre_hook(partial(_swap_temperature, scale_of=scale_of))
    after = site.register_forward_hook(_restore_temperature, always_call=True)

    def remove() -> None:
        before.remove()
        after.remove()

    return remove


class Queries(NamedTuple):
    """Where an attention layer's queries pass, a part of it or itself (""), and how they are multiplied."""

    part: str
    multiply: Callable[[Any, nn.Module, ScaleOf], Remove]

    def site(self, layer: nn.Module) -> nn.Module:
        return layer.get_submodule(self.part)


# One line for each attention layer of timm that robvit knows; timm calls q_norm where it is nothing, too.
SCALERS: dict[type[nn.Module], Queries] = {
    Attention: Queries("q_norm", _whole),
    AttentionRope: Queries("q_norm", _whole),
    eva.EvaAttention: Queries("q_norm", _whole),
    cait.TalkingHeadAttn: Queries("qkv", _first_third),
    cait.ClassAttn: Queries("q", _whole),
    swin_transformer.WindowAttention: Queries("qkv", _first_third),
    levit.Attention: Queries("qkv", _each_head),
    levit.AttentionDownsample: Queries("q", _whole),
    xcit.XCA: Queries("", _temperature),
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
    layers = _one_each(model, scales)
    with ExitStack() as stack:
        for layer, scale in zip(layers, scales, strict=True):
            queries = SCALERS[type(layer)]
            stack.callback(queries.multiply(layer, queries.site(layer), partial(_given, scale)))
        yield


def keep_scales(model: nn.Module, scales: torch.Tensor | Sequence[float]) -> None:
    """Make scales (M,) a part of the model: buffers that are saved with its weights, and applied always.

    They take the place of those kept before; what `scaled` multiplies comes on top of them.
    """
    for layer, scale in zip(_one_each(model, scales), scales, strict=True):
        queries = SCALERS[type(layer)]
        site = queries.site(layer)
        if KEPT not in site._buffers:
            like = next(layer.parameters())
            site.register_buffer(KEPT, torch.ones((), device=like.device, dtype=like.dtype))
            queries.multiply(layer, site, _kept)
        _kept(site).copy_(torch.as_tensor(scale).detach())


def kept_scales(model: nn.Module) -> torch.Tensor | None:
    """The scales (M,) that are a part of the model, if there are any."""
    sites = [SCALERS[type(layer)].site(layer) for layer in attention_layers(model)]
    if not all(KEPT in site._buffers for site in sites):
        return None
    return torch.stack([_kept(site).detach().clone() for site in sites])


def _one_each(model: nn.Module, scales: torch.Tensor | Sequence[float]) -> list[nn.Module]:
    layers = attention_layers(model)
    if len(scales) != len(layers):
        raise InputError(f"expected one scale for each of {len(layers)} attention layers, got {len(scales)}")
    return layers


def _given(scale: Scale, _: nn.Module) -> Scale:
    return scale


def _kept(site: nn.Module) -> torch.Tensor:
    scale = site._buffers[KEPT]
    assert scale is not None
    return scale


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


@torch.no_grad()
def class_attention(model: Any, x: torch.Tensor) -> torch.Tensor | None:
    """What a robvit model's class token looks at in the last block, over all heads: (B 3 H W) to (B h w).

    None where no such map exists: attention over channels or in windows, or no class token.
    """
    looks = []
    for part in x.split(32):  # the maps of all blocks are large
        try:
            with watch(model, maps=True) as seen:
                tokens = model.tokens(part)
        except Unsupported:
            return None
        last, count = seen.maps[-1], tokens.patch.shape[1]
        end = last.shape[-1] - tokens.extra.shape[1]  # patches stand between the prefix and extra tokens
        if len(last) != len(part) or tokens.prefix.shape[1] == 0 or end <= count:
            return None
        looks.append(last.mean(1)[:, 0, end - count : end].unflatten(1, tokens.grid))
    return torch.cat(looks)
