"""Auto-PGD towards each of the likeliest wrong classes in turn (2003.01690)."""

from __future__ import annotations

from functools import partial

import torch

from robvit.attacks.apgd import search
from robvit.attacks.best import Best
from robvit.attacks.boundaries import boundaries
from robvit.attacks.core import AttackCheck, Model, attack, require_labels
from robvit.attacks.losses import dlr_targeted, likeliest_wrong
from robvit.errors import InputError
from robvit.threat import NORMS, Threat


@attack(kind="budget", norms=NORMS, paper="2003.01690", check=AttackCheck({"steps": 5, "targets": 2}))
def apgd_t(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 100,
    targets: int = 9,
    restarts: int = 1,
    candidates: int | None = None,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """`apgd` towards each of the likeliest wrong classes in turn. x (B 3 H W) in [0,1], y (B,).

    steps: gradient steps a target.
    targets: how many wrong classes; a model of fewer classes has fewer.
    restarts: rounds through all targets.
    candidates: take the targets from so many likeliest classes, the nearest first: those of the least
        margin over its gradient's norm, for one backward pass each. A class's start stays the same, so that
        with as many candidates as targets the same images break, but sooner.
    early_stop: an image leaves the batch as soon as it is misclassified.
    seed: decides the starts, together with each image.
    """
    labels, best = require_labels(y, "apgd_t"), Best(x, early_stop)
    if candidates is not None and candidates < targets:
        raise InputError(f"candidates must be at least targets, {targets}, got {candidates}")
    wrong, ranks = _targets(model, x, labels, threat, targets, candidates)
    for restart in range(restarts):
        for wanted, rank in zip(wrong.unbind(1), ranks.unbind(1), strict=True):

            def objective(
                output: torch.Tensor, rows: torch.Tensor, step: int, /, wanted: torch.Tensor = wanted
            ) -> torch.Tensor:
                return dlr_targeted(output, labels[rows], wanted[rows])

            search(
                model,
                x,
                y,
                threat,
                best,
                objective=objective,
                steps=steps,
                seed=seed,
                purpose=[f"apgd_t {restart} {place}" for place in rank.tolist()],
            )
    return best.adv


def _targets(
    model: Model, x: torch.Tensor, y: torch.Tensor, threat: Threat, targets: int, candidates: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The classes to aim at and their ranks by likelihood, both (B targets), in the order of the attempts."""
    if candidates is None:
        likeliest = likeliest_wrong(model(x), y, targets)
        return likeliest, torch.arange(likeliest.shape[1], device=x.device).expand_as(likeliest)
    choose = partial(likeliest_wrong, labels=y, count=candidates)
    output, found = boundaries(model, x, y, choose, threat)
    dist = torch.stack([boundary.dist for boundary in found], dim=1)
    ranks = dist.argsort(dim=1, stable=True)[:, :targets]
    return choose(output).gather(1, ranks), ranks
