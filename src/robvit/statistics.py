"""Pure functions on outcomes."""

from __future__ import annotations

import math


def interval(hits: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: honest for few images and for shares near 0 and 1."""
    if count == 0:
        return 0.0, 1.0
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value of McNemar's test: images that one model alone got right."""
    count, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(count, k) for k in range(fewer + 1))
    return min(1.0, 2.0 * tail / 2.0**count)


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
