"""Ascent with fixed steps: fgsm, pgd, its variants on other losses, and gama. Defines no loss.

Papers: FGSM 1412.6572, PGD 1706.06083, momentum 1710.06081, the margin 1608.04644, GAMA 2011.14969.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from robvit.attacks import losses
from robvit.attacks.best import Best, take
from robvit.attacks.core import (
    AttackCheck,
    Model,
    Objective,
    attack,
    gradient,
    per_image_uniform,
    require_labels,
    succeeded,
    variant,
)
from robvit.attacks.losses import Loss, objective_of
from robvit.errors import InputError
from robvit.threat import NORMS, Threat

WIDE_SHARE = 0.05  # L1: the first step moves this share of the values, the second half as few as it can


@dataclass(frozen=True)
class _State:
    """The images still under attack: their rows in the batch, and where each of them stands."""

    rows: torch.Tensor
    x: torch.Tensor
    point: torch.Tensor
    velocity: torch.Tensor


def ascend(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    best: Best,
    *,
    objective: Objective,
    start: torch.Tensor,
    steps: int,
    size: Callable[[int], float],
    momentum: float = 0.0,
    smooth: Callable[[torch.Tensor], torch.Tensor] | None = None,
    rank: Objective | None = None,
    targeted: bool = False,
) -> None:
    """Climb from `start` for the survivors of `best`, which keeps what is found.

    One pass serves to judge a point and to leave it: n steps take n + 1 forward and n backward
    passes, and the last point is judged too. `smooth` changes every gradient before it is used.
    `rank` compares the points of one climb where the objective changes from step to step. y are
    labels to leave, or the classes wanted if `targeted`.
    """
    rows = best.survivors()
    state = _State(rows, x[rows], start[rows], torch.zeros_like(x[rows]))
    for step in range(steps + 1):
        if not len(state.rows):
            return
        goal = partial(lambda s, k, output: objective(output, s.rows, k), state, step)
        if step == steps:
            output = model(state.point)
            value, grad = goal(output), torch.zeros_like(state.point)
        else:
            output, value, grad = gradient(model, state.point, goal)
        success = succeeded(output, y if y is None else y[state.rows], targeted)
        worth = rank(output, state.rows, step) if rank else value
        keep = best.offer(state.rows, state.point, worth, success)
        if keep is not None:
            state, grad = take(state, keep), grad[keep]
        velocity = grad = smooth(grad) if smooth else grad
        if momentum:  # gradients of equal length, so that old ones count however steep they were
            velocity = momentum * state.velocity + grad / grad.abs().mean((1, 2, 3), keepdim=True).clamp_min(
                1e-30
            )
        share = WIDE_SHARE * max(0.0, 1 - 2 * step / steps)
        move = threat.steepest(velocity, size(step), share)
        point = threat.project(state.x, state.point + move)
        state = _State(state.rows, state.x, point, velocity)


def search(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    objective: Objective,
    steps: int,
    size: Callable[[int], float],
    restarts: int,
    random_start: bool,
    momentum: float,
    early_stop: bool,
    seed: int,
    smooth: Callable[[torch.Tensor], torch.Tensor] | None = None,
    rank: Objective | None = None,
    corner: bool = False,
    targeted: bool = False,
) -> torch.Tensor:
    """`ascend` from one start after the other, on survivors only."""
    if steps < 1 or restarts < 1:
        raise InputError(f"steps and restarts must be at least 1, got {steps} and {restarts}")
    best = Best(x, early_stop)
    for restart in range(restarts):
        noise = per_image_uniform(x, seed, f"start {restart}")
        start = threat.random(x, noise.round() if corner else noise) if random_start or restart else x
        ascend(
            model,
            x,
            y,
            threat,
            best,
            objective=objective,
            start=start,
            steps=steps,
            size=size,
            momentum=momentum,
            smooth=smooth,
            rank=rank,
            targeted=targeted,
        )
    return best.adv


@attack(kind="budget", norms=NORMS, paper="1412.6572")
def fgsm(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    loss: str | Loss = "cross_entropy",
    seed: int = 0,
) -> torch.Tensor:
    """One steepest step of the whole budget. x (B 3 H W) in [0,1]; loss(model(x), y) -> (B,).

    It is the one attack that does not judge its result: one forward and one backward pass.

    loss: a name from `LOSSES` or a callable.
    seed: taken as by every attack; nothing here is random.
    """
    objective = objective_of(loss, y)
    rows = torch.arange(len(x), device=x.device)
    _, _, grad = gradient(model, x, lambda output: objective(output, rows, 0))
    return threat.project(x, x + threat.steepest(grad, threat.eps))


@attack(kind="budget", norms=NORMS, paper="1706.06083", check=AttackCheck({"steps": 3}))
def pgd(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 1,
    random_start: bool = True,
    momentum: float = 0.0,
    loss: str | Loss = "cross_entropy",
    targeted: bool = False,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """Projected gradient ascent. x (B 3 H W) in [0,1]; loss(model(x), y) -> (B,).

    Of an image that is never misclassified the point of the highest loss is returned.

    steps: gradient steps a restart.
    step_size: in pixels; 2.5 eps / steps if left out.
    restarts: starts, each for the images that are still classified correctly.
    random_start: begin the first restart at a random point of the ball, not at x.
    momentum: the weight of earlier gradients, each brought to the same length.
    loss: a name from `LOSSES` or a callable.
    targeted: y are the classes wanted: the loss falls, and success is to be classified so.
    early_stop: an image leaves the batch as soon as the attack succeeds on it.
    seed: decides the starts, together with each image.
    """
    size = 2.5 * threat.eps / max(steps, 1) if step_size is None else step_size
    return search(
        model,
        x,
        y,
        threat,
        objective=objective_of(loss, y, targeted),
        steps=steps,
        size=lambda _: size,
        restarts=restarts,
        random_start=random_start,
        momentum=momentum,
        early_stop=early_stop,
        seed=seed,
        targeted=targeted,
    )


pgd_margin = variant(
    "pgd", "pgd_margin", "Carlini and Wagner's margin of logits", paper="1608.04644", steps=100, loss="margin"
)
pgd_dlr = variant(
    "pgd", "pgd_dlr", "the difference of logits ratio", paper="2003.01690", steps=100, loss="dlr"
)


@attack(kind="budget", norms=NORMS, paper="2011.14969", check=AttackCheck({"steps": 4}))
def gama(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 100,
    guide: float = 50.0,
    restarts: int = 1,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """Guided adversarial margin attack. x (B 3 H W) in [0,1], y (B,), any number of classes.

    The guide pushes the probabilities away from those of the clean image with a weight that falls
    linearly to zero over the first quarter of the steps. Steps of twice the budget from a corner of
    the ball are divided by ten after 60 % and again after 85 % of them, as the paper does for 100.

    steps: gradient steps a restart.
    guide: the weight with which the guide begins.
    restarts: starts, each for the images that are still classified correctly.
    early_stop: an image leaves the batch as soon as the attack succeeds on it.
    seed: decides the starts, together with each image.
    """
    labels = require_labels(y, "gama")
    clean = model(x).softmax(1)

    def guided(output: torch.Tensor, rows: torch.Tensor, step: int, /) -> torch.Tensor:
        return losses.gama(output, labels[rows], clean[rows], guide * max(0.0, 1 - 4 * step / steps))

    def plain(output: torch.Tensor, rows: torch.Tensor, step: int, /) -> torch.Tensor:
        return losses.gama(output, labels[rows], clean[rows], 0.0)

    def size(step: int) -> float:
        cuts = (step >= 0.6 * steps) + (step >= 0.85 * steps)
        return 2 * threat.eps * 0.1**cuts

    return search(
        model,
        x,
        y,
        threat,
        objective=guided,
        rank=plain,
        steps=steps,
        size=size,
        restarts=restarts,
        random_start=True,
        corner=True,
        momentum=0.0,
        early_stop=early_stop,
        seed=seed,
    )
