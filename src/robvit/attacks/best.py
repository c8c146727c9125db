"""The best adversarial image so far for each image, inside a budget or as near as can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import torch

from robvit.threat import Threat

S = TypeVar("S")


def take(state: S, keep: torch.Tensor) -> S:
    """The same dataclass with the rows `keep` of all its tensors."""
    record = cast(Any, state)
    return cast(S, replace(record, **{f.name: getattr(record, f.name)[keep] for f in fields(record)}))


class Best:
    """The best image found so far for each row: an adversarial one before others, then the higher value."""

    def __init__(self, x: torch.Tensor, early_stop: bool = True) -> None:
        self.adv = x.clone()
        self.value = torch.full((len(x),), -math.inf, device=x.device, dtype=x.dtype)
        self.success = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.early_stop = early_stop

    def offer(
        self, rows: torch.Tensor, point: torch.Tensor, value: torch.Tensor, success: torch.Tensor
    ) -> torch.Tensor | None:
        """Keep what is better; then the positions still to be attacked, or None if that is all of them."""
        before = self.success[rows]
        better = (success & ~before) | ((success == before) & (value > self.value[rows]))
        self.adv[rows] = torch.where(better.view(-1, 1, 1, 1), point, self.adv[rows])
        self.value[rows] = torch.where(better, value.to(self.value), self.value[rows])
        self.success[rows] = before | success
        if not self.early_stop or not bool(success.any()):
            return None
        return (~success).nonzero()[:, 0]

    def survivors(self) -> torch.Tensor:
        """The rows that are still to be attacked."""
        return (~self.success | (not self.early_stop)).nonzero()[:, 0]


class Nearest:
    """The nearest adversarial image so far for each row, for attacks that look for the smallest change.

    With `early_stop` and a finite budget a row is done as soon as it is misclassified inside the budget.
    """

    def __init__(self, x: torch.Tensor, threat: Threat, early_stop: bool = True) -> None:
        self.x, self.threat, self.early_stop = x, threat, early_stop
        self.adv = x.clone()
        self.dist = torch.full((len(x),), math.inf, device=x.device, dtype=x.dtype)

    @property
    def _endless(self) -> bool:
        return not self.early_stop or not math.isfinite(self.threat.eps)

    def offer(self, rows: torch.Tensor, point: torch.Tensor, success: torch.Tensor) -> torch.Tensor | None:
        """Keep what is nearer; then the positions still to be attacked, or None if that is all of them."""
        dist = self.threat.size(point - self.x[rows])
        better = success & (dist < self.dist[rows])
        self.adv[rows] = torch.where(better.view(-1, 1, 1, 1), point, self.adv[rows])
        self.dist[rows] = torch.where(better, dist, self.dist[rows])
        if self._endless:
            return None
        inside = self.dist[rows] <= self.threat.eps
        return (~inside).nonzero()[:, 0] if bool(inside.any()) else None

    def survivors(self) -> torch.Tensor:
        """The rows that are still to be attacked."""
        return ((self.dist > self.threat.eps) | self._endless).nonzero()[:, 0]

    def halfway(self, rows: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Random points (b 3 H W) half as far as the nearest so far, or as the budget if that is less."""
        grey = torch.full_like(self.x[rows], 0.5)
        unit = (replace(self.threat, eps=0.5, psnr=None).random(grey, uniform) - grey) / 0.5
        reach = self.dist[rows].clamp_max(min(self.threat.eps, 1e3)) / 2
        return (self.x[rows] + reach.view(-1, 1, 1, 1) * unit).clamp(0, 1)

    def finish(
        self, judge: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], halvings: int
    ) -> torch.Tensor:
        """The result: nearer still by halving the way from the original, `judge(rows, point)` deciding.

        An image whose nearest lies outside the budget is projected into it. Without `early_stop` and a
        finite budget the direction is followed to the edge of the budget: what lies just across
        one model's boundary says little about another model.
        """
        if not math.isfinite(self.threat.eps):
            rows = self.dist.isfinite().nonzero()[:, 0]
            x, good, bad = self.x[rows], self.adv[rows], self.x[rows]
            for _ in range(halvings if len(rows) else 0):
                middle = (good + bad) / 2
                success = judge(rows, middle).view(-1, 1, 1, 1)
                good, bad = torch.where(success, middle, good), torch.where(success, bad, middle)
            shorter = (self.threat.size(good - x) <= self.dist[rows]).view(-1, 1, 1, 1)
            self.adv[rows] = torch.where(shorter, good, self.adv[rows])
        elif not self.early_stop:
            stretch = (self.threat.eps / self.threat.size(self.adv - self.x).clamp_min(1e-30)).clamp_min(1)
            self.adv = self.x + (self.adv - self.x) * stretch.view(-1, 1, 1, 1)
        return self.threat.project(self.x, self.adv)
