"""Attention: hooks that watch it, scale it and change its gradients; they are for every room."""

from robvit.attention.gradients import attention_cut, token_gradients_levelled
from robvit.attention.hooks import Recording, class_attention, watch
from robvit.attention.scaling import (
    KEPT,
    SCALERS,
    attention_blocks,
    attention_layers,
    keep_scales,
    kept_scales,
    scaled,
)

__all__ = [
    "KEPT",
    "SCALERS",
    "Recording",
    "attention_blocks",
    "attention_cut",
    "attention_layers",
    "class_attention",
    "keep_scales",
    "kept_scales",
    "scaled",
    "token_gradients_levelled",
    "watch",
]
