"""How far the linearised boundaries to wrong classes are: gaps of logits over the speed of their change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from robvit.attacks.core import Model, input_gradient
from robvit.threat import Threat

PROBE = 0.1  # the size of the move that shows how fast a gap can change


class Boundary(NamedTuple):
    """The gap (b,) of the label's logit over another, its gradient (b 3 H W), and the distance (b,)."""

    gap: torch.Tensor
    normal: torch.Tensor
    dist: torch.Tensor


def gaps(output: torch.Tensor, y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The label's logit over those of other classes: (b K), (b,), (b c) -> (b c)."""
    return output.gather(1, y[:, None]) - output.gather(1, wanted)


def boundaries(
    model: Model,
    point: torch.Tensor,
    y: torch.Tensor,
    choose: Callable[[torch.Tensor], torch.Tensor],
    threat: Threat,
) -> tuple[torch.Tensor, Iterator[Boundary]]:
    """The output (b K) at a point, and in turn the boundary to each class that `choose` takes of it (b c).

    One forward pass for all of them, and one backward pass each.
    """
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        output = model(leaf)
        columns = gaps(output, y, choose(output.detach()))
        totals = columns.sum(0).unbind()

    def each() -> Iterator[Boundary]:
        # All classes in one batched pass gave equal gradients in equal time on a CPU, and more memory.
        for place, (total, gap) in enumerate(zip(totals, columns.detach().unbind(1), strict=True)):
            normal = input_gradient(total, leaf, keep_graph=place < len(totals) - 1)
            # The steepest small move shows how fast the gap can change in this norm.
            speed = (threat.steepest(normal, PROBE) * normal).flatten(1).sum(1) / PROBE
            yield Boundary(gap, normal, gap.abs() / speed.clamp_min(1e-30))

    return output.detach(), each()
