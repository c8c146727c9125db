"""Patch features as colours: their three principal components, fitted once on clean images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.explanation.drawing import Row, grid, photo
from robvit.explanation.subject import SHOWN, Subject, View, figure

ENDS = (0.01, 0.99)  # quantiles that fill the range of a colour


@dataclass(frozen=True)
class Rainbow:
    """Colours of features (... D): red, green and blue are the first three principal components.

    Directions point where the reference has its longer tail, so that neither a shift nor a rotation of
    the features changes a colour.
    """

    mean: torch.Tensor
    directions: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    @classmethod
    def fit(cls, reference: torch.Tensor) -> Rainbow:
        """From the features (... D) of clean images."""
        flat = reference.detach().double().flatten(0, -2)
        mean = flat.mean(0)
        _, vectors = torch.linalg.eigh((flat - mean).T @ (flat - mean))
        directions = vectors[:, -3:].flip(1)
        placed = (flat - mean) @ directions
        signs = torch.where(placed.pow(3).mean(0) < 0, -1.0, 1.0)
        ends = torch.tensor(ENDS, dtype=placed.dtype, device=placed.device)
        low, high = (placed * signs).quantile(ends, dim=0)
        return cls(mean, directions * signs, low, high)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Features (... D) to colours (... 3) in [0,1]."""
        placed = (features.detach().double() - self.mean) @ self.directions
        return ((placed - self.low) / (self.high - self.low).clamp_min(1e-12)).clamp(0, 1).float()


@torch.no_grad()
def patch_features(model: Model, x: torch.Tensor) -> Tokens:
    """The final tokens of images (B 3 H W)."""
    return model.tokens(x)


@figure(
    "features",
    title="Patch features as colours",
    caption="Alike parts share a colour: see whether the attack breaks them, and whether tokens mend them.",
)
def features(subject: Subject) -> dict[str, Any]:
    """Principal components of the clean features of all images, and everything in the same colours."""
    views = list(subject.views())
    found = [patch_features(view.model, view.x) for view in views]
    rainbow = Rainbow.fit(found[0].patch)
    rows = []
    for place in range(min(SHOWN, len(subject.x))):
        tiles = [photo(subject.x[place]), photo(subject.adv[place])]
        notes = [subject.names[place], ""]
        for view, tokens in zip(views, found, strict=True):
            colours = rainbow(tokens.patch[place]).unflatten(0, tokens.grid).permute(2, 0, 1)
            tiles.append(photo(colours))
            notes.append(_likeness(view, tokens.patch[place], found[0].patch[place]))
        rows.append(Row("", tiles, notes))
    heads = ["image", "attacked image", *(f"features, {view.name}" for view in views)]
    return {"image": grid(rows, heads)}


def _likeness(view: View, own: torch.Tensor, clean: torch.Tensor) -> str:
    """How like the clean features these are; nothing to say of the clean ones themselves."""
    if view.name == "clean":
        return ""
    return f"cosine to clean {float(F.cosine_similarity(own, clean, dim=-1).mean()):.2f}"
