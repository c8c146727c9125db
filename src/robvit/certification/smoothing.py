"""Randomised smoothing: what no perturbation within an L2 ball can change, with a stated confidence.

What is certified is not the network itself but its mean answer on an image under Gaussian noise of a given
sigma in pixels. `certify_label` is Cohen et al.'s certificate (1902.02918): with confidence 1 - alpha no
image within the radius gets another label. `certify_embedding` bounds how far the mean class embedding can
turn from a direction that copies of the clean image were sampled for: Phi^-1 of a mean of values in [0,1]
changes by at most r / sigma within a radius r (1906.04584).

Legend for shapes: D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import torch
import torch.nn.functional as F

from robvit.errors import InputError
from robvit.statistics import lowest_share

NORMAL = NormalDist()


LEAST_SIGMA = 0.12  # less noise certifies hardly anything


def usual_sigma(radius: float) -> float:
    """The noise for a radius where nobody chose one: as large as the radius."""
    return max(radius, LEAST_SIGMA)


@dataclass(frozen=True)
class Smoothing:
    """How noise is drawn: its sigma in pixels, samples that choose and that certify, 1 - confidence."""

    sigma: float = 0.25
    select: int = 100
    samples: int = 1000
    alpha: float = 0.001
    batch: int = 64

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and math.isfinite(self.sigma)):
            raise InputError(f"sigma must be above 0, in pixels, such as 0.25, got {self.sigma:g}")
        if not 0 < self.alpha < 1:
            raise InputError(f"alpha must lie between 0 and 1, such as 0.001, got {self.alpha:g}")
        for name, least in (("select", 1), ("samples", 2), ("batch", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be {least} or more, got {getattr(self, name)}")

    def noisy(self, x: torch.Tensor, count: int, draws: torch.Generator) -> Iterator[torch.Tensor]:
        """`count` copies of an image x (3 H W) under noise, in batches; not clamped, as the theorem wants."""
        for first in range(0, count, self.batch):
            shape = (min(self.batch, count - first), *x.shape)
            yield x + self.sigma * torch.randn(shape, generator=draws).to(x)


@torch.no_grad()
def certify_label(
    model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, rules: Smoothing, draws: torch.Generator
) -> tuple[int, float]:
    """The smoothed model's label of an image x (3 H W) and its certified L2 radius; radius 0: none."""
    chosen = _votes(model, x, rules, rules.select, draws)
    label = int(chosen.argmax())
    votes = _votes(model, x, rules, rules.samples, draws)
    share = lowest_share(int(votes[label]), rules.samples, rules.alpha)
    return label, rules.sigma * NORMAL.inv_cdf(share) if share > 0.5 else 0.0


@torch.no_grad()
def certify_embedding(
    embed: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    radius: float,
    rules: Smoothing,
    draws: torch.Generator,
) -> tuple[float, float]:
    """For x (3 H W): the cosine of smoothed and clean embedding, and the least cosine within `radius`.

    Both are with one direction, that of the mean embedding of `select` noisy copies of x, which were sampled
    and are not the exact mean. The second is a bound, with confidence 1 - alpha, for the exact mean embedding
    of any image in the ball. `embed` gives (B D), which is normalised. A mean is no longer than 1, so that
    its product with a direction, which is what the theorem bounds, is at most their cosine where it is
    positive; else nothing is known: -1.
    """
    mean = _mean_embedding(embed, x, rules, draws)
    direction = F.normalize(mean, dim=0)
    values = torch.cat(
        [F.normalize(embed(some), dim=-1) @ direction for some in rules.noisy(x, rules.samples, draws)]
    )
    low = _lowest_mean(values.double(), rules.alpha)
    clean = float(F.normalize(embed(x[None]), dim=-1)[0] @ direction)
    product = shifted(low, radius / rules.sigma)
    return clean, product if product > 0 else -1.0


def shifted(mean: float, distance: float) -> float:
    """How low a mean of values in [-1,1] can fall at this distance in sigmas: 2 Phi(Phi^-1(p) - d) - 1."""
    p = (mean + 1) / 2
    if p <= 0:
        return -1.0
    return 2 * NORMAL.cdf(NORMAL.inv_cdf(min(p, 1 - 1e-12)) - distance) - 1


def _votes(
    model: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    rules: Smoothing,
    count: int,
    draws: torch.Generator,
) -> torch.Tensor:
    logits = [model(some) for some in rules.noisy(x, count, draws)]
    return torch.cat([one.argmax(-1) for one in logits]).bincount(minlength=logits[0].shape[-1])


def _mean_embedding(
    embed: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, rules: Smoothing, draws: torch.Generator
) -> torch.Tensor:
    parts = [F.normalize(embed(some), dim=-1).sum(0) for some in rules.noisy(x, rules.select, draws)]
    return torch.stack(parts).sum(0) / rules.select


def _lowest_mean(values: torch.Tensor, alpha: float) -> float:
    """A lower bound on the mean of values in [-1,1]: Maurer and Pontil's, which uses their variance."""
    count, log = len(values), math.log(2 / alpha)
    slack = math.sqrt(2 * float(values.var()) * log / count) + 2 * 7 * log / (3 * (count - 1))
    return max(-1.0, float(values.mean()) - slack)
