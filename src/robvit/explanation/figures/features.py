"""Patch features as colours: their three principal components, fitted once on clean images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.drawing.grid import Grid, Row, Tile
from robvit.drawing.images import photo
from robvit.explanation.subject import SHOWN, Subject, View, figure
from robvit.report.figure import Figure

ENDS = (0.01, 0.99)  # quantiles that fill the range of a colour


@dataclass(frozen=True)
class FeatureColours:
    """Colours of features (... D): red, green and blue are the first three principal components.

    Directions point where the reference has its longer tail, so that neither a shift nor a rotation of
    the features changes a colour.
    """

    mean: torch.Tensor
    directions: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor

    @classmethod
    def fit(cls, reference: torch.Tensor) -> FeatureColours:
        """From the features (... D) of clean images."""
        flat = reference.detach().double().flatten(0, -2)
        mean = flat.mean(0)
        _, vectors = torch.linalg.eigh((flat - mean).T @ (flat - mean))
        directions = vectors[:, -3:].flip(1)
        components = (flat - mean) @ directions
        signs = torch.where(components.pow(3).mean(0) < 0, -1.0, 1.0)
        ends = torch.tensor(ENDS, dtype=components.dtype, device=components.device)
        low, high = (components * signs).quantile(ends, dim=0)
        return cls(mean, directions * signs, low, high)

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """Features (... D) to colours (... 3) in [0,1]."""
        components = (features.detach().double() - self.mean) @ self.directions
        return ((components - self.low) / (self.high - self.low).clamp_min(1e-12)).clamp(0, 1).float()


@torch.no_grad()
def patch_features(model: Model, x: torch.Tensor) -> Tokens:
    """The final tokens of images (B 3 H W)."""
    return model.tokens(x)


@figure(
    title="Patch features as colours",
    caption="Alike parts share a colour: see whether the attack breaks them, and whether tokens mend them.",
    order=60,
)
def features(subject: Subject) -> Figure:
    """Principal components of the clean features of all images, and everything in the same colours."""
    views = list(subject.views())
    outputs = [patch_features(view.model, view.x) for view in views]
    clean = outputs[0].patch
    colours = FeatureColours.fit(clean)
    rows = []
    for place in range(min(SHOWN, len(subject.x))):
        tiles = [Tile(photo(subject.x[place]), subject.names[place]), Tile(photo(subject.adv[place]))]
        for view, tokens in zip(views, outputs, strict=True):
            patches = tokens.patch[place]
            shown = photo(colours(patches).unflatten(0, tokens.grid).permute(2, 0, 1))
            tiles.append(Tile(shown, _likeness(view, patches, clean[place])))
        rows.append(Row(tiles))
    return Figure(Grid(rows, ["image", "attacked image", *(f"features, {view.name}" for view in views)]))


def _likeness(view: View, own: torch.Tensor, clean: torch.Tensor) -> str:
    """How like the clean features these are; nothing to say of the clean ones themselves."""
    if view.name == "clean":
        return ""
    return f"cosine to clean {float(F.cosine_similarity(own, clean, dim=-1).mean()):.2f}"
