"""A norm and a budget in pixels as plain data, for records and pages that are read where no torch is."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How far an attack may go: `eps` in pixels in a norm, and the PSNR in dB that images must keep."""

    norm: str
    eps: float
    psnr: float | None = None

    @property
    def amount(self) -> str:
        """eps for people: whole grey levels as a fraction, "8/255", anything else as a number."""
        levels = self.eps * 255
        whole = self.norm == "linf" and math.isfinite(levels) and abs(levels - round(levels)) < 1e-6
        return f"{round(levels)}/255" if whole else f"{self.eps:g}"

    def __str__(self) -> str:
        text = f"{self.norm} {self.amount}"
        return text if self.psnr is None else f"{text}, PSNR >= {self.psnr:g} dB"
