"""Ascent with steps that adapt themselves: apgd and its variants (2003.01690; L1: 2103.01208)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from robvit.attacks.best import Best, take
from robvit.attacks.core import (
    AttackCheck,
    Model,
    Objective,
    attack,
    gradient,
    per_image_uniform,
    succeeded,
    variant,
)
from robvit.attacks.losses import Loss, objective_of
from robvit.errors import InputError
from robvit.threat import NORMS, Threat

MOMENTUM = 0.75  # the weight of the new step; the rest continues the last move
ENOUGH_RISES = 0.75  # a step size stays as long as this share of its steps raised the loss
L1_BUDGETS = ((3.0, 0.3), (2.0, 0.3), (1.0, 0.4))  # multiples of eps, and the share of the steps for each
L1_SHARE = 0.2  # of the values, moved by the first steps in L1
L1_CHECK = 0.04  # of the steps between two changes of pace in L1


@dataclass(frozen=True)
class _State:
    """The images under attack (b ...): where each is, has been, was best, and at which pace it goes."""

    rows: torch.Tensor
    x: torch.Tensor
    point: torch.Tensor
    old: torch.Tensor
    grad: torch.Tensor
    value: torch.Tensor
    best: torch.Tensor
    best_grad: torch.Tensor
    best_value: torch.Tensor
    step: torch.Tensor
    share: torch.Tensor  # L1: the share of the values that a step moves
    spread: torch.Tensor  # L1: how many values of the best point differed at the last check
    rises: torch.Tensor
    checked: torch.Tensor  # the best value at the last check
    cut: torch.Tensor  # whether the last check changed the pace


def _where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(condition.view(-1, *[1] * (a.ndim - 1)), a, b)


def _changed(x: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    return ((point - x).abs() > 1e-6).flatten(1).sum(1).to(x.dtype)


def _halve(state: _State, since: int) -> _State:
    """Halve the step and go back to the best point where too few steps rose, or none was a record."""
    stuck = ~state.cut & (state.best_value <= state.checked)
    cut = (state.rises < ENOUGH_RISES * since) | stuck
    return _return_to_best(replace(state, step=torch.where(cut, state.step / 2, state.step), cut=cut), cut)


def _sparsify(state: _State, eps: float) -> _State:
    """L1: fewer values a step as the best point grows sparse, with a fresh step; else a smaller step."""
    spread = _changed(state.x, state.best)
    sparser = spread < 0.95 * state.spread
    step = torch.where(sparser, torch.full_like(state.step, eps), (state.step / 1.5).clamp_min(eps / 10))
    share = spread / state.x[0].numel() / 1.5
    return _return_to_best(replace(state, step=step, share=share, spread=spread, cut=sparser), sparser)


def _return_to_best(state: _State, chosen: torch.Tensor) -> _State:
    point = _where(chosen, state.best, state.point)
    return replace(
        state,
        point=point,
        old=_where(chosen, point, state.old),
        grad=_where(chosen, state.best_grad, state.grad),
        value=torch.where(chosen, state.best_value, state.value),
        rises=torch.zeros_like(state.rises),
        checked=state.best_value,
    )


def _checks(steps: int, sparse: bool) -> set[int]:
    """The steps after which the pace is looked at: ever more often, or in L1 at equal distances."""
    if sparse:
        every = max(1, round(L1_CHECK * steps))
        return set(range(every, steps, every))
    marks, before, now = set(), 0.0, 0.22
    while now < 1:
        marks.add(max(1, round(now * steps)))
        before, now = now, now + max(now - before - 0.03, 0.06)
    return marks


def climb(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    best: Best | None,
    *,
    objective: Objective,
    start: torch.Tensor,
    rows: torch.Tensor,
    steps: int,
    targeted: bool = False,
) -> torch.Tensor:
    """Climb from `start` (b 3 H W) for the given rows of x; the points of the highest objective found.

    Without `best`, nothing is kept and nobody leaves. n steps take n + 1 forward and n backward passes.
    """
    checks, last_check = _checks(steps, threat.sparse), 0
    state = _begin(x[rows], rows, start, threat)
    points = start.clone()
    for k in range(steps + 1):
        goal = partial(lambda s, k, output: objective(output, s.rows, k), state, k)
        if k < steps:
            output, value, grad = gradient(model, state.point, goal)
        else:
            output = model(state.point)
            value, grad = goal(output), state.grad
        improved = value > state.best_value
        state = replace(
            state,
            grad=grad,
            value=value,
            rises=state.rises + ((value > state.value) & (k > 0)),
            best=_where(improved, state.point, state.best),
            best_grad=_where(improved, grad, state.best_grad),
            best_value=torch.where(improved, value, state.best_value),
        )
        if best is not None:
            success = succeeded(output, y if y is None else y[state.rows], targeted)
            keep = best.offer(state.rows, state.point, value, success)
            state = state if keep is None else take(state, keep)
        if k == steps or not len(state.rows):
            break
        if k in checks:
            state = _sparsify(state, threat.eps) if threat.sparse else _halve(state, k - last_check)
            last_check = k
        state = _step(state, threat, first=k == 0 or threat.sparse)
    points[torch.isin(rows, state.rows)] = state.best
    return points


def _begin(x: torch.Tensor, rows: torch.Tensor, start: torch.Tensor, threat: Threat) -> _State:
    low = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
    step = torch.full_like(low, threat.eps if threat.sparse else 2 * threat.eps)
    spread = _changed(x, start)
    share = (spread / x[0].numel() / 1.5).clamp(max=L1_SHARE)
    return _State(
        rows,
        x,
        start,
        start,
        torch.zeros_like(x),
        low,
        start,
        torch.zeros_like(x),
        low,
        step,
        share,
        spread,
        torch.zeros_like(low),
        low,
        torch.ones_like(rows, dtype=torch.bool),
    )


def _step(state: _State, threat: Threat, first: bool) -> _State:
    """A steepest step, blended with the last move but at the first one and in L1."""
    move = threat.steepest(state.grad, state.step, state.share)
    point = threat.project(state.x, state.point + move)
    if not first:
        blend = MOMENTUM * (point - state.point) + (1 - MOMENTUM) * (state.point - state.old)
        point = threat.project(state.x, state.point + blend)
    return replace(state, point=point, old=state.point)


def search(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    best: Best,
    *,
    objective: Objective,
    steps: int,
    seed: int,
    purpose: str | Sequence[str],
    targeted: bool = False,
) -> None:
    """One climb from a random point for the survivors of `best`; in L1 through larger budgets first.

    `purpose` names the draw of the starts, for all images or for each.
    """
    rows = best.survivors()
    if not len(rows):
        return
    stages = L1_BUDGETS if threat.sparse else ((1.0, 1.0),)
    point = None
    for number, (factor, part) in enumerate(stages):
        wide = threat.times(factor)
        if point is None:
            own = purpose if isinstance(purpose, str) else [purpose[row] for row in rows.tolist()]
            point = wide.random(x[rows], per_image_uniform(x[rows], seed, own))
        last = number == len(stages) - 1
        point = climb(
            model,
            x,
            y,
            wide,
            best if last else None,
            objective=objective,
            start=wide.project(x[rows], point),
            rows=rows,
            steps=max(1, round(part * steps)),
            targeted=targeted,
        )


@attack(kind="budget", norms=NORMS, paper="2003.01690", check=AttackCheck({"steps": 5}))
def apgd(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 100,
    restarts: int = 1,
    loss: str | Loss = "cross_entropy",
    targeted: bool = False,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """Auto-PGD on any loss. x (B 3 H W) in [0,1]; loss(model(x), y) -> (B,).

    Steps start at twice the budget and halve where they stop to pay. In L1 steps are sparse, and three
    tenths of them each are spent in three and two times the budget on the way to it.

    steps: gradient steps a restart.
    restarts: starts, each for the images that are still classified correctly.
    loss: a name from `LOSSES` or a callable.
    targeted: y are the classes wanted: the loss falls, and success is to be classified so.
    early_stop: an image leaves the batch as soon as the attack succeeds on it.
    seed: decides the starts, together with each image.
    """
    if steps < 1 or restarts < 1:
        raise InputError(f"steps and restarts must be at least 1, got {steps} and {restarts}")
    best, objective = Best(x, early_stop), objective_of(loss, y, targeted)
    for restart in range(restarts):
        search(
            model,
            x,
            y,
            threat,
            best,
            objective=objective,
            steps=steps,
            seed=seed,
            purpose=f"apgd {restart}",
            targeted=targeted,
        )
    return best.adv


apgd_ce = variant("apgd", "apgd_ce", "cross-entropy", paper="2003.01690", loss="cross_entropy")
apgd_dlr = variant("apgd", "apgd_dlr", "the difference of logits ratio", paper="2003.01690", loss="dlr")
