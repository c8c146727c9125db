"""A square of pixels that may hold anything (1712.09665): where it hurts most, and what it holds there.

Legend for shapes: B batch, H and W of an image.
"""

from __future__ import annotations

import torch

from robvit.attacks.best import Best
from robvit.attacks.core import AttackCheck, Model, Objective, attack, gradient, per_image_uniform
from robvit.attacks.feature import feature_objective
from robvit.attacks.losses import Loss, objective_of
from robvit.attacks.pgd import ascend
from robvit.attacks.sticker import FIRST_STEP as STICKER_STEP
from robvit.attacks.sticker import Sticker
from robvit.errors import InputError
from robvit.threat import PATCH, Threat, box_sums, square

FIRST_STEP = 0.25  # of the range of a pixel; steps shrink in a straight line to a tenth of it


@attack(kind="budget", norms=(PATCH,), paper="1712.09665", check=AttackCheck({"steps": 4, "locations": 2}))
def patch(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 40,
    locations: int = 4,
    eot: int = 0,
    loss: str | Loss = "cross_entropy",
    targeted: bool = False,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """The worst patch at the worst places. x (B 3 H W) in [0,1]; loss(model(x), y) -> (B,).

    Places are ranked by how much a linear loss could rise inside each square; at each of the best ones the
    patch climbs from noise. With `eot` an image's patch is made for all places instead, and stuck at one that
    chance decides: for an attacker who cannot choose it.

    steps: gradient steps at a place.
    locations: so many are tried, no two within half a patch of each other while there are others.
    eot: random places over which each step is averaged, such as 8; 0 searches the worst places.
    loss: a name from `LOSSES` or a callable.
    targeted: y are the classes wanted: the loss falls, and success is to be classified so.
    early_stop: an image leaves the batch as soon as the attack succeeds on it.
    seed: decides the noise, together with each image.
    """
    goal = objective_of(loss, y, targeted)
    if eot:
        return _everywhere(model, x, threat, goal, steps=steps, eot=eot, seed=seed)
    best = Best(x, early_stop)
    _search(model, x, y, threat, best, goal, steps=steps, locations=locations, targeted=targeted, seed=seed)
    return best.adv


@attack(
    kind="budget",
    norms=(PATCH,),
    paper="1712.09665",
    task="features",
    check=AttackCheck({"steps": 3, "locations": 2}),
)
def feature_patch(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 40,
    locations: int = 4,
    eot: int = 0,
    loss: str | Loss = "cosine",
    seed: int = 0,
) -> torch.Tensor:
    """The patch that drives features furthest from the clean ones, or to those given as y. x (B 3 H W).

    steps: gradient steps at a place.
    locations: so many are tried.
    eot: random places over which each step is averaged, in place of a search; see `patch`.
    loss: a name from `LOSSES` or a callable of features and clean features.
    seed: decides the noise, together with each image.
    """
    goal = feature_objective(model, x, y, loss)
    if eot:
        return _everywhere(model, x, threat, goal, steps=steps, eot=eot, seed=seed)
    best = Best(x, early_stop=False)
    _search(model, x, None, threat, best, goal, steps=steps, locations=locations, targeted=False, seed=seed)
    return best.adv


def _search(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    best: Best,
    objective: Objective,
    *,
    steps: int,
    locations: int,
    targeted: bool,
    seed: int,
) -> None:
    """Climb at one place after the other, on survivors only; `best` keeps what is found."""
    if steps < 1 or locations < 1:
        raise InputError(f"steps and locations must be at least 1, got {steps} and {locations}")
    side = min(int(threat.eps), *x.shape[-2:])
    if side == 0:
        return
    noise = per_image_uniform(x, seed, "patch")
    for place in worst_places(model, x, objective, noise, side, locations):
        climb(model, x, y, threat, best, objective, place, noise, steps=steps, targeted=targeted)


def worst_places(
    model: Model,
    x: torch.Tensor,
    objective: Objective,
    noise: torch.Tensor,
    side: int,
    count: int,
    allowed: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """First rows and columns (B 2) of the squares where the objective's slope promises most.

    allowed: the places (B H-side+1 W-side+1) that come before all others.
    """
    rows = torch.arange(len(x), device=x.device)
    # Where the loss is flat at x itself, as the distance from clean features is, noise shows its slopes.
    point = x + 0.1 * (noise - x)
    slope = gradient(model, point, lambda output: objective(output, rows, 0))[2]
    return best_places(point, slope, side, count, allowed)


def climb(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    best: Best,
    objective: Objective,
    place: torch.Tensor,
    noise: torch.Tensor,
    *,
    steps: int,
    targeted: bool = False,
) -> None:
    """Climb from noise (B 3 H W) in the squares at `place` (B 2); `best` keeps what is found."""
    ascend(
        model,
        x,
        y,
        threat,
        best,
        objective=objective,
        start=torch.where(square(place, int(threat.eps), x.shape), noise, x),
        steps=steps,
        size=lambda step: FIRST_STEP * (1 - 0.9 * step / steps),
        targeted=targeted,
    )


def _everywhere(
    model: Model, x: torch.Tensor, threat: Threat, objective: Objective, *, steps: int, eot: int, seed: int
) -> torch.Tensor:
    """Patches that climb the mean of the objective over random places (1707.07397), at another such place."""
    if steps < 1 or eot < 0:
        raise InputError(f"steps must be at least 1 and eot at least 0, got {steps} and {eot}")
    side = min(int(threat.eps), *x.shape[-2:])
    sticker = Sticker(per_image_uniform(x, seed, "patch", 3, side, side), seed)
    rows = torch.arange(len(x), device=x.device)
    for step in range(steps):
        up = torch.zeros_like(sticker.pixels)
        for draw in range(eot):
            point = sticker.on(x, f"place {step}/{draw}")
            slope = gradient(model, point, lambda output: objective(output, rows, 0))[2]
            up = up + sticker.under(slope)
        sticker.move(up, STICKER_STEP * (1 - 0.9 * step / steps))
    return sticker.on(x, "place")


def best_places(
    x: torch.Tensor, slope: torch.Tensor, side: int, count: int, allowed: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """First rows and columns (B 2) of the squares in which a linear loss of this slope can rise most.

    allowed: the squares (B H-side+1 W-side+1) that come before all others.
    """
    rise = torch.where(slope > 0, slope * (1 - x), -slope * x).sum(1)
    gain = box_sums(rise, side)
    if allowed is not None:
        gain = torch.where(allowed, gain, gain - gain.amax((1, 2), keepdim=True) - 1)
    rows, columns = (torch.arange(length, device=x.device) for length in gain.shape[1:])
    found = []
    for _ in range(count):
        best = gain.flatten(1).argmax(1)
        place = torch.stack((best // gain.shape[2], best % gain.shape[2]), 1)
        found.append(place)
        near_rows = (rows - place[:, :1]).abs() <= side // 2
        near_columns = (columns - place[:, 1:]).abs() <= side // 2
        near = near_rows[:, :, None] & near_columns[:, None]
        gain = torch.where(near, gain - gain.amax((1, 2), keepdim=True).abs() - 1, gain)  # behind all others
    return found
