"""Checks that compare PGD with itself: more steps, more starts or a larger budget must never do worse."""

from __future__ import annotations

from itertools import combinations

import torch

from robvit.attacks import Outcome
from robvit.diagnosis.context import CheckContext, percent
from robvit.diagnosis.grading import CHECKS, TOLERANCE, Grade, Status, advice, graded, skipped, surely_more

BUDGETS = (0.25, 0.5, 1.0, 2.0)  # of eps, for the curve
LARGE = 0.5  # a change of every value by so much can hide any image


@CHECKS.add(
    title="One large step does not beat many small ones",
    compares="FGSM with PGD",
    remedy="The first gradient is better than later ones: look for gradient masking, and attack with square "
    "and transfer as well.",
    cost=25,
    needs=("gradient",),
)
def single_step(context: CheckContext) -> Grade:
    """FGSM must not succeed where PGD fails."""
    fgsm, pgd = context.attack("fgsm", title="fgsm"), context.pgd()
    only = fgsm.success & ~pgd.success
    evidence = f"accuracy {percent(fgsm)} under FGSM, {percent(pgd)} under PGD"
    evidence += f"; FGSM alone succeeds on {int(only.sum())} images"
    return graded(only, context.num_correct, evidence)


def _rise(outcomes: list[Outcome]) -> tuple[Status, torch.Tensor]:
    """Whether accuracy rises from a weaker attack to a stronger one, and for which images (n,).

    Red if more of them become correct again than chance explains, amber if it may be chance.
    """
    certain, possible = (torch.zeros_like(outcomes[0].success) for _ in range(2))
    for weak, strong in combinations(outcomes, 2):
        lost, gained = weak.success & ~strong.success, strong.success & ~weak.success
        if surely_more(int(lost.sum()), int(gained.sum())):
            certain |= lost
        elif int(lost.sum()) > int(gained.sum()):
            possible |= lost
    if bool(certain.any()):
        return Status.RED, certain
    return Status.AMBER if bool(possible.any()) else Status.GREEN, possible


@CHECKS.add(
    title="More steps never raise accuracy, and there are enough",
    compares="PGD with a quarter of the steps, all of them and twice as many",
    remedy="If accuracy rises with the steps, look for gradient masking; if it still falls, use more steps.",
    cost=65,
    needs=("gradient",),
)
def more_steps(context: CheckContext) -> Grade:
    """Accuracy must not rise with the steps; if it still falls with the last doubling, take more."""
    steps = context.strength.steps
    counts = [steps // 4, steps, 2 * steps]
    outcomes = [context.pgd(steps=n) for n in counts]
    accuracies = ", ".join(f"{percent(o)} after {n}" for o, n in zip(outcomes, counts, strict=True))
    status, risen = _rise(outcomes)
    if status != Status.GREEN:
        return Grade(status, f"accuracy rises with the steps: {accuracies}", risen)
    late = outcomes[2].success & ~outcomes[1].success
    prefix = "not converged: " if bool(late.any()) else ""
    return advice(late, f"{prefix}accuracy {accuracies} steps")


@CHECKS.add(
    title="More restarts change nothing",
    compares="PGD from one random start with PGD from several",
    remedy="Use more restarts, and quote the worst case over them.",
    cost=60,
    needs=("gradient",),
)
def more_restarts(context: CheckContext) -> Grade:
    """Other random starts must find next to nothing new on the images that are still correct."""
    first, strength = context.pgd(), context.strength
    if bool(first.success.all()):
        return skipped("PGD leaves no image correct after one start")
    several = context.attack(
        "pgd",
        title=f"pgd-{strength.steps}, {strength.restarts} starts",
        after=first,
        steps=strength.steps,
        restarts=strength.restarts - 1,
        seed=context.seed + 1,
    )
    late = several.success & ~first.success
    return advice(
        late, f"accuracy {percent(first)} after one start, {percent(several)} after {strength.restarts}"
    )


@CHECKS.add(
    title="Accuracy falls as the budget grows",
    compares="PGD at a quarter, half, all and twice the budget",
    remedy="A larger budget contains the smaller one, so the attack fails to optimise: look for gradient "
    "masking, and attack with square and transfer as well.",
    cost=60,
    needs=("gradient",),
)
def monotone_budget(context: CheckContext) -> Grade:
    """A larger ball contains the smaller one, so an attack must do at least as much in it."""
    outcomes = [context.pgd(eps=None if b == 1 else context.threat.times(b).eps) for b in BUDGETS]
    accuracies = ", ".join(f"{percent(o)} at {b:g} eps" for o, b in zip(outcomes, BUDGETS, strict=True))
    status, risen = _rise(outcomes)
    return Grade(status, f"accuracy {accuracies}", risen)


@CHECKS.add(
    title="An unlimited budget leaves no image correct",
    compares="PGD at a budget that can turn every image grey with an accuracy of zero",
    remedy="The attack does not follow the model's gradient: look for gradient masking, and attack with "
    "attacks.bpda or square.",
    cost=20,
)
def large_budget(context: CheckContext) -> Grade:
    """With a budget that can turn every image grey, a gradient that means anything leaves none correct."""
    eps = float(context.threat.size(torch.full_like(context.x[:1], LARGE)))
    outcome = context.pgd(eps=eps)
    threat = f"{context.threat.norm} {eps:g}"
    return graded(
        ~outcome.success,
        context.num_correct,
        f"accuracy {percent(outcome)} at {threat}, expected 0%",
        TOLERANCE,
    )
