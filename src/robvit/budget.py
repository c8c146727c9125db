"""A norm and a budget in pixels as plain data: what is one at all, and how it is read and written.

No torch here: records and pages are read without it, and a command refuses what was mistyped at once.
The geometry is in `robvit.threat`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from robvit.errors import InputError

NORMS = ("linf", "l2", "l1")
PATCH = "patch"  # no norm: a square of so many pixels a side, anywhere, may hold anything
THREATS = (*NORMS, PATCH)
MOST_DECIBELS = 200  # of an image in [0,1]; what rounding changes is about 150 dB below it


@dataclass(frozen=True)
class Budget:
    """How far an attack may go: `eps` in pixels in a norm, and the PSNR in dB that images must keep.

    Of a patch, `eps` is the side in pixels of the square inside which anything may change.
    """

    norm: str
    eps: float
    psnr: float | None = None

    @property
    def amount(self) -> str:
        """eps for people: grey levels as a fraction, "8/255" or "0.5/255", anything else as a number."""
        levels = self.eps * 255
        short = self.norm == "linf" and math.isfinite(levels) and abs(levels - round(levels, 3)) < 1e-6
        return f"{round(levels, 3):g}/255" if short else f"{self.eps:g}"

    def __str__(self) -> str:
        text = f"{self.norm} {self.amount}"
        return text if self.psnr is None else f"{text}, PSNR >= {self.psnr:g} dB"


def check_budget(norm: str, eps: float, *, usable: bool = False) -> None:
    """Refuse what is no norm, and what is no budget in pixels.

    An infinite eps is for attacks that look for the smallest perturbation; with `usable` it is refused,
    and so is zero.
    """
    if norm not in THREATS:
        raise InputError(f"norm must be one of {', '.join(THREATS)}, got {norm!r}")
    if norm == PATCH:
        if not (int(usable) <= eps < math.inf and eps == math.floor(eps)):
            raise InputError(
                f"a patch has a side of whole pixels, {int(usable)} or more, got {eps:g}; write 32"
            )
        return
    most = 1.0 if norm == "linf" else math.inf
    unlimited = eps == math.inf and not usable
    if not unlimited and not (0 <= eps <= most and math.isfinite(eps) and (eps > 0 or not usable)):
        least = "more than 0" if usable else "0 or more"
        bound = "at most 1" if norm == "linf" else "finite"
        raise InputError(f"eps is in pixels, {least} and {bound}, got {eps:g}; write 8/255")


def check_psnr(psnr: float | None) -> None:
    """Refuse decibels that no image can be asked to keep."""
    if psnr is not None and not 0 <= psnr <= MOST_DECIBELS:
        raise InputError(f"psnr is in decibels, 0 to {MOST_DECIBELS}, got {psnr:g}; 40 is usual")


def checked_budget(norm: str, eps: float, psnr: float | None = None) -> Budget:
    """A budget from elsewhere; one that cannot be is refused."""
    check_budget(norm, eps)
    check_psnr(psnr)
    return Budget(norm, eps, psnr)


def parse_number(text: str | float) -> float:
    """A number from text: "8/255", "0.5/255", "0.03", "1e-3" or "inf"."""
    try:
        return float(text)
    except (ValueError, TypeError, OverflowError):
        pass
    try:
        above, below = (float(part) for part in str(text).split("/"))
        if math.isfinite(above) and math.isfinite(below):
            return above / below
    except (ValueError, ZeroDivisionError):
        pass
    raise InputError(f"expected a number such as 8/255 or 0.03, got {text!r}")
