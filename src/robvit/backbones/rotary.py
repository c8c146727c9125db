"""Rotary positions of EVA-02 and DINOv3, which timm keeps as sines beside cosines.

Legend for shapes: B batch, N patches, T of them kept, E entries of a head.
"""

from __future__ import annotations

from typing import Any

import torch


def rotations_of(net: Any, kept: torch.Tensor) -> torch.Tensor | None:
    """The rotations of some patches by their numbers (B T): (B 1 T 2E), or (blocks B heads T 2E) if mixed."""
    if net.rope is None:
        return None
    size = {"shape": list(net.patch_embed.grid_size)} if net.dynamic_img_size else {}
    some: torch.Tensor = net.rope.get_embed(**size)[..., kept, :]
    return some[:, None] if some.ndim == 3 else some.transpose(1, 2)


def lengthened(rope: torch.Tensor, count: int) -> torch.Tensor:
    """Rotations (... N 2E) and `count` more that rotate by nothing: sine 0 and cosine 1."""
    sin, cos = rope.chunk(2, dim=-1)
    shape = (*sin.shape[:-2], count, sin.shape[-1])
    sin = torch.cat((sin, sin.new_zeros(shape)), dim=-2)
    cos = torch.cat((cos, cos.new_ones(shape)), dim=-2)
    return torch.cat((sin, cos), dim=-1)
