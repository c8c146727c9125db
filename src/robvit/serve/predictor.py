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
    """Features (1+N D) of an image and, where there are classes, logits (K,)."""

    features: torch.Tensor
    logits: torch.Tensor | None


class Predictor:
    """A model that is applied to lists of prepared images; of a pool, every image draws its own set.

    Images are decoded in other processes, which `open` starts and `close` ends. `classify` gives logits
    (B K) in place of the model's own, such as those of a defence around it.
    """

    def __init__(
        self,
        model: Model,
        resize: str | None = None,
        classify: Callable[[torch.Tensor], torch.Tensor] | None = None,
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
        self._classify = classify
        self._decoder: Decoder | None = None
        self([PreparedImage(torch.zeros(3, rows, rows), model.pool.draw() if model.pool else None)])  # warm

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
            features, *logits = self._forward([images[index] for index in indices])
            for row, index in enumerate(indices):  # copies, or one kept output would keep the whole batch
                outputs[index] = ModelOutput(
                    features[row].clone(), logits[0][row].clone() if logits else None
                )
        return [outputs[index] for index in range(len(images))]

    def _forward(self, images: list[PreparedImage]) -> tuple[torch.Tensor, ...]:
        x = torch.stack([image.pixels for image in images]).to(self.model.mean.device)
        drawn = [image.tokens for image in images if image.tokens is not None]
        if not drawn:
            outputs = self.model.features_and_logits(x)
        else:
            layers = drawn[0].layers
            extra = torch.cat([tokens.values for tokens in drawn]) if len(layers) == 1 else drawn[0].values
            outputs = self.model.features_and_logits(x, extra, layers)
        if self._classify is not None:
            outputs = (outputs[0], self._classify(x))
        return tuple(output.float().cpu() for output in outputs)


def _group_key(tokens: PlacedTokens | None) -> Any:
    """What images of one pass have in common: a set for one layer may differ from image to image."""
    if tokens is None:
        return None
    return (tokens.layers, tokens.values.shape) if len(tokens.layers) == 1 else id(tokens)
