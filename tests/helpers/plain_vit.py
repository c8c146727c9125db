"""A small plain ViT: each of its tokens has pixels of its own, unlike those of the bundled models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

ARCH = "vit_plain_of_the_tests"


@timm.models.register_model
def vit_plain_of_the_tests(pretrained: bool = False, **settings: Any) -> VisionTransformer:
    for of_timm in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        settings.pop(of_timm, None)
    shape = {"img_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 10}
    return VisionTransformer(**{**shape, **settings})


def plain_vit(**settings: Any) -> torch.nn.Module:
    """The network with weights that are always the same."""
    torch.manual_seed(0)
    return vit_plain_of_the_tests(**settings).eval()


def save_plain_vit(path: Path) -> None:
    save_file(plain_vit().state_dict(), path)
