"""k nearest neighbours on frozen features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from robvit.backbones.families import Tokens
from robvit.backbones.heads.base import HEADS, Batches, FeatureHead, check_classes, collect, pooled
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.errors import InputError
from robvit.progress import Advance, silent


@HEADS.add("knn")
class NearestHead(FeatureHead):
    """k nearest neighbours by cosine, softly voting: Tokens -> log-votes (B K), differentiable."""

    kind = "knn"
    bank: torch.Tensor
    labels: torch.Tensor

    def __init__(
        self,
        bank: torch.Tensor,
        labels: torch.Tensor,
        classes: int,
        fingerprint: str,
        names: list[str] | None = None,
        neighbours: int = 20,
        temperature: float = 0.07,
    ) -> None:
        super().__init__(classes, fingerprint, names)
        self.neighbours, self.temperature = neighbours, temperature
        self.register_buffer("bank", bank)
        self.register_buffer("labels", labels)

    @classmethod
    def blank(cls, state: dict[str, torch.Tensor], **about: Any) -> NearestHead:
        return cls(torch.empty_like(state["bank"]), torch.empty_like(state["labels"]), **about)

    def check_state(self, path: str) -> None:
        if self.bank.ndim != 2 or self.labels.shape != self.bank.shape[:1] or not len(self.labels):
            raise InputError(f"{path} is damaged: it needs a label for each of its features")
        try:
            check_classes(self.labels, self.classes)
        except InputError as error:
            raise InputError(f"{path} is damaged: {error}") from None

    def forward(self, tokens: Tokens, size: tuple[int, int]) -> torch.Tensor:
        near, where = (F.normalize(pooled(tokens), dim=1) @ self.bank.T).topk(
            min(self.neighbours, len(self.bank)), dim=1
        )
        votes = F.one_hot(self.labels[where], self.classes) * (near / self.temperature).softmax(1)[:, :, None]
        return (votes.sum(1) + 1e-6).log()

    @classmethod
    def fit(
        cls,
        model: Model,
        batches: Batches,
        classes: int,
        *,
        names: list[str] | None = None,
        progress: Advance = silent,
    ) -> NearestHead:
        """Remember the normalised features of all training images."""
        x, y = collect(model, batches, progress)
        check_classes(y, classes)
        head = cls(F.normalize(x, dim=1), y, classes, model.fingerprint(), names).eval()
        head.trained_on = TrainedOn(model.input_size)
        return head
