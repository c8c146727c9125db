"""An audit: slow attacks on a random sample of the survivors, and what it says of the others. No torch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from robvit.errors import InputError

SIZE = 300  # survivors that are tried; if none of them falls, at most 1 % of all would
STRATA = 5  # groups of survivors by their margin, each with its part of the sample
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Audit:
    """What the slow attacks did to a sample of the images that the first ones left correct.

    `attacks` names the slow ones, `size` the sample asked for; of `survivors` images `audited` were tried, of
    which those at the places `successes` fell. A row of `strata` is the least and the largest margin of a
    group, its survivors and how many of them were tried. `bound` is the largest share of the
    survivors that the slow attacks would break, with this `confidence`. Where the whole run was done with
    them instead, `switched` says why, `audited` is what was tried before, and the bound is zero.
    """

    attacks: list[str]
    size: int
    seed: int
    survivors: int
    audited: int
    successes: list[int] = field(default_factory=list)
    strata: list[list[float]] = field(default_factory=list)
    confidence: float = CONFIDENCE
    bound: float = 0.0
    switched: str = ""

    def __str__(self) -> str:
        names = " and ".join(self.attacks)
        if self.switched:
            return f"The whole run was done with {names}, as in the standard version: {self.switched}."
        if self.audited >= self.survivors:
            return f"All {self.survivors:,} survivors were tried by {names}: nothing is left to the audit."
        sure, most = f"{100 * self.confidence:g} %", _up(self.bound)
        return (
            f"With {sure} confidence at most {most} of the {self.survivors:,} survivors would fall to the "
            f"rest of AutoAttack ({names}): of {self.audited:,} of them, drawn at random in strata of "
            "their margin, none did."
        )


class Drawn(NamedTuple):
    """The names in a sample, in the order of the margins, and the strata as in `Audit`."""

    names: list[str]
    strata: list[list[float]]


def draw(margins: Mapping[str, float], size: int, seed: int) -> Drawn:
    """A random sample of `size` of the named images, or all, in proportion from every stratum.

    Whether an image is drawn depends on the seed, its name and the margins, never on an order.
    """
    ranked = sorted(margins, key=lambda name: (margins[name], _lot(name, seed)))
    total, parts = len(ranked), min(STRATA, size, len(ranked))
    groups = [ranked[part * total // parts : (part + 1) * total // parts] for part in range(parts)]
    names: list[str] = []
    strata: list[list[float]] = []
    for group, count in zip(groups, _in_proportion([len(g) for g in groups], min(size, total)), strict=True):
        chosen = set(sorted(group, key=lambda name: _lot(name, seed))[:count])
        names += [name for name in group if name in chosen]
        strata.append([margins[group[0]], margins[group[-1]], len(group), count])
    return Drawn(names, strata)


def _in_proportion(sizes: Sequence[int], seats: int) -> list[int]:
    """So many seats for groups by their sizes, which hardly differ: the largest remainders get the rest."""
    shares = [divmod(seats * size, sum(sizes)) for size in sizes]
    counts = [whole for whole, _ in shares]
    by_remainder = sorted(range(len(sizes)), key=lambda group: -shares[group][1])
    for group in by_remainder[: seats - sum(counts)]:
        counts[group] += 1
    return counts


def bound(strata: list[list[float]], confidence: float = CONFIDENCE) -> float:
    """The largest share of all images in the strata that may break, if none of those tried did.

    Of k images that would break each is tried with a chance of at least f, the least share tried of a
    stratum. Sampling without replacement then misses all of them with a chance of at most (1 - f)^k:
    equality if every one lies in a stratum of its own. So k is at most the largest for which that chance
    is above one minus the confidence, and no more than were left untried.
    """
    total, tried = (sum(row[place] for row in strata) for place in (2, 3))
    if tried >= total:
        return 0.0
    share = min(row[3] / row[2] for row in strata)
    most = math.floor(math.log(1 - confidence) / math.log1p(-share)) if share < 1 else 0
    return min(most, total - tried) / total


def bound_of(survivors: int, size: int, confidence: float = CONFIDENCE) -> float:
    """The bound where nothing is known but how many images stayed correct and the sample's size.

    It holds too if the sample broke: then all were tried, and nothing is left open.
    """
    drawn = draw({str(place): float(place) for place in range(survivors)}, size, seed=0)
    return bound(drawn.strata, confidence)


def pooled(audits: Sequence[Audit]) -> Audit:
    """Audits of other images each, as one about all survivors that a sample left open.

    Where a part tried all its survivors, nothing is open, and it adds nothing. Samples of several parts are
    drawn apart, so the strata of all of them bound together what was missed, as those of one do. A part whose
    sample fell cannot be left out of that: what a sample finds may not decide whether it counts.
    """
    first = audits[0]
    for other in audits[1:]:
        if (other.attacks, other.confidence) != (first.attacks, first.confidence):
            raise InputError("audits can be pooled that were done with the same attacks and confidence")
    left = [audit for audit in audits if not audit.switched and audit.audited < audit.survivors]
    fell = [audit for audit in audits if audit.switched or audit.successes]
    if fell and left:
        why = fell[0].switched or f"{len(fell[0].successes)} audited survivors fell"
        raise InputError(
            f"in one part {why}, so the other parts need the slow attacks on all their survivors too; judge "
            f"them again with --audit {max(audit.survivors for audit in audits)}"
        )
    strata = [row for audit in left for row in audit.strata]
    survivors, tried = (sum(getattr(audit, name) for audit in left) for name in ("survivors", "audited"))
    if not left:
        survivors = tried = sum(audit.survivors for audit in audits)
    size = sum(audit.size for audit in left or audits)
    share = bound(strata, first.confidence) if left else 0.0
    return replace(
        first,
        size=size,
        survivors=survivors,
        audited=tried,
        successes=[],
        strata=strata,
        bound=share,
        switched="",
    )


def _lot(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} audit {name}".encode(), digest_size=16).digest()


def _up(share: float) -> str:
    """A share in per cent, rounded up to two digits after the point."""
    return f"{math.ceil(share * 1e4 - 1e-9) / 100:g} %"
