"""Small random networks of every family that robvit knows."""

from __future__ import annotations

from typing import Any

import timm
import torch

import robvit.backbones.mini  # noqa: F401  registers the bundled network with timm

_SLIM = {"depth": 2, "embed_dim": 48, "num_heads": 3}

# Family as people know it: timm name and what makes it small.
SMALL_NETS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", {"img_size": 32, **_SLIM}),
    "deit": ("deit_tiny_distilled_patch16_224", {"img_size": 32, **_SLIM}),
    "deit3": ("deit3_small_patch16_224", {"img_size": 32, **_SLIM}),
    "dinov2": ("vit_small_patch14_dinov2", {"img_size": 28, **_SLIM}),
    "dinov2-reg": ("vit_small_patch14_reg4_dinov2", {"img_size": 28, **_SLIM}),
    "clip": ("vit_base_patch16_clip_quickgelu_224", {"img_size": 32, **_SLIM}),
    "siglip": ("vit_base_patch16_siglip_224", {"img_size": 32, **_SLIM}),
    "eva02": ("eva02_tiny_patch14_224", {"img_size": 28, **_SLIM}),
    "dinov3": ("vit_small_patch16_dinov3", {"img_size": 32, **_SLIM}),
    "xcit": ("xcit_nano_12_p16_224", {"depth": 2, "embed_dim": 64, "num_heads": 2}),
    "cait": ("cait_xxs24_224", {"img_size": 32, **_SLIM}),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)},
    ),
    "levit": ("levit_128s", {"img_size": 224, "depth": (1, 1, 1)}),
    "levit-conv": ("levit_conv_128s", {"img_size": 224, "depth": (1, 1, 1)}),
    "mini": ("robvit_mini", {}),
}


def small_net(family: str, **changes: Any) -> torch.nn.Module:
    """A small random network of a family whose every parameter matters (timm starts some at zero)."""
    name, settings = SMALL_NETS[family]
    torch.manual_seed(0)
    net = timm.create_model(name, **{"num_classes": 5, **settings, **changes}).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return net
