"""What a check may say, how it is graded, and the one table in which all checks stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from robvit.registry import Registry
from robvit.statistics import interval, mcnemar

if TYPE_CHECKING:
    from robvit.diagnosis.context import CheckContext

GREEN, AMBER, RED = "green", "amber", "red"
LIMIT = 0.02  # the share of images that chance and an attack's last few misses may explain
FEWEST = 3  # so many images at least make a red; one or two may always be bad luck
CERTAIN = 0.05  # the p-value below which a difference between two attacks is no chance


class Verdict(NamedTuple):
    """Green, amber or red, why in one line, and which images (n,) speak against the model, if any."""

    status: str
    evidence: str
    images: torch.Tensor | None = None


Check = Callable[["CheckContext"], Verdict]


@dataclass(frozen=True)
class CheckInfo:
    """What a check asks, in words for people, and its usual cost in passes an image."""

    asks: str
    cost: int


# A check is one function under `@CHECKS.add(asks=..., cost=...)`.
CHECKS: Registry[Check, CheckInfo] = Registry("check", CheckInfo)


def not_applicable(why: str) -> Verdict:
    """A check that has nothing to look at is no reason for doubt."""
    return Verdict(GREEN, f"not applicable: {why}")


def graded(violators: torch.Tensor, at_stake: int, evidence: str, limit: float = LIMIT) -> Verdict:
    """Green without violators (n,); red if their share is surely above the limit; amber between."""
    count = int(violators.sum())
    if not count:
        return Verdict(GREEN, evidence)
    return Verdict(RED if surely_above(count, at_stake, limit) else AMBER, evidence, violators)


def surely_above(count: int, total: int, limit: float) -> bool:
    """Whether a share lies above the limit with its whole 95 % interval, and rests on a few images."""
    return count >= FEWEST and interval(count, total)[0] > limit


def surely_more(more: int, less: int) -> bool:
    """Whether `more` outnumbers `less` by more than chance, for images on which two attacks differ."""
    return more > less and mcnemar(more, less) < CERTAIN
