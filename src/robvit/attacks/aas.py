"""Adaptive attention scaling (Jain and Dutta, CVPR 2024): craft where attention does not saturate.

The scaled model, another function than the model, only crafts: images are attacked to the full
objective whatever it thinks of them, and success is the unscaled model's to decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from robvit.attacks.core import ATTACKS, AttackCheck, Model, attack, check_settings, misclassified, supported
from robvit.attacks.pgd import pgd
from robvit.attacks.scales import Scaled, find_scales, free_blocks, network_of
from robvit.errors import InputError
from robvit.threat import NORMS, Threat

RESERVED = {
    "early_stop": "every image is attacked to the full objective",
    "targeted": "scales are found by what leads away from the labels",
}
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
    given = dict(settings or {})
    check_settings(base, given)
    for name in RESERVED:
        if name in given:
            raise InputError(f"{name} can't be set where attention is scaled: {RESERVED[name]}; leave it out")
    given = supported(base, judge=model) | given | supported(base, early_stop=False)
    return ATTACKS[base](Scaled(model, scales), x, y, threat, **given)


@attack(
    kind="budget",
    norms=NORMS,
    paper="CVPR 2024",
    like=pgd.__name__,
    without=tuple(RESERVED),
    needs="attention",
    batch_coupled=True,
    check=AttackCheck({"steps": 3, "scale_steps": 2}),
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

    base: the attack that makes the images.
    options: settings of the base attack that have a name of this one's.
    scales: one factor for each attention block; found on the batch (`find_scales`) if left out.
    objective, scale_steps, scale_step, starts, blocks, space: those of `find_scales`.
    seed: of the search and of the base attack.
    settings: all others go to the base attack, such as steps or loss.
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
    without=tuple(RESERVED),
    needs="attention",
    batch_coupled=True,
    check=AttackCheck({"steps": 3, "factors": (1.0, 0.01)}),
)
def aas_uniform(
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

    base: the attack that makes the images.
    options: settings of the base attack that have a name of this one's.
    factors: one, or several of which the one is kept that makes the judge err most in the batch.
    blocks: scale only the first so many blocks, or those listed.
    judge: the unscaled model if left out.
    settings: all others go to the base attack, such as steps or loss.
    """
    free = free_blocks(blocks, network_of(model))
    best, most_successes = x, -1
    for factor in [factors] if isinstance(factors, int | float) else factors:
        scales = torch.where(free, float(factor), 1.0)
        adv = craft_scaled(
            model, x, y, threat, scales=scales, base=base, settings={**settings, **(options or {})}
        )
        successes = int(misclassified((judge or model)(adv), y).sum()) if isinstance(factors, Sequence) else 0
        if successes > most_successes:
            best, most_successes = adv, successes
    return best
