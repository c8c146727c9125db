"""What the search for attention scales ascends: how far a scaled model is from the unscaled one.

B batch, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from robvit.attacks import losses
from robvit.attacks.core import require_labels
from robvit.registry import Registry

GUIDE = 50.0  # GAMA's weight for the distance of probabilities


@dataclass(frozen=True)
class View:
    """One pass: the output (B K), and the stream after each attention block, each (B ...)."""

    output: torch.Tensor
    features: list[torch.Tensor]


ScaleObjective = Callable[[View, View, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True)
class ObjectiveInfo:
    """Whether an objective looks at features, beside the output."""

    features: bool


OBJECTIVES: Registry[ScaleObjective, ObjectiveInfo] = Registry("objective for scales", ObjectiveInfo)


@OBJECTIVES.add(features=True)
def unit(scaled_view: View, reference: View, y: torch.Tensor | None) -> torch.Tensor:
    """The distance of features, each brought to length one, summed over blocks."""
    pairs = zip(scaled_view.features, reference.features, strict=True)
    directions = ((_unit(a), _unit(b)) for a, b in pairs)
    return torch.stack([(a - b).norm(dim=1) for a, b in directions]).sum(0)


@OBJECTIVES.add(features=True)
def lpips(scaled_view: View, reference: View, y: torch.Tensor | None) -> torch.Tensor:
    """The paper's Eq. 3 to the letter: the distance over both lengths, which shrinks as features grow."""
    pairs = [
        (a.flatten(1), b.flatten(1)) for a, b in zip(scaled_view.features, reference.features, strict=True)
    ]
    return torch.stack([(a - b).norm(dim=1) / (a.norm(dim=1) * b.norm(dim=1)) for a, b in pairs]).sum(0)


@OBJECTIVES.add(features=False)
def cross_entropy(scaled_view: View, reference: View, y: torch.Tensor | None) -> torch.Tensor:
    """Cross-entropy of the scaled model on untouched images."""
    return losses.cross_entropy(scaled_view.output, require_labels(y, "cross_entropy"))


@OBJECTIVES.add(features=False)
def margin(scaled_view: View, reference: View, y: torch.Tensor | None) -> torch.Tensor:
    """The margin of the scaled model's logits on untouched images."""
    return losses.margin(scaled_view.output, require_labels(y, "margin"))


@OBJECTIVES.add(features=False)
def gama(scaled_view: View, reference: View, y: torch.Tensor | None) -> torch.Tensor:
    """GAMA's guided margin of probabilities, away from those of the unscaled model."""
    return losses.gama(scaled_view.output, require_labels(y, "gama"), reference.output.softmax(1), GUIDE)


@OBJECTIVES.add(features=False)
def kl(scaled_view: View, reference: View, y: torch.Tensor | None) -> torch.Tensor:
    """The divergence of the scaled model's probabilities from the unscaled model's; needs no labels."""
    return losses.kl(scaled_view.output, reference.output.softmax(1))


def _unit(features: torch.Tensor) -> torch.Tensor:
    flat = features.flatten(1)
    length: torch.Tensor = flat.norm(dim=1, keepdim=True)
    return flat / length.clamp_min(1e-30)
