"""The mean and deviation of pixels that a network was trained on."""

from __future__ import annotations

from typing import Literal

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.data.config import resolve_model_data_config
from torch import nn

from robvit.errors import InputError

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
Normalise = Literal["model", "imagenet", "none"] | Statistics


def statistics(net: nn.Module, normalise: Normalise, own: Statistics | None = None) -> Statistics:
    """Mean and deviation; those of "model" are its `own` where its files tell, else timm's."""
    if not isinstance(normalise, str):
        return normalise
    if normalise == "none":
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if normalise == "imagenet":
        return IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    if normalise == "model":
        if own is not None:
            return own
        config = resolve_model_data_config(net)
        return tuple(config["mean"]), tuple(config["std"])
    raise InputError(f'normalise must be "model", "imagenet", "none" or (mean, std), got {normalise!r}')
