"""Augmentations as switches: images in [0,1] go in, images in [0,1] come out.

What happens to an image is decided by a seed alone, never by a generator that travels from image to
image, so it does not depend on workers, on processes or on where a run was resumed.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from robvit.augmentation import Augment

Transform = Callable[[torch.Tensor], torch.Tensor]


def seed_of(*parts: object) -> int:
    """A seed of 63 bits that depends on all the parts and on nothing else."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from the seed inside; torch's generator on the CPU is as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach for every device
        yield


def transform(settings: Augment, size: int) -> Transform:
    """What is done to one image: (3 H W) in [0,1] to (3 size size) in [0,1]."""
    steps: list[Transform] = []
    if settings.crop == "pad":
        steps.append(v2.RandomCrop(size, padding=settings.pad))
    elif settings.crop == "resized":
        steps.append(v2.RandomResizedCrop(size, settings.scale, settings.ratio, antialias=True))
    if settings.flip:
        steps.append(v2.RandomHorizontalFlip())
    if settings.rotate:
        steps.append(v2.RandomRotation(settings.rotate, v2.InterpolationMode.BILINEAR))
    if settings.randaugment:
        steps.append(_deit_policy(settings, size) if settings.policy == "deit" else _policy(settings))
    if settings.jitter:
        steps.append(v2.ColorJitter(settings.jitter, settings.jitter, settings.jitter))
    if settings.erase:
        steps.append(v2.RandomErasing(settings.erase, value="random"))

    def apply(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x)
        return x.clamp(0, 1)

    return apply


def _policy(settings: Augment) -> Transform:
    """torchvision's RandAugment."""
    grey_levels = v2.RandAugment(settings.randaugment, settings.magnitude, fill=128)
    return lambda x: grey_levels((x * 255).round().to(torch.uint8)).float() / 255


def _deit_policy(settings: Augment, size: int) -> Transform:
    """DeiT's RandAugment: timm's list of operations that grow with the magnitude, which varies by 0.5."""
    from timm.data.auto_augment import rand_augment_transform  # slow, and few ask for it
    from timm.data.constants import IMAGENET_DEFAULT_MEAN

    fill = tuple(round(255 * channel) for channel in IMAGENET_DEFAULT_MEAN)
    options = {"translate_const": int(0.45 * size), "img_mean": fill}
    name = f"rand-m{settings.magnitude}-n{settings.randaugment}-mstd0.5-inc1"
    operate = rand_augment_transform(name, options)

    def apply(x: torch.Tensor) -> torch.Tensor:
        seed = int(torch.randint(2**31, ()))  # timm draws from Python and numpy, which are put back
        states = random.getstate(), np.random.get_state()
        random.seed(seed)
        np.random.seed(seed)
        try:
            levels = pil_to_tensor(operate(to_pil_image(x)))
            made: torch.Tensor = v2.functional.to_dtype(levels, torch.float32, scale=True)
            return made
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])

    return apply


def mix(
    x: torch.Tensor, y: torch.Tensor, settings: Augment, *, classes: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """MixUp or CutMix of a batch (B 3 H W), labels (B,): mixed images and probabilities (B K).

    Where nothing is mixed, the images and labels are returned as they are.
    """
    kinds: list[Callable[..., tuple[torch.Tensor, torch.Tensor]]] = []
    if settings.mixup:
        kinds.append(v2.MixUp(alpha=settings.mixup, num_classes=classes))
    if settings.cutmix:
        kinds.append(v2.CutMix(alpha=settings.cutmix, num_classes=classes))
    if not kinds:
        return x, y
    with seeded(seed):
        if float(torch.rand(())) >= settings.mix_share:
            return x, y
        kind = kinds[int(torch.randint(len(kinds), ()))]
        mixed, probabilities = kind(x, y)
    return mixed.clamp(0, 1), probabilities
