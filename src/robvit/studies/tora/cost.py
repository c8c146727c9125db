"""What adapters cost on a backbone, counted without weights."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from robvit.defenses.tora.modules import Adapters, AdapterShape

BACKBONE = "vit_base_patch16_224"  # the slides'


class Cost(NamedTuple):
    """Billions of operations an image and millions of parameters, the backbone's and its head included."""

    gflops: float
    millions: float


def _norm(shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 10 * math.prod(shape)


def cost(tuning: str, backbone: str = BACKBONE) -> Cost:
    """A multiplication with its addition counts once and a normalised value five times, as papers count."""
    with torch.device("meta"):
        net: Any = timm.create_model(backbone).eval()
        adapters = Adapters(AdapterShape(net.num_features, len(net.blocks), net.num_classes, tuning)).eval()
        pixels = torch.zeros(1, 3, *net.patch_embed.img_size)
    count = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.native_layer_norm: _norm})
    with count, torch.no_grad():
        adapters.logits(net, adapters.tokens(net, pixels, {}))
    parameters = sum(p.numel() for module in (net, adapters) for p in module.parameters())
    return Cost(count.get_total_flops() / 2e9, parameters / 1e6)
