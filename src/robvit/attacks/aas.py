"""Adaptive attention scaling (Jain and Dutta, CVPR 2024): craft where attention does not saturate.

The scaled model, another function than the model, only crafts: images are attacked to the full
objective whatever it thinks of them, and success is the unscaled model's to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from robvit.attacks.core import (
    ATTACKS,
    AttackCheck,
    Model,
    Prepared,
    attack,
    check_settings,
    misclassified,
    supported,
)
from robvit.attacks.pgd import pgd
from robvit.attacks.scales import Batch, Scaled, Scales, find_scales, free_blocks, network_of
from robvit.errors import InputError
from robvit.registry import unknown
from robvit.threat import NORMS, Threat

RESERVED = {
    "early_stop": "every image is attacked to the full objective",
    "targeted": "scales are found by what leads away from the labels",
}
FITS = ("train", "batch")
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


# What `find_scales` calls the settings that this attack has under another name.
_SEARCH = {"scale_steps": "steps", "scale_step": "step_size"}
_SHARED = ("objective", "direction", "starts", "blocks", "space", "seed")


def _search(model: Model, batches: Iterable[Batch], settings: dict[str, Any]) -> Scales:
    """The scales that settings of `aas` ask for, found on these batches."""
    given = {_SEARCH.get(k, k): v for k, v in settings.items() if k in (*_SEARCH, *_SHARED)}
    return find_scales(model, batches, **given)


def fit_scales(
    model: Model, train: Callable[[int, int], Iterable[Batch]], settings: dict[str, Any]
) -> Prepared:
    """Settings of `aas` with scales that were fitted on training images, unless they say otherwise."""
    defaults = ATTACKS.info("aas").defaults
    given = {**defaults, **settings}
    if given["scales"] is not None or given["fit"] != "train":
        return Prepared(settings, {})
    found = _search(model, train(given["fit_images"], given["fit_batch"]), given)
    return Prepared({**settings, "scales": list(found.values)}, found.metrics())


@attack(
    kind="budget",
    norms=NORMS,
    paper="CVPR 2024",
    like=pgd.__name__,
    without=tuple(RESERVED),
    needs="attention",
    batch_coupled=True,
    prepare=fit_scales,
    check=AttackCheck({"steps": 3, "scale_steps": 2, "fit": "batch"}),
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
    fit: str = "train",
    fit_images: int = 256,
    fit_batch: int = 64,
    objective: str = "unit",
    scale_steps: int = 10,
    scale_step: float = 1.0,
    direction: str = "gradient",
    starts: int = 1,
    blocks: int | Sequence[int] | None = None,
    space: str = "linear",
    seed: int = 0,
    **settings: Any,
) -> torch.Tensor:
    """Another attack, `base`, on the model with its attention scaled. x (B 3 H W) in [0,1], y (B,).

    base: the attack that makes the images.
    options: settings of the base attack that have a name of this one's.
    scales: one factor for each attention block; fitted if left out.
    fit: on which images: "train", so many (`fit_images`) of the training images, in batches over which the
        scales are carried, as the paper's Algorithm 1; or on the attacked "batch" itself.
    objective, scale_steps, scale_step, direction, starts, blocks, space: those of `find_scales`.
    seed: of the search and of the base attack.
    settings: all others go to the base attack, such as steps or loss.
    """
    if fit not in FITS:
        raise unknown("way to fit scales", fit, list(FITS))
    network_of(model)  # one without attention is refused first
    if scales is None and fit == "train":
        raise InputError(
            "aas fits scales on training images, got none: give scales=find_scales(model, batches).values, "
            'or fit="batch" for scales of the attacked images; commands take the data\'s training part'
        )
    if scales is None:
        own: dict[str, Any] = {
            "objective": objective,
            "scale_steps": scale_steps,
            "scale_step": scale_step,
            "direction": direction,
            "starts": starts,
            "blocks": blocks,
            "space": space,
            "seed": seed,
        }
        scales = _search(model, [(x, y)], own).values
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
