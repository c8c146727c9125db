"""A toy classifier that small budgets do not break, and images that it classifies correctly."""

from __future__ import annotations

import torch

from robvit.data import ImageDataset, open_data
from robvit.evaluation.forecast import Steadfast


def airplanes(count: int) -> ImageDataset:
    """Images that the steadfast toy classifies correctly."""
    listing = open_data("sample", limit=400)
    return listing.take([i for i, label in enumerate(listing.labels) if label == 0][:count]).resized(8)


class Sturdy(Steadfast):
    """A linear model that small budgets do not move away from class 0, and large ones do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1000 * x.flatten(1) @ self.slopes.T / 4 + self.lead
