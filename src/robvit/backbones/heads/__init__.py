"""Heads on frozen features; importing them files them in HEADS."""

from robvit.backbones.heads.base import HEADS, FeatureHead, load_head, pooled
from robvit.backbones.heads.linear import ClassTokenHead, LinearHead, MeanPatchHead, PrefixHead, import_linear
from robvit.backbones.heads.nearest import NearestHead
from robvit.backbones.heads.segmentation import SegmentationHead

__all__ = [
    "HEADS",
    "ClassTokenHead",
    "FeatureHead",
    "LinearHead",
    "MeanPatchHead",
    "NearestHead",
    "PrefixHead",
    "SegmentationHead",
    "import_linear",
    "load_head",
    "pooled",
]
