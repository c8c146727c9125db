"""Heads on frozen features; importing them files them in HEADS."""

from robvit.backbones.heads.base import HEADS, FeatureHead, load_head, pooled
from robvit.backbones.heads.linear import LinearHead
from robvit.backbones.heads.nearest import NearestHead
from robvit.backbones.heads.segmentation import SegmentationHead

__all__ = [
    "HEADS",
    "FeatureHead",
    "LinearHead",
    "NearestHead",
    "SegmentationHead",
    "load_head",
    "pooled",
]
