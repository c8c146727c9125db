"""Pure functions on outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

MIN_IMAGES = 3  # one or two may always be bad luck


def interval(hits: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: honest for few images and for shares near 0 and 1."""
    if count == 0:
        return 0.0, 1.0
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_of(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of shares, one an image, and its normal 95 % interval; 0 to 1 where there is one image."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, 0.0, 1.0
    half = 1.959964 * stdev(values) / math.sqrt(len(values))
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def share_of(outcomes: Sequence[bool]) -> tuple[float, float, float]:
    """The share of outcomes that are true, and its 95 % interval."""
    hits, count = sum(outcomes), len(outcomes)
    return hits / count, *interval(hits, count)


def surely_above(count: int, total: int, limit: float) -> bool:
    """Whether a share lies above the limit with its whole 95 % interval, and rests on a few images."""
    return count >= MIN_IMAGES and interval(count, total)[0] > limit


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test: images that one model alone got right."""
    count, fewer = only_first + only_second, min(only_first, only_second)
    tail = ways = 1  # whole numbers throughout: powers of two pass what a float can hold at 1,024
    for k in range(1, fewer + 1):
        ways = ways * (count - k + 1) // k
        tail += ways
    return min(1.0, 2 * tail / (1 << count))


def fisher(hits: int, count: int, other_hits: int, other_count: int) -> float:
    """Fisher's exact two-sided p-value: whether two shares of different images differ."""
    total, drawn = count + other_count, hits + other_hits

    def chance(k: int) -> float:
        return math.comb(count, k) * math.comb(other_count, drawn - k) / math.comb(total, drawn)

    seen = chance(hits)
    possible = range(max(0, drawn - other_count), min(count, drawn) + 1)
    return min(1.0, math.fsum(p for k in possible if (p := chance(k)) <= seen * (1 + 1e-7)))


def paired_interval(
    only_first: int, only_second: int, count: int, z: float = 1.959964
) -> tuple[float, float, float]:
    """The difference of two shares on the same images, first minus second, with its 95 % interval.

    The interval is Agresti and Min's: Wald's after half an image is added to each of the four cells, which
    keeps its promise for few images too. The difference itself is the plain one.
    """
    first, second, total = only_first + 0.5, only_second + 0.5, count + 2.0
    middle = (first - second) / total
    half = z * math.sqrt((first + second) - (first - second) ** 2 / total) / total
    return (only_first - only_second) / count, max(-1.0, middle - half), min(1.0, middle + half)


class Spread(NamedTuple):
    """A mean with its 95 % interval and the two-sided p-value of zero."""

    mean: float
    low: float
    high: float
    p: float


def over_seeds(differences: Sequence[Sequence[float]], unit: float = 100.0) -> Spread:
    """The mean of differences, a row a seed and a column an image, over other seeds and other images.

    The interval's half is made of two that are independent: Student's over the means of the seeds, and the
    normal one over the means of the images, to which half an image is added for each of the four outcomes, as
    in `paired_interval`; `unit` is the largest difference of an image. The seeds see the same images, so that
    either alone is too short.
    """
    assert len(differences) > 1
    seeds, images = [fmean(row) for row in differences], [fmean(c) for c in zip(*differences, strict=True)]
    mean, count = fmean(seeds), len(images) + 2
    by_seed = stdev(seeds) / math.sqrt(len(seeds))
    by_image = math.sqrt(math.fsum((d - mean) ** 2 for d in images) + unit**2) / count

    def half(chance: float) -> float:
        normal = -NormalDist().inv_cdf(chance / 2)  # the lower tail, where small chances are not rounded to 0
        return math.hypot(student_quantile(chance, len(seeds) - 1) * by_seed, normal * by_image)

    wide, p = half(0.05), _crossing(lambda chance: half(chance) - abs(mean))
    return Spread(mean, max(-unit, mean - wide), min(unit, mean + wide), p)


def paired_means(differences: Sequence[float], unit: float) -> Spread:
    """The mean of differences, one an image, with Student's interval; `unit` is the largest there can be."""
    mean, deviation, low, high = mean_interval(differences)
    count = len(differences)
    if count < 2:  # a single one has no spread, and bounds nothing
        return Spread(mean, -unit, unit, 1.0)
    if deviation == 0:  # no spread at all: any difference is certain
        return Spread(mean, mean, mean, 0.0 if mean else 1.0)
    p = student_tail(abs(mean) / deviation * math.sqrt(count), count - 1)
    return Spread(mean, max(-unit, low), min(unit, high), p)


def _crossing(falling: Callable[[float], float]) -> float:
    """Where in (0, 1) a falling function passes zero."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of several p-values: each as large as it must be for all tests together to hold."""
    order = sorted(range(len(p)), key=p.__getitem__)
    adjusted, most = [0.0] * len(p), 0.0
    for rank, place in enumerate(order):
        most = max(most, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = most
    return adjusted


def lowest_share(hits: int, count: int, alpha: float) -> float:
    """Clopper and Pearson's exact lower bound of a share, wrong with a chance of at most `alpha`."""
    if hits == 0:
        return 0.0
    low, high = 0.0, hits / count
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_least(hits, count, middle) < alpha else (low, middle)
    return low


def _at_least(hits: int, count: int, share: float) -> float:
    """The chance of so many hits or more among `count` at this share."""
    if not 0 < share < 1:
        return float(share >= 1)
    whole, yes, no = math.lgamma(count + 1), math.log(share), math.log1p(-share)
    return math.fsum(
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * yes + (count - k) * no)
        for k in range(hits, count + 1)
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float, float, float]:
    """The mean of a few numbers, their standard deviation, and Student's 95 % interval of the mean.

    One number has neither deviation nor interval: both are NaN.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, math.nan, math.nan, math.nan
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = student_quantile(0.05, count - 1) * deviation / math.sqrt(count)
    return mean, deviation, mean - half, mean + half


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float, float]:
    """Welch's test of two means: their difference, its 95 % interval, and the two-sided p-value."""
    (a, s, *_), (b, t, *_) = mean_interval(first), mean_interval(second)
    parts = s * s / len(first), t * t / len(second)
    error, difference = math.sqrt(sum(parts)), a - b
    if error == 0:  # no spread at all: any difference is certain
        return difference, difference, difference, 1.0 if difference == 0 else 0.0
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(first) - 1) + parts[1] ** 2 / (len(second) - 1))
    half = student_quantile(0.05, freedom) * error
    return difference, difference - half, difference + half, student_tail(abs(difference) / error, freedom)


def student_quantile(chance: float, freedom: float) -> float:
    """The value that Student's t passes, to either side, with this chance."""
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > chance:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > chance else (low, middle)
    return high


def student_tail(value: float, freedom: float) -> float:
    """The chance that Student's t passes a value, of zero or more, to either side."""
    whole = freedom + value * value
    return _beta_share(freedom / 2, 0.5, freedom / whole, value * value / whole)


def _beta_share(a: float, b: float, x: float, rest: float) -> float:
    """The regularised incomplete beta function at x = 1 - rest, by its continued fraction (Lentz)."""
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    if x > (a + 1) / (a + b + 2):  # where the other side converges faster
        return 1 - _beta_share(b, a, rest, x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    above, below = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = below
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for part in (even, odd):
            below, above = 1 / (1 + part * below), 1 + part / above
            fraction *= below * above
        if abs(below * above - 1) < 1e-15:
            break
    return front * fraction / a
