"""What a comparison on the same images tells of a claim: a verdict with its evidence, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from statistics import NormalDist, fmean
from typing import Any

from robvit.statistics import Spread, holm, mcnemar, over_seeds, paired_interval, paired_means

Z = NormalDist().inv_cdf(0.975)
VALUES = ("first_values", "second_values")
SURE = 0.05  # a difference counts if chance alone makes it less often
DIFFERING = 0.2  # the share of images that two models judge differently, for the power of a comparison
APART = 200.0  # points between two values at most: cosines go from -100 to 100
POWER = 1.96 + 0.84  # standard errors at which a test at 5 % finds a difference with a chance of 80 %


class Verdict(StrEnum):
    """What became of a claim: the first two are beyond chance, the third bounds what may be there.

    A claim is void where nothing sets the two sides apart, such as a training beside itself.
    """

    SEEN = "seen"
    OPPOSITE = "opposite"
    BOUNDED = "no effect larger than"
    VOID = "void"


@dataclass(frozen=True)
class Claim:
    """That one model or attack is ahead of another, tested image by image; differences are in points.

    `paper` is the difference that was published; if it is negative, the claim is that the first falls behind.
    `low` and `high` bound the 95 % interval. `smallest` is the least difference that so many images can
    tell, None if they can tell none. With several `seeds`, of trainings, the interval is over those too, and
    `only_first` and `only_second` count their images together. `first` and `second` are what was compared: a
    text for each seed, 1 for an image of which the outcome is true and 0 for another. Where means were
    compared, `first_values` and `second_values` hold each image's, a list for each seed.
    """

    text: str
    paper: float | None
    images: int
    only_first: int
    only_second: int
    difference: float
    low: float
    high: float
    p: float
    smallest: float | None
    verdict: Verdict
    seeds: int = 1
    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)
    first_values: list[list[float]] = field(default_factory=list)
    second_values: list[list[float]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.text}: {self.wording}; {self.evidence}."

    def differences(self) -> list[float]:
        """Of each image, where means were compared: what the first is above the second, over the seeds."""
        rows = _differences(self.first_values, self.second_values)
        return [fmean(column) for column in zip(*rows, strict=True)]

    @property
    def effect(self) -> str:
        """The interval for reading."""
        return f"effect between {self.low:+.1f} and {self.high:+.1f} points"

    @property
    def bound(self) -> float:
        """The largest effect, either way, that the interval leaves room for."""
        return max(abs(self.low), abs(self.high))

    @property
    def rules_out_paper(self) -> bool:
        """Whether the published difference lies beyond the interval, on the side of the claim."""
        return self.paper is not None and (
            self.low > self.paper if self.paper < 0 else self.high < self.paper
        )

    @property
    def wording(self) -> str:
        """The verdict for reading: where an effect lies that is seen, or how large one may be that is not."""
        if self.verdict is Verdict.VOID:
            return f"{self.verdict}: nothing sets the two sides apart"
        if self.verdict is not Verdict.BOUNDED:
            return f"{self.verdict}: {self.effect}"
        told = f"{self.verdict} {self.bound:.1f} points"
        if self.paper is None:
            return told
        room = "not the" if self.rules_out_paper else "which leaves room for the"
        return f"{told}, {room} paper's {self.paper:+.1f}"

    @property
    def power(self) -> float | None:
        """The chance to see an effect of the paper's size with so many images and seeds."""
        half = (self.high - self.low) / 2
        if self.paper is None or half <= 0:
            return None
        return NormalDist().cdf(Z * (abs(self.paper) / half - 1))

    @property
    def evidence(self) -> str:
        """The numbers behind the verdict, for reading."""
        one = "Student's p" if self.first_values else "McNemar p"
        test = one if self.seeds == 1 else f"over {self.seeds} seeds, p"
        least = "no difference" if self.smallest is None else f"none below {self.smallest:.1f} points"
        power = "" if self.power is None else f", and the paper's effect with a chance of {self.power:.0%}"
        return (
            f"{self.difference:+.1f} points (95 % interval {self.low:+.1f} to {self.high:+.1f}, {test} = "
            f"{self.p:.2g}); {self.images} images can tell {least}{power}"
        )


def claim_of(text: str, first: Sequence[bool], second: Sequence[bool], paper: float | None = None) -> Claim:
    """Test that the first outcomes are more often true than the second, on the same images in the same order.

    `paper` is the published difference in points, None where there is none.
    """
    pairs = list(zip(first, second, strict=True))
    more, less = (sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs))
    difference, low, high = (100 * value for value in paired_interval(more, less, len(pairs)))
    p = mcnemar(more, less)
    return Claim(
        text=text,
        paper=paper,
        images=len(pairs),
        only_first=more,
        only_second=less,
        difference=difference,
        low=low,
        high=high,
        p=p,
        smallest=smallest_difference(len(pairs)),
        verdict=_verdict(difference, p, paper),
        first=[_packed(first)],
        second=[_packed(second)],
    )


def claim_of_means(
    text: str, first: Sequence[float], second: Sequence[float], paper: float | None = None
) -> Claim:
    """As `claim_of` for values in points, one an image: that the mean of the first is above the second's.

    A cosine has a hundred points.
    """
    return _claim_of_values(text, [first], [second], paper)


def claim_over_seeds(
    text: str, first: Sequence[Sequence[bool]], second: Sequence[Sequence[bool]], paper: float | None = None
) -> Claim:
    """As `claim_of` for outcomes of trainings with several seeds, a row a seed, on the same images."""
    if len(first) == 1:
        return claim_of(text, first[0], second[0], paper)
    differences = _differences(*([[100.0 * one for one in row] for row in side] for side in (first, second)))
    compared = {"first": [_packed(row) for row in first], "second": [_packed(row) for row in second]}
    return _claim_of_spread(text, paper, differences, over_seeds(differences), compared)


def claim_of_parts(parts: Sequence[Claim]) -> Claim:
    """The same claim of trainings with other seeds, taken together; void ones count where all are."""
    text, paper = parts[0].text, parts[0].paper
    if parts[0].first_values:
        one, other = ([row for part in parts for row in getattr(part, side)] for side in VALUES)
        return _claim_of_values(text, one, other, paper)
    told = [part for part in parts if part.verdict is not Verdict.VOID]
    first, second = (
        [[mark == "1" for mark in row] for part in told or parts for row in getattr(part, side)]
        for side in ("first", "second")
    )
    claim = claim_over_seeds(text, first, second, paper)
    return claim if told else replace(claim, verdict=Verdict.VOID)


def seen_together(claims: Sequence[Claim]) -> list[bool]:
    """Which claims are seen when all are tested together (Holm's correction)."""
    chances = holm([claim.p for claim in claims])
    return [c.verdict is Verdict.SEEN and p < SURE for c, p in zip(claims, chances, strict=True)]


def smallest_difference(images: int) -> float | None:
    """The least difference in points that McNemar's test can tell on so many images, at best."""
    needed = next(n for n in count(1) if mcnemar(n, 0) < SURE)
    return 100 * needed / images if needed <= images else None


def power_of(images: int) -> str:
    """What so many images can tell of a difference, to be said before a comparison runs."""
    least = smallest_difference(images)
    if least is None:
        return f"{images} images can tell no difference at all"
    likely = max(100 * POWER * math.sqrt(DIFFERING / images), least)
    return (
        f"{images} images can tell no difference below {least:.1f} points; where one image in five comes out "
        f"differently, {min(likely, 100):.1f} points are told four times in five"
    )


def _claim_of_values(
    text: str, first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], paper: float | None
) -> Claim:
    """A claim of means, a row a seed."""
    differences = _differences(first, second)
    several = len(differences) > 1
    spread = over_seeds(differences, APART) if several else paired_means(differences[0], APART)
    kept = ([[round(value, 4) for value in row] for row in side] for side in (first, second))
    return _claim_of_spread(text, paper, differences, spread, dict(zip(VALUES, kept, strict=True)))


def _claim_of_spread(
    text: str,
    paper: float | None,
    differences: Sequence[Sequence[float]],
    spread: Spread,
    compared: Mapping[str, Any],
) -> Claim:
    return Claim(
        text=text,
        paper=paper,
        images=len(differences[0]),
        only_first=sum(d > 0 for row in differences for d in row),
        only_second=sum(d < 0 for row in differences for d in row),
        difference=spread.mean,
        low=spread.low,
        high=spread.high,
        p=spread.p,
        smallest=(spread.high - spread.low) / 2,
        verdict=_verdict(spread.mean, spread.p, paper),
        seeds=len(differences),
        **compared,
    )


def _differences(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> list[list[float]]:
    """What the first values are above the second, a row a seed and a column an image."""
    return [
        [a - b for a, b in zip(one, other, strict=True)] for one, other in zip(first, second, strict=True)
    ]


def _packed(outcomes: Sequence[bool]) -> str:
    return "".join("1" if outcome else "0" for outcome in outcomes)


def _verdict(difference: float, p: float, paper: float | None) -> Verdict:
    falls = paper is not None and paper < 0
    if p >= SURE:
        return Verdict.BOUNDED
    return Verdict.SEEN if (difference < 0) == falls else Verdict.OPPOSITE
