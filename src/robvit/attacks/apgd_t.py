"""Auto-PGD towards each of the likeliest wrong classes in turn (2003.01690)."""

from __future__ import annotations

import torch

from robvit.attacks.apgd import search
from robvit.attacks.best import Best
from robvit.attacks.core import AttackCheck, Model, attack, require_labels
from robvit.attacks.losses import dlr_targeted, likeliest_wrong
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
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """`apgd` towards each of the likeliest wrong classes in turn. x (B 3 H W) in [0,1], y (B,).

    steps: gradient steps a target.
    targets: how many wrong classes; a model of fewer classes has fewer.
    restarts: rounds through all targets.
    early_stop: an image leaves the batch as soon as it is misclassified.
    seed: decides the starts, together with each image.
    """
    labels, best = require_labels(y, "apgd_t"), Best(x, early_stop)
    wrong = likeliest_wrong(model(x), labels, targets)
    for restart in range(restarts):
        for rank, wanted in enumerate(wrong.unbind(1)):

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
                purpose=f"apgd_t {restart} {rank}",
            )
    return best.adv
