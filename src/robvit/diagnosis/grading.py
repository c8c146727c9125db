"""What a check may conclude, how it is graded, and the one registry of all checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import torch

from robvit.registry import Registry
from robvit.statistics import mcnemar, surely_above

if TYPE_CHECKING:
    from robvit.diagnosis.context import CheckContext

LIMIT = 0.02  # the share of images that chance and an attack's last few misses may explain
TOLERANCE = 0.05  # the share on which sound attacks that search in different ways differ
P_VALUE = 0.05  # below it a difference between two attacks is no chance


class Status(StrEnum):
    """How a check ended, worst first; one that has nothing to compare is skipped."""

    RED = "red"
    AMBER = "amber"
    GREEN = "green"
    SKIPPED = "skipped"


class Grade(NamedTuple):
    """A status, its evidence in one line, and the images (n,) that violate the check, if any."""

    status: Status
    evidence: str
    images: torch.Tensor | None = None


Check = Callable[["CheckContext"], Grade]


@dataclass(frozen=True)
class CheckInfo:
    """What is known about a check.

    title: what should hold, in plain words.
    compares: what is compared with what.
    remedy: what to do if it does not hold.
    cost: usual passes an image, from which the time left is estimated.
    needs: names of REQUIREMENTS without which there is nothing to compare.
    answers_suffice: whether it can be done where only the model's answers can be had.
    """

    title: str
    compares: str
    remedy: str
    cost: int
    needs: tuple[str, ...] = ()
    answers_suffice: bool = False


# A check is one function under `@CHECKS.add(title=..., compares=..., remedy=..., cost=...)`.
CHECKS: Registry[Check, CheckInfo] = Registry("check", CheckInfo)

# Name: whether it is there, and the reason for skipping a check if not.
REQUIREMENTS: dict[str, tuple[Callable[[CheckContext], bool], str]] = {
    "gradient": (lambda c: c.margin_gradient is not None, "the model has no gradient"),
    "attention": (lambda c: c.attention_network is not None, "no attention layer was found"),
    "survivors": (
        lambda c: not bool(c.white_box.success.all()),
        "the white-box attacks leave no image correct, so no other attack can do better",
    ),
}


def run_check(name: str, context: CheckContext) -> Grade:
    """The grade of a check, or why it was skipped."""
    entry = CHECKS.entry(name)
    if context.black_box and not entry.info.answers_suffice:
        return skipped("the model is a black box: only its answers can be had")
    for need in entry.info.needs:
        is_met, reason = REQUIREMENTS[need]
        if not is_met(context):
            return skipped(reason)
    return entry.value(context)


def skipped(reason: str) -> Grade:
    """A check that has nothing to compare: no reason for doubt, and none for trust."""
    return Grade(Status.SKIPPED, reason)


def graded(violations: torch.Tensor, total: int, evidence: str, limit: float = LIMIT) -> Grade:
    """Green without violations (n,); red if their share is surely above the limit; amber between."""
    count = int(violations.sum())
    if not count:
        return Grade(Status.GREEN, evidence)
    return Grade(Status.RED if surely_above(count, total, limit) else Status.AMBER, evidence, violations)


def advice(violations: torch.Tensor, evidence: str) -> Grade:
    """Green without violations (n,), amber with any: the attack is weak, the model not suspect."""
    return Grade(Status.AMBER if bool(violations.any()) else Status.GREEN, evidence, violations)


def surely_more(more: int, less: int) -> bool:
    """Whether `more` outnumbers `less` by more than chance, for images on which two attacks differ."""
    return more > less and mcnemar(more, less) < P_VALUE
