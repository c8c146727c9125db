"""Threat models: a norm and a budget in pixels, and all the geometry that depends on the norm.

This is the only file that asks which norm is meant. Every function works on each picture of a
batch by itself, so that results do not depend on how pictures are batched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch

from robvit.errors import InputError

NORMS = ("linf", "l2", "l1")


def _per_image(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, 1, 1, 1)


@dataclass(frozen=True)
class Threat:
    """All pictures in [0,1] within `eps` of the original in the given norm; `eps` is in pixels.

    `eps` may be infinite, for attacks that look for the smallest perturbation.
    """

    norm: str
    eps: float

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise InputError(f"norm must be one of {', '.join(NORMS)}, got {self.norm!r}")
        if not self.eps >= 0:
            raise InputError(f"eps must be zero or more, got {self.eps}; write 8/255 for eight grey levels")

    def __str__(self) -> str:
        levels = self.eps * 255
        whole = self.norm == "linf" and math.isfinite(levels) and abs(levels - round(levels)) < 1e-6
        return f"{self.norm} {round(levels)}/255" if whole else f"{self.norm} {self.eps:g}"

    @classmethod
    def parse(cls, norm: str, eps: str) -> Threat:
        """A threat from text such as "8/255", "0.5" or "inf"."""
        return cls(norm, parse_number(eps))

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """The norm of each perturbation: (B 3 H W) -> (B,)."""
        flat = delta.flatten(1)
        if self.norm == "linf":
            return flat.abs().amax(1)
        return flat.norm(dim=1) if self.norm == "l2" else flat.abs().sum(1)

    def project(self, x: torch.Tensor, adv: torch.Tensor) -> torch.Tensor:
        """A picture in [0,1] inside the ball around `x`, near `adv`; the nearest one for L-inf and L1."""
        if not math.isfinite(self.eps):
            return adv.clamp(0, 1)
        if self.norm == "linf":
            return adv.clamp(x - self.eps, x + self.eps).clamp(0, 1)
        if self.norm == "l1":
            return x + _project_l1_box(x, adv - x, self.eps)
        delta = adv - x
        delta = delta * _per_image((self.eps / self.size(delta).clamp_min(1e-30)).clamp_max(1))
        return (x + delta).clamp(0, 1)  # x is in the box, so clamping only shortens

    def steepest(self, gradient: torch.Tensor, step: float | torch.Tensor) -> torch.Tensor:
        """The move of size `step`, one number or (B,), that raises a linear loss the most."""
        length = torch.as_tensor(step, device=gradient.device, dtype=gradient.dtype).expand(len(gradient))
        if self.norm == "linf":
            return gradient.sign() * _per_image(length)
        if self.norm == "l2":
            return gradient * _per_image(length / gradient.flatten(1).norm(dim=1).clamp_min(1e-30))
        flat = gradient.flatten(1)
        spot = flat.abs().argmax(1, keepdim=True)
        move = torch.zeros_like(flat).scatter_(1, spot, flat.gather(1, spot).sign() * length[:, None])
        return move.view_as(gradient)


def parse_number(text: str | float) -> float:
    """A number from text: "8/255", "0.03", "1e-3" or "inf"."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return float(Fraction(str(text).replace(" ", "")))
    except (ValueError, ZeroDivisionError):
        raise InputError(f"expected a number such as 8/255 or 0.03, got {text!r}") from None


def _project_l1_box(x: torch.Tensor, delta: torch.Tensor, eps: float) -> torch.Tensor:
    """The nearest perturbation with L1 norm at most `eps` that keeps x + delta in [0,1] (2103.01208).

    Shrinking every |delta| by a common amount and then clipping to the box is the exact projection;
    the amount is found by bisection, which needs no sort and treats every picture by itself.
    """
    want = delta.abs()
    room = torch.where(delta > 0, 1 - x, x)

    def shrunk(amount: torch.Tensor) -> torch.Tensor:
        return torch.minimum((want - _per_image(amount)).clamp_min(0), room)

    low = torch.zeros(len(x), device=x.device, dtype=x.dtype)
    high = want.flatten(1).amax(1)
    inside = shrunk(low).flatten(1).sum(1) <= eps
    for _ in range(50):
        middle = (low + high) / 2
        too_much = shrunk(middle).flatten(1).sum(1) > eps
        low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    amount = torch.where(inside, torch.zeros_like(high), high)
    return shrunk(amount) * delta.sign()
