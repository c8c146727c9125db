"""From encoded images to model outputs: decoding, a secret draw for every request, and the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from robvit.backbones.model import Model
from robvit.backbones.parts import PlacedTokens
from robvit.backbones.trained_on import fitting
from robvit.data.decode import RESIZE_MODES
from robvit.data.decoder import Decoder
from robvit.errors import InputError, Unsupported


@dataclass(frozen=True)
class PreparedImage:
    """An image (3 H W) in [0,1], and the tokens drawn for it where there is a pool."""

    pixels: torch.Tensor
    tokens: PlacedTokens | None = None


@dataclass(frozen=True)
class ModelOutput:
    """Features (1+N D) of an image and, where there are classes, logits (K,).

    Behind a defence that may have no label to stand for, `disputed` says so.
    """

    features: torch.Tensor
    logits: torch.Tensor | None
    disputed: bool | None = None


class Predictor:
    """A model that is applied to lists of prepared images; of a pool, every image draws its own set.

    Images are decoded in other processes, which `open` starts and `close` ends. `defense` gives logits
    (B K) in place of the model's own, and which of their labels (B,) are disputed.
    """

    def __init__(
        self,
        model: Model,
        resize: str | None = None,
        defense: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> None:
        resize = fitting(model, resize)
        if resize not in RESIZE_MODES:
            raise InputError(f"images are fitted by {' or '.join(RESIZE_MODES)}, got {resize!r}")
        rows, columns = model.input_size
        if rows != columns:
            raise Unsupported(f"images are made square, {model.name} takes {rows}x{columns}")
        if getattr(model.head, "kind", "") == "segmentation":
            raise Unsupported("a prediction here is one class an image; a segmentation head is not served")
        self.model, self.resize, self.size = model.eval(), resize, rows
        self.classes = model.class_names
        self._defense = defense
        self._decoder: Decoder | None = None
        self([PreparedImage(torch.zeros(3, rows, rows), model.pool.draw() if model.pool else None)])  # warm

    @property
    def defended(self) -> bool:
        """Whether predictions are a defence's, which tells the disputed ones."""
        return self._defense is not None

    def open(self, max_pixels: int, waiting: int) -> None:
        """Start the processes that decode; of large images, `waiting` may wait for their turn."""
        self._decoder = Decoder(max_pixels=max_pixels, waiting=waiting)
        self._decoder.open()

    def close(self) -> None:
        """End the processes that decode, whatever they are at."""
        if self._decoder is not None:
            self._decoder.close()

    def prepare(self, data: bytes) -> PreparedImage:
        """An encoded image, decoded and resized, with its tokens; raises ImageError if it is no image."""
        assert self._decoder is not None
        pixels = torch.from_numpy(self._decoder.decode(data, self.size, self.resize)).permute(2, 0, 1)
        pool = self.model.pool
        return PreparedImage(pixels.float() / 255, pool.draw() if pool else None)

    @torch.inference_mode()
    def __call__(self, images: list[PreparedImage]) -> list[ModelOutput]:
        """Outputs in the order of the images; those whose tokens fit together share a pass."""
        groups: dict[Any, list[int]] = {}
        for index, image in enumerate(images):
            groups.setdefault(_group_key(image.tokens), []).append(index)
        outputs: dict[int, ModelOutput] = {}
        for indices in groups.values():
            outputs |= zip(indices, self._forward([images[index] for index in indices]), strict=True)
        return [outputs[index] for index in range(len(images))]

    def _forward(self, images: list[PreparedImage]) -> list[ModelOutput]:
        x = torch.stack([image.pixels for image in images]).to(self.model.mean.device)
        drawn = [image.tokens for image in images if image.tokens is not None]
        if not drawn:
            features, *logits = self.model.features_and_logits(x)
        else:
            layers = drawn[0].layers
            extra = torch.cat([tokens.values for tokens in drawn]) if len(layers) == 1 else drawn[0].values
            features, *logits = self.model.features_and_logits(x, extra, layers)
        disputed: list[bool] | list[None] = [None] * len(x)
        if self._defense is not None:
            defended, unsure = self._defense(x)
            logits, disputed = [defended], unsure.tolist()
        each = zip(*(output.float().cpu() for output in (features, *logits)), strict=True)
        return [  # copies, or one kept output would keep the whole batch
            ModelOutput(own[0].clone(), own[1].clone() if logits else None, unsure)
            for own, unsure in zip(each, disputed, strict=True)
        ]


def _group_key(tokens: PlacedTokens | None) -> Any:
    """What images of one pass have in common: a set for one layer may differ from image to image."""
    if tokens is None:
        return None
    return (tokens.layers, tokens.values.shape) if len(tokens.layers) == 1 else id(tokens)
