"""The papers' claims as studies test them: on the same images, pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robvit.record import Table
from robvit.verdict import Claim

COLUMNS = [
    "claim",
    "paper, points",
    "ours, points (95 % interval)",
    "p",
    "seeds",
    "least that can be told, points",
    "power for the paper's, %",
    "verdict",
]


def claims_table(claims: Sequence[Claim], title: str = "Claims, pair by pair") -> Table:
    """Every claim with its evidence; too few images tell nothing, and it says so.

    p is McNemar's for one seed, or Student's where means are compared; Student's and the normal one's
    together for several seeds.
    """
    rows: list[list[Any]] = []
    for claim in claims:
        paper = None if claim.paper is None else f"{claim.paper:+.2f}"
        ours = f"{claim.difference:+.1f} ({claim.low:+.1f} to {claim.high:+.1f})"
        least = None if claim.smallest is None else f"{claim.smallest:.1f}"
        power = None if claim.power is None else f"{100 * claim.power:.0f}"
        rows.append([claim.text, paper, ours, f"{claim.p:.2g}", claim.seeds, least, power, claim.wording])
    return Table(title, list(COLUMNS), rows)
