"""Threat models: a norm and a budget in pixels, and the geometry of its ball and of the box [0,1].

What follows from the norm alone is here: sizes, projections, steepest moves, random points, planes. An
attack asks for the norm only where it goes another way in it: Square's windows, the rounding to grey levels,
which L-inf bounds value by value, and a universal change, which is added or, as a patch, pasted. Every
function works on each image of a batch by itself, so that results do not depend on how images are batched.

A patch is treated as one more norm: the size of a perturbation is the side of the least square that holds all
changed pixels, so that its "ball" are the images that differ inside some square of that side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from robvit.budget import NORMS, PATCH, Budget, check_budget, check_psnr, parse_number

__all__ = ["NORMS", "PATCH", "Threat"]


def _per_image(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1, 1, 1, 1)


def _each(value: float | torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(value, device=like.device, dtype=like.dtype).expand(len(like))


def _shrink(x: torch.Tensor, adv: torch.Tensor, radius: float) -> torch.Tensor:
    delta = adv - x
    length = delta.flatten(1).norm(dim=1).clamp_min(1e-30)
    return x + delta * _per_image((radius / length).clamp_max(1))


@dataclass(frozen=True)
class Threat:
    """All images in [0,1] within `eps` of the original in the given norm; `eps` is in pixels.

    `eps` may be infinite, for attacks that look for the smallest perturbation. With `psnr`, every
    image must also keep at least so many decibels of peak signal-to-noise ratio.
    """

    norm: str
    eps: float
    psnr: float | None = None

    def __post_init__(self) -> None:
        check_budget(self.norm, self.eps)
        check_psnr(self.psnr)

    def __str__(self) -> str:
        return str(self.budget)

    @property
    def budget(self) -> Budget:
        """The same as plain data, as a record holds it."""
        return Budget(self.norm, self.eps, self.psnr)

    @classmethod
    def parse(cls, norm: str, eps: str) -> Threat:
        """A threat from text such as "8/255", "0.5" or "inf"."""
        return cls(norm, parse_number(eps))

    @property
    def sparse(self) -> bool:
        """Whether changing few values by much is the way to go: in L1, where papers attack so."""
        return self.norm == "l1"

    def times(self, factor: float) -> Threat:
        """The ball of `factor` times the budget; in L-inf no larger than the box."""
        eps = factor * self.eps
        return replace(self, eps=min(eps, 1.0) if self.norm == "linf" and math.isfinite(eps) else eps)

    def mass(self, delta: torch.Tensor) -> torch.Tensor:
        """What adds up over values to the norm, in L1 and L2: absolute values, squares. Any shape."""
        assert self.norm in ("l1", "l2")
        return delta.abs() if self.norm == "l1" else delta.square()

    def length(self, mass: torch.Tensor) -> torch.Tensor:
        """The norm of what has this mass, in L1 and L2. Any shape."""
        assert self.norm in ("l1", "l2")
        return mass if self.norm == "l1" else mass.clamp_min(0).sqrt()

    def size(self, delta: torch.Tensor) -> torch.Tensor:
        """The norm of each perturbation: (B 3 H W) -> (B,)."""
        if self.norm == PATCH:
            return _side(delta)
        flat = delta.flatten(1)
        if self.norm == "linf":
            return flat.abs().amax(1)
        return flat.norm(dim=1) if self.norm == "l2" else flat.abs().sum(1)

    def tolerance(self, x: torch.Tensor) -> float:
        """By how much images like `x` (B 3 H W) may exceed the budget: what rounding in their type can do.

        A value in [0,1] is off by at most half a unit in the last place of 1. These errors have both signs,
        so that in L2 they add up to little more than one of them and in L1 to the root of their number; the
        norms themselves are summed up to a millionth.
        """
        if self.norm == PATCH:
            return 0.0  # a pixel has changed or it has not
        unit = float(torch.finfo(x.dtype).eps)
        count = {"linf": 1.0, "l2": 8.0, "l1": float(x[0].numel()) ** 0.5}[self.norm]
        summed = 1e-6 * self.eps if math.isfinite(self.eps) and self.norm != "linf" else 0.0
        return float(count * unit + summed)

    def radius(self, x: torch.Tensor) -> float:
        """The L2 norm at which a perturbation of `x` reaches the PSNR limit; infinite without one."""
        return math.inf if self.psnr is None else math.sqrt(x[0].numel()) * 10 ** (-self.psnr / 20)

    def inside(self, delta: torch.Tensor) -> torch.Tensor:
        """The nearest perturbation (B 3 H W) inside the ball, whatever the box, in L-inf and L2."""
        assert self.norm in ("linf", "l2")
        if self.norm == "linf":
            return delta.clamp(-self.eps, self.eps)
        return _shrink(torch.zeros_like(delta), delta, self.eps)

    def project(self, x: torch.Tensor, adv: torch.Tensor) -> torch.Tensor:
        """An image in [0,1] inside the ball around `x`, near `adv`; the nearest one but in L2."""
        if self.norm == PATCH:
            adv = _in_square(x, adv.clamp(0, 1), int(self.eps))
        elif not math.isfinite(self.eps):
            adv = adv.clamp(0, 1)
        elif self.norm == "linf":
            adv = adv.clamp(x - self.eps, x + self.eps).clamp(0, 1)
        elif self.norm == "l1":
            adv = x + _project_l1_box(x, adv - x, self.eps)
        else:
            adv = _shrink(x, adv, self.eps).clamp(0, 1)  # x is in the box, so clamping only shortens
        if self.psnr is None:
            return adv
        return _shrink(x, adv, self.radius(x)).clamp(0, 1)  # moving towards x stays inside the ball

    def steepest(
        self, gradient: torch.Tensor, step: float | torch.Tensor, share: float | torch.Tensor = 0.0
    ) -> torch.Tensor:
        """The move of size `step`, one number or (B,), that raises a linear loss the most.

        In L1 that move changes one value only, or as few as the box allows, which serves real
        networks badly, so it may be spread evenly over a `share` of the values, those of the largest
        gradient; other norms ignore it.
        """
        length = _each(step, gradient)
        if self.norm in ("linf", PATCH):  # inside a patch every value may go any way
            return gradient.sign() * _per_image(length)
        if self.norm == "l2":
            return gradient * _per_image(length / gradient.flatten(1).norm(dim=1).clamp_min(1e-30))
        size = gradient.flatten(1).abs()
        fewest = 2 * length  # from mid-grey a value can move by one half
        count = (_each(share, gradient) * size.shape[1]).maximum(fewest).ceil().long().clamp(1, size.shape[1])
        least = size.sort(1, descending=True).values.gather(1, count[:, None] - 1)
        move = torch.where(size >= least, gradient.flatten(1).sign(), 0)
        return (move * (length / move.abs().sum(1).clamp_min(1))[:, None]).view_as(gradient)

    def random(self, x: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """A random image of the ball around `x` from numbers in (0,1) of the same shape.

        In L2 and L1 it lies on the sphere, where nearly all of a ball of many dimensions is.
        """
        if self.norm == PATCH:
            return self.project(x, uniform)
        spread = 2 * uniform.clamp(1e-6, 1 - 1e-6) - 1
        if self.norm == "l2":
            spread = torch.erfinv(spread)  # normal numbers: every direction is as likely
        elif self.norm == "l1":
            spread = -spread.sign() * torch.log1p(-spread.abs())
        if self.norm != "linf":
            spread = spread / _per_image(self.size(spread).clamp_min(1e-30))
        return self.project(x, x + self.eps * spread)

    def onto_plane(self, x: torch.Tensor, normal: torch.Tensor, rise: torch.Tensor) -> torch.Tensor:
        """The smallest move in [0,1] that raises <normal, x> by `rise` (B,): (B 3 H W) -> (B 3 H W).

        Where the box does not allow the whole rise, the move goes as far as the box allows.
        """
        slope = normal.flatten(1) * rise.sign()[:, None]
        room = torch.where(slope > 0, 1 - x.flatten(1), x.flatten(1)) * (slope != 0)
        solve = _fill_steepest_first if self.norm == "l1" else _fill_together
        rate = torch.ones_like(slope) if self.norm == "linf" else slope.abs()
        return (solve(slope.abs(), room, rate, rise.abs()) * slope.sign()).view_as(x)


def box_sums(values: torch.Tensor, side: int) -> torch.Tensor:
    """The sum of values (B H W) over every square of a side: (B H-side+1 W-side+1)."""
    return F.avg_pool2d(values[:, None], side, stride=1, divisor_override=1)[:, 0]


def square(places: torch.Tensor, side: int, shape: torch.Size) -> torch.Tensor:
    """Where squares lie whose first row and column are `places` (B 2): (B 1 H W) bool."""
    rows, columns = (torch.arange(length, device=places.device) for length in shape[-2:])
    top, left = places[:, 0, None], places[:, 1, None]
    inside = ((rows >= top) & (rows < top + side))[:, :, None] & (
        (columns >= left) & (columns < left + side)
    )[:, None]
    return inside[:, None]


def _side(delta: torch.Tensor) -> torch.Tensor:
    """The side of the least square that holds all that is not zero in delta (B 3 H W): (B,)."""
    changed = (delta != 0).any(1)
    spans = []
    for axis in (1, 2):
        along = changed.any(3 - axis)
        length = along.shape[1]
        first, last = along.int().argmax(1), length - 1 - along.flip(1).int().argmax(1)
        spans.append(torch.where(along.any(1), last - first + 1, 0))
    return torch.maximum(*spans).to(delta.dtype)


def _in_square(x: torch.Tensor, adv: torch.Tensor, side: int) -> torch.Tensor:
    """The image of `adv` inside the square where it differs most from x, and of x elsewhere (B 3 H W)."""
    side = min(side, *x.shape[-2:])
    if side == 0:
        return x.clone()
    gain = box_sums((adv - x).square().sum(1), side)
    best, columns = gain.flatten(1).argmax(1), gain.shape[2]
    return torch.where(square(torch.stack((best // columns, best % columns), 1), side, x.shape), adv, x)


def _project_l1_box(x: torch.Tensor, delta: torch.Tensor, eps: float) -> torch.Tensor:
    """The nearest perturbation with L1 norm at most `eps` that keeps x + delta in [0,1] (2103.01208).

    Shrinking every |delta| by a common amount and then clipping to the box is the exact projection;
    the amount is found by bisection, which needs no sort and treats every image by itself.
    """
    want = delta.abs().flatten(1)
    room = torch.where(delta > 0, 1 - x, x).flatten(1)

    def shrunk(amount: torch.Tensor) -> torch.Tensor:
        return torch.minimum((want - amount[:, None]).clamp_min(0), room)

    low = torch.zeros(len(x), device=x.device, dtype=x.dtype)
    inside = shrunk(low).sum(1) <= eps * (1 + 1e-6)  # rounding is no reason for fifty rounds
    high = torch.where(inside, low, want.amax(1))
    if not bool(inside.all()):
        for count in range(50):
            middle = (low + high) / 2
            if count % 5 == 4 and bool(((middle == low) | (middle == high)).all()):
                break  # no number lies between, so nothing would change any more
            too_much = shrunk(middle).sum(1) > eps
            low, high = torch.where(too_much, middle, low), torch.where(too_much, high, middle)
    return shrunk(high).view_as(delta) * delta.sign()


def _fill_steepest_first(
    slope: torch.Tensor, room: torch.Tensor, rate: torch.Tensor, rise: torch.Tensor
) -> torch.Tensor:
    """L1: the values of the steepest slope move first, each as far as its room allows. All (B n)."""
    order = slope.argsort(1, descending=True)
    gain = (slope * room).gather(1, order)
    before = gain.cumsum(1) - gain
    part = ((rise[:, None] - before) / gain.clamp_min(1e-30)).clamp(0, 1)
    return torch.zeros_like(room).scatter_(1, order, part) * room


def _fill_together(
    slope: torch.Tensor, room: torch.Tensor, rate: torch.Tensor, rise: torch.Tensor
) -> torch.Tensor:
    """L-inf and L2: all values move together at their `rate` until their room is used. All (B n).

    The rise is a concave piecewise linear function of time whose kinks are the times at which a
    value runs out of room; sorting them gives the time at which it reaches `rise` exactly.
    """
    kink, order = (room / rate.clamp_min(1e-30)).sort(1)
    speed = (slope * rate).gather(1, order)
    left = speed.flip(1).cumsum(1).flip(1)  # still moving at each kink, the value itself included
    full = (slope * room).gather(1, order)
    before = full.cumsum(1) - full  # gained by values that have stopped before
    reached = before + kink * left
    index = (reached < rise[:, None]).sum(1, keepdim=True)
    possible = index < kink.shape[1]
    index = index.clamp_max(kink.shape[1] - 1)
    time = (rise[:, None] - before.gather(1, index)) / left.gather(1, index).clamp_min(1e-30)
    return torch.where(possible, torch.minimum(time * rate, room), room)
