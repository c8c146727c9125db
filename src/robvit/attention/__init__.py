"""Attention: hooks that watch and scale it, whether it saturates, and whether scaling helps an attack.

The names below are for every room. `robvit.attention.saturation` and `robvit.attention.comparison` measure,
with attacks, and are imported by those who need them.
"""

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
    "attention_layers",
    "class_attention",
    "keep_scales",
    "kept_scales",
    "scaled",
    "watch",
]
