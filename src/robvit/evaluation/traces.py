"""What an attack does inside the judged model: how far its features turn, and where it looks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks import frozen
from robvit.attacks.pixels import levels
from robvit.attention import class_attention
from robvit.backbones.model import Model


@torch.no_grad()
def feature_cosines(
    original: Model | None, judged: nn.Module, x: torch.Tensor, adv: torch.Tensor
) -> dict[str, list[float]]:
    """For each image the mean over tokens; nothing where there is no original to compare with."""
    if original is None:
        return {}
    assert isinstance(judged, Model)
    with frozen(judged):
        after, before = judged.features(adv), judged.features(x)
    return {
        "original": F.cosine_similarity(after, original.features(x), dim=-1).mean(1).tolist(),
        "own": F.cosine_similarity(after, before, dim=-1).mean(1).tolist(),
    }


@torch.no_grad()
def attention_maps(judged: nn.Module, x: torch.Tensor, adv: torch.Tensor) -> dict[str, torch.Tensor]:
    """Where the judged model looks, each map stretched over 0 to 255; nothing where it has no such maps."""
    model = judged if isinstance(judged, Model) else getattr(judged, "net", None)
    if not isinstance(model, Model):
        return {}
    with frozen(model):
        looks = [class_attention(model, t) for t in (x, adv)]
    if any(look is None for look in looks):
        return {}
    maps = torch.stack([look for look in looks if look is not None], dim=1)
    low, high = maps.amin((2, 3), keepdim=True), maps.amax((2, 3), keepdim=True)
    return {"attention": levels((maps - low) / (high - low).clamp_min(1e-12)).cpu()}
