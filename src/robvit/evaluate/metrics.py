"""Pure functions on outcomes."""

from __future__ import annotations

import math


def interval(hits: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: honest for few pictures and for shares near 0 and 1."""
    if count == 0:
        return 0.0, 1.0
    share = hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)
