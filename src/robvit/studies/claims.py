"""The papers' claims as studies test them: on the same images, pair by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robvit.record import Finding, Table
from robvit.statistics import holm
from robvit.verdict import SURE, Claim

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


HOLM = "p by Holm"
ONE_SEED = "of these two networks; one seed"
ONE_TRAINING = "one seed of trainings decides no default"


def claims_table(
    claims: Sequence[Claim],
    title: str = "Claims, pair by pair",
    *,
    together: bool = False,
    trained: Sequence[Claim] = (),
) -> Table:
    """Every claim with its evidence; too few images tell nothing, and it says so.

    p is McNemar's for one seed, or Student's where means are compared; Student's and the normal one's
    together for several seeds. What is decided by all claims `together` also has it after Holm's correction
    for how many there are. Those of the claims that set two `trained` networks side by side say so where one
    seed is all they have: another training may come out otherwise.
    """
    rows: list[list[Any]] = []
    for claim in claims:
        paper = None if claim.paper is None else f"{claim.paper:+.2f}"
        ours = f"{claim.difference:+.1f} ({claim.low:+.1f} to {claim.high:+.1f})"
        least = None if claim.smallest is None else f"{claim.smallest:.1f}"
        power = None if claim.power is None else f"{100 * claim.power:.0f}"
        alone = claim.seeds == 1 and claim in trained
        verdict = f"{claim.wording}, {ONE_SEED}" if alone else claim.wording
        rows.append([claim.text, paper, ours, f"{claim.p:.2g}", claim.seeds, least, power, verdict])
    if not together:
        return Table(title, list(COLUMNS), rows)
    corrected = holm([claim.p for claim in claims])
    rows = [[*row, f"{p:.2g}"] for row, p in zip(rows, corrected, strict=True)]
    return Table(title, [*COLUMNS, HOLM], rows)


def preferred(default: str, against: Mapping[str, Sequence[Claim]]) -> Finding:
    """Whether a rival should take the default's place, by claims of the default over each of them.

    It should if it is ahead somewhere and behind nowhere, beyond chance after Holm's correction over all
    claims. Claims of trainings with one seed decide nothing: another seed may come out otherwise.
    """
    pairs = [(rival, claim) for rival, claims in against.items() for claim in claims]
    corrected = holm([claim.p for _, claim in pairs])
    told = [(rival, claim) for (rival, claim), p in zip(pairs, corrected, strict=True) if p < SURE]
    behind = {rival for rival, claim in told if claim.difference > 0}
    better = dict.fromkeys(r for r, claim in told if claim.difference < 0 and r not in behind)
    evidence = f"ahead of it beyond chance and nowhere behind: {', '.join(better) or 'none'}"
    evidence += f" ({len(pairs)} claims, Holm's correction)"
    if any(claim.seeds == 1 for _, claim in pairs):
        evidence += f"; {ONE_TRAINING}"
        return Finding(f"the default, {default}", "skipped", evidence)
    return Finding(f"the default, {default}", "amber" if better else "green", evidence)
