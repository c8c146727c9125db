"""From images to answers: decoding, a secret draw for every request, and passes through the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from robvit.backbones.model import Model, PlacedTokens
from robvit.data.decode import HOWS, fit, read_image
from robvit.errors import InputError, Unsupported


@dataclass(frozen=True)
class Question:
    """An image (3 H W) in [0,1], and the tokens drawn for it where there is a pool."""

    image: torch.Tensor
    tokens: PlacedTokens | None = None


@dataclass(frozen=True)
class Answer:
    """Features (1+N D) of an image and, where there are classes, logits (K,)."""

    features: torch.Tensor
    logits: torch.Tensor | None


class Answering:
    """A model that answers lists of questions; of a pool, every question draws its own set."""

    def __init__(self, model: Model, resize: str = "squash") -> None:
        if resize not in HOWS:
            raise InputError(f"images are fitted by {' or '.join(HOWS)}, got {resize!r}")
        rows, columns = model.input_size
        if rows != columns:
            raise Unsupported(f"images are made square, {model.name} takes {rows}x{columns}")
        if getattr(model.head, "kind", "") == "segmentation":
            raise Unsupported("a prediction here is one class an image; a segmentation head is not served")
        self.model, self.resize, self.size = model.eval(), resize, rows
        self.classes = list(getattr(model.head, "names", []))
        self([Question(torch.zeros(3, rows, rows), model.pool.draw() if model.pool else None)])  # warm

    def question(self, data: bytes, max_pixels: int) -> Question:
        """What an image's bytes ask; raises ImageError if they are no image."""
        pixels = fit(read_image(data, max_pixels=max_pixels), self.size, self.resize)
        pool = self.model.pool
        return Question(pixels.float() / 255, pool.draw() if pool else None)

    @torch.inference_mode()
    def __call__(self, questions: list[Question]) -> list[Answer]:
        """Answers in the order of the questions; those whose tokens fit together share a pass."""
        groups: dict[Any, list[int]] = {}
        for place, question in enumerate(questions):
            groups.setdefault(_kind(question.tokens), []).append(place)
        answers: dict[int, Answer] = {}
        for places in groups.values():
            together = [questions[place] for place in places]
            features, *logits = self._pass(together)
            for row, place in enumerate(places):  # copies, or one kept answer would keep the whole batch
                answers[place] = Answer(features[row].clone(), logits[0][row].clone() if logits else None)
        return [answers[place] for place in range(len(questions))]

    def _pass(self, questions: list[Question]) -> tuple[torch.Tensor, ...]:
        x = torch.stack([question.image for question in questions]).to(self.model.mean.device)
        drawn = [question.tokens for question in questions if question.tokens is not None]
        if not drawn:
            outputs = self.model.features_and_logits(x)
        else:
            layers = drawn[0].layers
            extra = torch.cat([one.values for one in drawn]) if len(layers) == 1 else drawn[0].values
            outputs = self.model.features_and_logits(x, extra, layers)
        return tuple(output.float().cpu() for output in outputs)


def _kind(tokens: PlacedTokens | None) -> Any:
    """What questions of one pass have in common: a set for one layer may differ from image to image."""
    if tokens is None:
        return None
    return (tokens.layers, tokens.values.shape) if len(tokens.layers) == 1 else id(tokens)
