"""Labelled drawings, one form an image: classes that differ much, or flowers that differ in their petals.

Small sets for fine-tuning that no pretrained network has seen; the form alone says the class.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch

from robvit.data.shapes import FORMS, Form, background, light, paint_form, petals

SIDE = 64  # pixels
COUNTS = {"train": 600, "test": 300}
PETALS = (3, 4, 5, 6, 8, 12)

_STREAM = {"train": 3, "test": 4}
KINDS: dict[str, dict[str, tuple[Form, float]]] = {
    "forms": FORMS,
    "petals": {f"{count} petals": (petals(count), math.pi) for count in PETALS},
}


@cache
def drawn(kind: str, split: str) -> tuple[torch.Tensor, list[int]]:
    """All images of a split, uint8 (N 3 S S), and their classes, which take turns."""
    forms = list(KINDS[kind].values())
    labels = [i % len(forms) for i in range(COUNTS[split])]
    return torch.stack([_render(split, i, *forms[label]) for i, label in enumerate(labels)]), labels


def _render(split: str, index: int, form: Form, lean: float) -> torch.Tensor:
    rng = np.random.default_rng([_STREAM[split], index])
    image = background(rng, SIDE)
    paint_form(rng, image, form, lean, radius=(0.28, 0.40), middle=(0.40, 0.60))
    image *= light(rng, SIDE)
    image += rng.uniform(0.005, 0.03) * rng.standard_normal(image.shape, np.float32)
    return torch.from_numpy((image.clip(0, 1) * 255).round().astype(np.uint8))
