"""The smallest budget within which `pgd` succeeds: bisection, each search from the nearest success so far."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from robvit.attacks.best import Best, Nearest
from robvit.attacks.core import (
    AttackCheck,
    Model,
    attack,
    misclassified,
    per_image_uniform,
    require_labels,
)
from robvit.attacks.losses import Loss, objective_of
from robvit.attacks.pgd import ascend
from robvit.errors import InputError
from robvit.threat import Threat

OCTAVES = 12  # budgets from the largest down to a 4096th of it, at equal ratios
CHECK = AttackCheck({"steps": 3, "rounds": 3})
HALVINGS = 8  # of the way from the original to the nearest success, at the end


@attack(kind="minimum", norms=("linf", "l2"), paper="1706.06083", check=CHECK)
def pgd_min(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 20,
    rounds: int = 8,
    restarts: int = 1,
    reach: float | None = None,
    loss: str | Loss = "margin",
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """`pgd` within the smallest budget in which it succeeds. x (B 3 H W) in [0,1], y (B,).

    Whoever falls within the largest budget is attacked again within ever closer ones, each time from the
    nearest adversarial image so far, brought to the new budget. Within a finite budget of the threat's one
    search is enough. Not for L1, whose steps do not look for room in the box; there is fab.

    steps: gradient steps of a search.
    rounds: halvings of the range of budgets, which are 2**rounds at equal ratios.
    restarts: starts of a search, all but the first at random.
    reach: the largest budget that is tried, in the threat's norm; the whole box if left out.
    loss: a name from `LOSSES` or a callable.
    early_stop: within a finite budget, an image leaves as soon as it is misclassified.
    seed: decides the random starts, together with each image.
    """
    if steps < 1 or restarts < 1 or rounds < 1:
        raise InputError(f"steps, restarts and rounds must be at least 1, got {steps}, {restarts}, {rounds}")
    labels = require_labels(y, "pgd_min")
    bisection = _Bisection(model, x, labels, threat, steps, rounds, restarts, loss, seed)
    finite = math.isfinite(threat.eps)
    box = float(threat.size(torch.ones_like(x[:1])))
    top = threat.eps if finite else min(box, reach or math.inf)
    best = bisection.search(torch.arange(len(x), device=x.device), top, early_stop or not finite)
    if finite:
        return best.adv
    bisection.close_in(top)
    return bisection.nearest.finish(lambda rows, point: misclassified(model(point), labels[rows]), HALVINGS)


class _Bisection:
    """The nearest adversarial image of each row so far, and searches within given budgets."""

    def __init__(
        self,
        model: Model,
        x: torch.Tensor,
        y: torch.Tensor,
        threat: Threat,
        steps: int,
        rounds: int,
        restarts: int,
        loss: str | Loss,
        seed: int,
    ) -> None:
        self.model, self.x, self.y, self.threat = model, x, y, threat
        self.steps, self.levels, self.restarts, self.loss, self.seed = steps, 2**rounds, restarts, loss, seed
        self.nearest = Nearest(x, threat)

    def search(self, rows: torch.Tensor, eps: float, early_stop: bool = True) -> Best:
        """Attack these rows within a budget; what succeeds is kept if it is nearer."""
        x, y, budget = self.x[rows], self.y[rows], replace(self.threat, eps=eps)
        best = Best(x, early_stop)
        for restart in range(self.restarts):
            start = budget.random(x, per_image_uniform(x, self.seed, f"start {restart}"))
            near = self.nearest.dist[rows]
            if restart == 0 and bool(near.isfinite().any()):
                scale = torch.where(near.isfinite(), eps / near.clamp_min(1e-30), 0).view(-1, 1, 1, 1)
                brought = budget.project(x, x + scale.clamp_max(1) * (self.nearest.adv[rows] - x))
                start = torch.where(near.isfinite().view(-1, 1, 1, 1), brought, start)
            ascend(
                self.model,
                x,
                y,
                budget,
                best,
                objective=objective_of(self.loss, y),
                start=start,
                steps=self.steps,
                size=lambda _: 2.5 * eps / self.steps,
            )
        self.nearest.offer(rows, best.adv, best.success)
        return best

    def close_in(self, top: float) -> None:
        """Halve, for each row that fell, the range of budgets in which it may still withstand."""
        fell = self.nearest.dist.isfinite()
        low = torch.zeros_like(self.y)
        high = torch.where(fell, self.levels, 0)
        while bool((high - low > 1).any()):
            middle = torch.where(high - low > 1, (low + high) // 2, -1)
            for level in sorted(set(middle[middle >= 0].tolist())):  # rows of one budget go together
                eps = top * 2 ** (-OCTAVES * (1 - level / self.levels))
                rows = (middle == level).nonzero()[:, 0]
                open_rows = rows[self.nearest.dist[rows] > eps]
                if len(open_rows):
                    self.search(open_rows, eps)
                inside = self.nearest.dist[rows] <= eps + self.threat.tolerance(self.x)
                high[rows] = torch.where(inside, level, high[rows])
                low[rows] = torch.where(inside, low[rows], level)
