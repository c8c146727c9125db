"""How a training computes on this machine: chosen once by a probe, kept in its folder, used in every step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks.compute import Compute, settle
from robvit.attacks.cost import probed
from robvit.attacks.precision import DTYPES, PLAIN, fused_layers, plain_attention
from robvit.data import ImageDataset
from robvit.processes import processes
from robvit.training.recipe import Recipe

CHOICE = "compute.json"
WANTED = {"no": "fp32"}  # the former word of recipes


def image_size(model: nn.Module, images: ImageDataset) -> int:
    """The side of the images that a model takes; of a module that does not say so, that of the images."""
    size = getattr(model, "input_size", None)
    return int(size[0]) if isinstance(size, tuple) else int(images[0][0].shape[-1])


def settled(
    model: nn.Module, images: ImageDataset, recipe: Recipe, steps: int, folder: Path | None = None
) -> Compute:
    """Precision, attention kernel and threads for so many steps of a recipe, on the device of this process.

    What the folder of a run says is kept: a training that is resumed continues as it began.
    """
    count = probed(min(recipe.batch, len(images)), processes().device.type)
    few = torch.stack([images[i][0] for i in range(count)])
    size = image_size(model, images)
    if few.shape[-1] != size:
        few = F.interpolate(few, (size, size))
    keep = None if folder is None else folder / CHOICE
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
    passes = steps * recipe.batch * (recipe.inner.steps + 3)  # learning costs about three of the attack's
    was = model.training
    try:
        return settle(
            model.eval(),
            few.to(processes().device),
            wanted=WANTED.get(recipe.precision, recipe.precision),
            passes=passes,
            keep=keep,
        )
    finally:
        model.train(was)


@contextmanager
def lowered(compute: Compute, model: object) -> Iterator[None]:
    """The chosen threads, kernel and number type inside; the scaler of fp16 is accelerate's own."""
    name = compute.precision.removesuffix(PLAIN)
    layers = fused_layers(model) if compute.precision.endswith(PLAIN) else []
    dtype = DTYPES[name]
    low = torch.autocast(compute.device, dtype, enabled=dtype is torch.bfloat16)
    with compute.in_use(), plain_attention(layers), low:
        yield


def scaled(compute: Compute) -> str:
    """What accelerate is told: fp16, which needs its scaler, or nothing."""
    return "fp16" if compute.precision.startswith("fp16") else "no"
