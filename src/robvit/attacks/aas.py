"""Adaptive attention scaling (Jain and Dutta, CVPR 2024): craft where attention does not saturate.

The scaled model, another function than the model, only crafts: images are attacked to the full
objective whatever it thinks of them, and success is the unscaled model's to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from robvit.attacks.core import ATTACKS, Model, attack, misclassified
from robvit.attacks.pgd import pgd
from robvit.attacks.scales import Scaled, find_scales, free_blocks, network_of
from robvit.registry import unknown
from robvit.threat import NORMS, Threat

FACTORS = (10.0, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # the paper's, for one factor for all blocks


def craft_scaled(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    scales: torch.Tensor | Sequence[float],
    base: str = "pgd",
    settings: dict[str, Any] | None = None,
) -> torch.Tensor:
    """Images (B 3 H W) that attack `base` makes on the scaled model, each to its full objective."""
    known = ATTACKS.entry(base).facts["defaults"]
    for name in settings or {}:
        if name not in known:
            raise unknown(f"setting of {base}", name, list(known))
    given = {**(settings or {}), "early_stop": False}
    if "judge" in known:
        given.setdefault("judge", model)
    return ATTACKS[base](Scaled(model, scales), x, y, threat, **given)


@attack(
    kind="budget",
    norms=NORMS,
    paper="CVPR 2024",
    like=pgd.__name__,
    needs="attention",
    batch_coupled=True,
    quick={"steps": 3, "scale_steps": 2},
)
def aas(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    base: str = "pgd",
    options: dict[str, Any] | None = None,
    scales: Sequence[float] | None = None,
    objective: str = "unit",
    scale_steps: int = 10,
    scale_step: float = 1.0,
    starts: int = 1,
    blocks: int | Sequence[int] | None = None,
    space: str = "linear",
    seed: int = 0,
    **settings: Any,
) -> torch.Tensor:
    """Another attack, `base`, on the model with its attention scaled. x (B 3 H W) in [0,1], y (B,).

    The scales are found on the batch (`find_scales`) unless they are given. Settings that it does not
    name itself go to the base attack, such as steps or loss, and those in `options`.
    """
    if scales is None:
        scales = find_scales(
            model,
            [(x, y)],
            objective=objective,
            steps=scale_steps,
            step_size=scale_step,
            starts=starts,
            blocks=blocks,
            space=space,
            seed=seed,
        ).values
    passed = {"seed": seed, **settings, **(options or {})}
    return craft_scaled(model, x, y, threat, scales=scales, base=base, settings=passed)


@attack(
    kind="budget",
    norms=NORMS,
    paper="CVPR 2024",
    like=pgd.__name__,
    needs="attention",
    batch_coupled=True,
    quick={"steps": 3, "factors": (1.0, 0.01)},
)
def scale(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    base: str = "pgd",
    options: dict[str, Any] | None = None,
    factors: float | Sequence[float] = FACTORS,
    blocks: int | Sequence[int] | None = None,
    judge: Model | None = None,
    **settings: Any,
) -> torch.Tensor:
    """Another attack, `base`, on the model with one factor for all blocks. x (B 3 H W) in [0,1], y (B,).

    Of several factors the one is kept that fools the judge, the unscaled model, most often in the batch.
    """
    free = free_blocks(blocks, network_of(model))
    best, most = x, -1
    for factor in [factors] if isinstance(factors, int | float) else factors:
        scales = torch.where(free, float(factor), 1.0)
        adv = craft_scaled(
            model, x, y, threat, scales=scales, base=base, settings={**settings, **(options or {})}
        )
        hits = int(misclassified((judge or model)(adv), y).sum()) if isinstance(factors, Sequence) else 0
        if hits > most:
            best, most = adv, hits
    return best
