"""Random search with squares: a black-box attack that sees outputs only (1912.00049; L1: 2103.01208).

No autograd here: a step changes a square window of each image and stays if the margin grew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from robvit.attacks.best import Best, take
from robvit.attacks.core import AttackCheck, Model, attack, misclassified, per_image_uniform, require_labels
from robvit.attacks.losses import margin
from robvit.errors import InputError
from robvit.threat import NORMS, Threat

HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # of 10 000 queries: the window's area halves
BLOCK = 256  # steps for which random numbers are drawn at once
TILES = 5  # a side, in the first perturbation of L2 and L1
DRAWS = 12  # random numbers a step: two corners, an orientation, and a sign for each channel


@dataclass(frozen=True)
class _State:
    """The images still under attack (b ...), their best perturbed form, its margin, and their numbers."""

    rows: torch.Tensor
    x: torch.Tensor
    point: torch.Tensor
    value: torch.Tensor
    numbers: torch.Tensor


@attack(
    kind="budget",
    norms=NORMS,
    paper="1912.00049",
    gradients=False,
    # Windows suit images; the oracle's weights are white noise, of which they find less in L2 and L1.
    check=AttackCheck({"steps": 30}, {"steps": 700}, {"linf": 0.1, "l2": 0.48, "l1": 0.2}),
)
def square(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 5000,
    area: float = 0.8,
    restarts: int = 1,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """Random search over square windows, at most `steps` queries an image. x (B 3 H W) in [0,1], y (B,).

    steps: queries an image and restart.
    area: the share of the image that the first window covers; later ones shrink as the paper says.
    restarts: searches, each for the images that are still classified correctly.
    early_stop: an image leaves the batch as soon as it is misclassified.
    seed: decides everything random, together with each image.
    """
    labels, best = require_labels(y, "square"), Best(x, early_stop)
    if steps < 1 or not 0 < area <= 1:
        raise InputError(f"steps must be at least 1 and area in (0,1], got {steps} and {area}")
    for restart in range(restarts):
        _search(model, x, labels, threat, best, steps, area, seed, f"square {restart}")
    return best.adv


def _search(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor,
    threat: Threat,
    best: Best,
    steps: int,
    area: float,
    seed: int,
    purpose: str,
) -> None:
    rows = best.survivors()
    if not len(rows):
        return
    start = _stripes if threat.norm == "linf" else _tiles
    point = start(x[rows], threat, per_image_uniform(x[rows], seed, purpose, 3, TILES**2 + x.shape[-1]))
    low = torch.full((len(rows),), -torch.inf, device=x.device, dtype=x.dtype)
    state = _State(rows, x[rows], point, low, torch.empty(len(rows), 0, DRAWS, device=x.device))
    for step, side in enumerate(_sides(steps, area, x.shape[-2:])):
        if step:
            place = (step - 1) % BLOCK
            if place == 0:
                numbers = per_image_uniform(state.x, seed, f"{purpose} {step // BLOCK}", BLOCK, DRAWS)
                state = replace(state, numbers=numbers)
            propose = _paint if threat.norm == "linf" else _shift_mass
            point = propose(state.x, state.point, threat, side, state.numbers[:, place])
        output = model(point)
        value, success = margin(output, y[state.rows]), misclassified(output, y[state.rows])
        better = value > state.value
        state = replace(
            state,
            point=torch.where(better.view(-1, 1, 1, 1), point, state.point),
            value=torch.where(better, value, state.value),
        )
        keep = best.offer(state.rows, point, value, success)
        if keep is not None:
            state = take(state, keep)
            if not len(state.rows):
                return


def _sides(steps: int, area: float, shape: torch.Size) -> Iterator[int]:
    """The side of each query's window; the first query is the start, which has none."""
    height, width = shape
    for step in range(steps):
        share = area / 2 ** sum(step * 10_000 / steps > mark for mark in HALVINGS)
        yield min(max(1, round(math.sqrt(share * height * width))), height, width)


def _stripes(x: torch.Tensor, threat: Threat, numbers: torch.Tensor) -> torch.Tensor:
    """L-inf: vertical stripes of full budget, a random sign for each column and channel."""
    signs = _sign(numbers[:, :, -x.shape[-1] :])
    return threat.project(x, x + threat.eps * signs[:, :, None, :])


def _sign(numbers: torch.Tensor) -> torch.Tensor:
    return torch.where(numbers < 0.5, -1.0, 1.0).to(numbers.dtype)


def _window(
    x: torch.Tensor, side: int, down: torch.Tensor, right: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each image's place in its window's rows and columns, (b H 1) and (b 1 W); outside is -1."""
    height, width = x.shape[-2:]

    def places(number: torch.Tensor, length: int) -> torch.Tensor:
        corner = (number * (length - side + 1)).long().clamp_max(length - side)
        place = torch.arange(length, device=x.device) - corner[:, None]
        return torch.where((place >= 0) & (place < side), place, -1)

    return places(down, height)[:, :, None], places(right, width)[:, None, :]


def _paint(
    x: torch.Tensor, point: torch.Tensor, threat: Threat, side: int, numbers: torch.Tensor
) -> torch.Tensor:
    """L-inf: one window at full budget, a random sign for each channel."""
    i, j = _window(x, side, numbers[:, 0], numbers[:, 1])
    inside = ((i >= 0) & (j >= 0))[:, None]
    painted = x + threat.eps * _sign(numbers[:, 5:8])[:, :, None, None]
    return threat.project(x, torch.where(inside, painted, point))


def _bump(side: int, threat: Threat) -> torch.Tensor:
    """Two adjacent bumps of opposite signs that fall off from their middle, faster in L1: (side side)."""
    power = 4 if threat.sparse else 2

    def half(height: int, width: int) -> torch.Tensor:
        n = height // 2
        i = (torch.arange(height) - n).abs()[:, None]
        j = (torch.arange(width) - width // 2).abs()[None, :]
        reach = n - torch.maximum(i, j)
        terms = torch.stack([torch.where(reach >= k, 1 / (n + 1 - k) ** power, 0.0) for k in range(n + 1)])
        return terms.sum(0)

    first = side // 2
    return torch.cat([half(side, first), -half(side, side - first)], 1) if first else half(side, side)


def _norm(delta: torch.Tensor, threat: Threat) -> torch.Tensor:
    """The norm of each channel: (b 3 H W) -> (b 3 1 1)."""
    return threat.length(threat.mass(delta).sum((2, 3), keepdim=True)).clamp_min(1e-12)


def _tiles(x: torch.Tensor, threat: Threat, numbers: torch.Tensor) -> torch.Tensor:
    """L2 and L1: a grid of bumps with random signs, together as large as the budget."""
    height, width = x.shape[-2:]
    side = max(1, min(height, width) // TILES)
    bump = _bump(side, threat).to(x)
    signs = _sign(numbers[:, :, : TILES**2]).view(len(x), 3, TILES, TILES)
    grid = torch.einsum("bcij,hw->bcihjw", signs, bump).reshape(len(x), 3, TILES * side, TILES * side)
    delta = torch.zeros_like(x)
    delta[:, :, : TILES * side, : TILES * side] = grid[:, :, :height, :width]
    return threat.project(x, x + delta * (threat.eps / threat.size(delta).clamp_min(1e-12)).view(-1, 1, 1, 1))


def _shift_mass(
    x: torch.Tensor, point: torch.Tensor, threat: Threat, side: int, numbers: torch.Tensor
) -> torch.Tensor:
    """L2 and L1: empty one window and put its mass, and what is unused, as a bump into another."""
    side = side + 1 - side % 2  # a bump has a middle
    side = min(side, *x.shape[-2:])
    i, j = _window(x, side, numbers[:, 0], numbers[:, 1])
    k, m = _window(x, side, numbers[:, 2], numbers[:, 3])
    here, there = ((i >= 0) & (j >= 0))[:, None], ((k >= 0) & (m >= 0))[:, None]
    upright = _bump(side, threat).to(x)
    flat = torch.stack([upright, upright.T])
    turned = (numbers[:, 4] < 0.5).long()[:, None, None]
    bump = flat[turned, i.clamp_min(0), j.clamp_min(0)][:, None] * here
    delta = point - x
    mass, budget = threat.mass(delta), threat.mass(torch.tensor(threat.eps, dtype=torch.float64))
    unused = float(budget) - mass.sum((1, 2, 3), True)
    both = (mass * (here | there)).sum((2, 3), keepdim=True)
    available = threat.length(both + unused.clamp_min(0) / x.shape[1])
    if threat.sparse:  # more than there is: the projection then leaves the largest values only
        available = available * x.shape[1]
    old = delta * here
    fresh = _sign(numbers[:, 5:8])[:, :, None, None] * bump / _norm(bump, threat) + old / _norm(old, threat)
    fresh = fresh * here
    moved = torch.where(here | there, 0, delta) + fresh / _norm(fresh, threat) * available
    return threat.project(x, x + moved)
