"""The largest activation after every block."""

from __future__ import annotations

import torch

from robvit.attention import watch
from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.explanation.subject import Subject, figure
from robvit.record import Curve
from robvit.report.figure import Figure


@torch.no_grad()
def streams(model: Model, x: torch.Tensor) -> tuple[list[torch.Tensor], Tokens]:
    """The residual stream after every block, mostly (B T D), and the final tokens."""
    with watch(model, residual=True) as seen:
        tokens = model.tokens(x)
    return [stream.detach() for stream in seen.residual], tokens


def largest_activations(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The largest absolute value in the class and patch tokens after each block: (B blocks)."""
    residual, tokens = streams(model, x)
    registers, extra = tokens.prefix.shape[1], tokens.extra.shape[1]
    peaks = []
    for stream in residual:  # class token, registers, patches, extra tokens
        flat = stream.flatten(1, -2)
        counted = torch.cat((flat[:, :1], flat[:, registers : flat.shape[1] - extra]), dim=1)
        peaks.append(counted.abs().amax(dim=(1, 2)))
    return torch.stack(peaks, dim=1)


@figure(
    title="Largest activation after every block",
    caption="See where the attacked line leaves the clean one, and whether tokens bring it back.",
    order=10,
)
def activations(subject: Subject) -> Figure:
    """Means over the images, clean and attacked, with and without tokens."""
    lines = {}
    for view in subject.views():
        peaks = largest_activations(view.model, view.x).mean(0).tolist()
        lines[view.name] = [[float(block), peak] for block, peak in enumerate(peaks, start=1)]
    return Figure(curves=[Curve("mean over the images", "block", "largest |activation|", lines)])
