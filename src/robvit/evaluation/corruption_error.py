"""Natural robustness in one figure: the mean corruption error, normalised by AlexNet as published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from robvit.errors import InputError

# AlexNet's error on ImageNet-C, the mean over the five severities (Hendrycks and Dietterich, ICLR 2019).
ALEXNET_ERRORS = {
    "gaussian_noise": 0.886,
    "shot_noise": 0.894,
    "impulse_noise": 0.923,
    "defocus_blur": 0.820,
    "glass_blur": 0.826,
    "motion_blur": 0.786,
    "zoom_blur": 0.798,
    "snow": 0.867,
    "frost": 0.827,
    "fog": 0.819,
    "brightness": 0.565,
    "contrast": 0.853,
    "elastic_transform": 0.646,
    "pixelate": 0.718,
    "jpeg_compression": 0.607,
}


def corruption_errors(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Each corruption's mean error over its severities, divided by AlexNet's; 1 is as bad as AlexNet."""
    if errors.keys() != ALEXNET_ERRORS.keys():
        odd = ", ".join(sorted(errors.keys() ^ ALEXNET_ERRORS.keys()))
        raise InputError(f"expected errors for the 15 published corruptions, missing or unknown: {odd}")
    for name, values in errors.items():
        if not values or not all(0 <= value <= 1 for value in values):
            raise InputError(f"expected errors of {name} in 0..1, one a severity, got {list(values)}")
    return {name: sum(errors[name]) / len(errors[name]) / base for name, base in ALEXNET_ERRORS.items()}


def mean_corruption_error(errors: Mapping[str, Sequence[float]]) -> float:
    """The mCE of ImageNet-C; it compares with published figures only for models of ImageNet's classes."""
    each = corruption_errors(errors)
    return sum(each.values()) / len(each)
