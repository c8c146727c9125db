"""A network at another image size, patch size or number of classes, and weights that are fitted to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from robvit.attention import KEPT, attention_layers, keep_scales
from robvit.backbones import validate as checked
from robvit.backbones import weights, zoo
from robvit.backbones.families import patch_side
from robvit.backbones.known import check_patches
from robvit.errors import Unsupported

Size = int | tuple[int, int]


def build_adapted(
    known: zoo.Known,
    *,
    img_size: Size | None,
    patch_size: int | None,
    num_classes: int | None,
    drop_path: float,
) -> nn.Module:
    """The network with random weights at another input size and patch size."""
    strides = known.family == "xcit" and patch_size is not None
    wishes = {
        "img_size": img_size,
        "patch_size": None if strides else patch_size,
        "num_classes": num_classes,
        "drop_path_rate": drop_path or None,
    }
    wanted = {k: v for k, v in wishes.items() if v is not None}
    try:
        net = zoo.build(known, **wanted)
    except (TypeError, AssertionError) as error:
        raise Unsupported(f"timm cannot build {known.timm_name} with {wanted}: {error}") from None
    if strides:
        assert patch_size is not None
        _stride_less(net, patch_size)
    if img_size is not None and (patch := patch_side(net)):
        check_patches(known.alias, img_size, patch)
    return net


def _stride_less(net: Any, patch_size: int) -> None:
    """Give an XCiT smaller patches: the first convolutions of its stem no longer halve the image."""
    embed = net.patch_embed
    halving = [m for m in embed.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    surplus = len(halving) - (patch_size.bit_length() - 1)
    if patch_size & (patch_size - 1) or not 0 <= surplus <= len(halving):
        raise Unsupported(
            f"a stem of {len(halving)} halvings gives patches of a power of two up to {2 ** len(halving)}, "
            f"got {patch_size}"
        )
    for convolution in halving[:surplus]:
        convolution.stride = (1, 1)
    embed.patch_size = patch_size


def fill(
    net: nn.Module, tensors: dict[str, torch.Tensor], name: str, pos_embed: str, *, keep_head: bool
) -> None:
    """Load weights strictly after fitting them to the network's size, as timm does for its own."""
    if pos_embed == "hub":
        grid = getattr(getattr(net, "patch_embed", None), "grid_size", None)
        if grid is None or "pos_embed" not in tensors:
            raise Unsupported(f"{name} has no position embedding to interpolate the hub's way")
        tensors = {**tensors, "pos_embed": weights.hub_pos_embed(tensors["pos_embed"], grid)}
    own = {k: v for k, v in tensors.items() if k.endswith(f".{KEPT}")}
    if own:  # trained with scales that are a part of it
        keep_scales(net, [1.0] * len(attention_layers(net)))
        tensors = {k: v for k, v in tensors.items() if k not in own}
    tensors = checked.as_timm_fits(net, tensors)
    if not keep_head:  # another number of classes: the new head starts afresh
        fresh = {k: v for k, v in net.state_dict().items() if k.startswith("head")}
        tensors = {k: v for k, v in tensors.items() if not k.startswith("head")} | fresh
    checked.load_strict(net, {**tensors, **own}, name)
