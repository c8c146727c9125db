"""Factors and images for tests of label-free fine-tuning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.data.dataset import Listing
from robvit.defenses.lora import LoRA
from robvit.defenses.low_rank import Whole, lora_of, trainable


def images(count: int = 24, labels: list[int] | None = None) -> ImageDataset:
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=torch.Generator().manual_seed(1))
    smooth = F.avg_pool2d(pixels.float(), 5, 1, 2).to(torch.uint8)
    names = [f"{i}.png" for i in range(count)]
    return ImageDataset(
        Listing(names, smooth, labels, classes=["a", "b"] if labels else []), list(range(count))
    )


def changed_lora(model: Model, rank: int = 3, blocks: int | None = None, norms: bool = False) -> LoRA:
    """Factors that do change something, with normalisations that do so too if wanted."""
    _, factors = trainable(model, rank, 8.0, blocks=blocks, norms=norms)
    for part in factors.children():
        if isinstance(part, Whole):
            part.value.data += 0.1 * torch.randn(part.value.shape, generator=torch.Generator().manual_seed(0))
        else:
            nn.init.normal_(part.up, std=0.05)
    return lora_of(factors, 8.0, model.fingerprint(), {"eps": 1 / 255})
