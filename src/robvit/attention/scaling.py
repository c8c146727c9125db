"""Attention layers, found in any model, and their scores scaled before the softmax.

`scaled` multiplies every layer's query-key products, exactly and with the fused kernel too, by scaling
the queries, through hooks that are gone when the `with` block ends; `keep_scales` makes such scales a
part of the model.

Legend for shapes: B batch, A heads, T tokens, D width, M attention layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from timm.layers.attention import Attention, AttentionRope
from timm.models import cait, eva, levit, swin_transformer, xcit
from torch import nn

from robvit.errors import InputError, Unsupported

Scale = torch.Tensor | float
Remove = Callable[[], None]
# From the module that the queries pass to its scale. Hooks are made of such functions and not of closures,
# so that a deep copy of a model has hooks that look at the copy.
ScaleOf = Callable[[nn.Module], Scale]

KEPT = "score_scale"  # the buffer of a model whose scales are its own


def timm_model(model: nn.Module) -> nn.Module:
    """The timm model inside a robvit model, or the timm model itself."""
    inner = getattr(model, "net", model)
    assert isinstance(inner, nn.Module)
    return inner


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
    net = timm_model(model)
    layers = [m for m in net.modules() if type(m) in SCALERS]
    if not layers:
        raise Unsupported(
            f"{type(net).__name__} has no attention layer that robvit knows; "
            "this needs a transformer such as ViT, DeiT, DINOv2, CLIP, EVA, CaiT, XCiT, Swin or LeViT"
        )
    return layers


def attention_blocks(model: nn.Module) -> list[nn.Module]:
    """The block around each attention layer, in the same order: the smallest module that holds it."""
    holder = {child: parent for parent in timm_model(model).modules() for child in parent.children()}
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
