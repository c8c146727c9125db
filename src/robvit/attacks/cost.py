"""What attacks cost, told before they start: passes, and by short probes their time and memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from robvit.attacks.core import Model, frozen, gradient

PROBED = 4  # images in a probe on a processor
TRIES = 3  # of each kind of pass, of which the first warms up and the quickest of the others counts
QUICK = 0.1  # seconds of a pass below which a probe's few images are too few
FULLER = 4  # times as many are passed then: a small network is slower on a few images than on a batch


def probed(batch: int, device: str) -> int:
    """How many images of a run's batch a probe passes; a GPU would spend a few on waiting (unmeasured)."""
    return batch if device == "cuda" else min(PROBED, batch)


def wait_for(device: str) -> None:
    """Let a GPU finish, so that the clock tells what it did."""
    if device == "cuda":
        torch.cuda.synchronize()


class Passes(NamedTuple):
    """Forward and backward passes over single images."""

    forward: int
    backward: int

    def times(self, factor: int) -> Passes:
        return Passes(self.forward * factor, self.backward * factor)

    def plus(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward)

    @property
    def work(self) -> int:
        """In forward passes; a backward pass counts two."""
        return self.forward + 2 * self.backward


@dataclass(frozen=True)
class Forecast:
    """Passes over single images, and what they take; `at_most` says that images leave once they err."""

    forward: int
    backward: int
    seconds: float
    gigabytes: float | None
    at_most: bool = True

    def __str__(self) -> str:
        memory = "" if self.gigabytes is None else f"; {self.gigabytes:.1f} GB of memory"
        first, last = ("at most ", " if no attack succeeds") if self.at_most else ("", "")
        return (
            f"{first}{self.forward:,} forward and {self.backward:,} backward passes, about "
            f"{span(self.seconds)}{last}{memory}"
        )


def span(seconds: float) -> str:
    """A time that people can read."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} seconds"


def forecast_of(passes: Passes, net: Model, x: torch.Tensor, *, at_most: bool = True) -> Forecast:
    """The cost of so many passes on images like x (B 3 H W), of which a few go through the network."""
    forward, backward = _pace(net, x[: probed(len(x), x.device.type)])
    seconds = passes.forward * forward + passes.backward * backward
    return Forecast(*passes, seconds, _memory(), at_most)


def _pace(net: Model, x: torch.Tensor) -> tuple[float, float]:
    """Seconds an image of a forward pass and of the backward pass beside it; first tries warm up."""
    device = x.device.type

    def seconds(call: Callable[[], object]) -> float:
        found = list[float]()
        while len(found) < TRIES:
            start = time.monotonic()
            call()
            wait_for(device)
            found.append(time.monotonic() - start)
        return min(found[1:])

    with torch.no_grad(), frozen(net):
        forward = seconds(lambda: net(x)) / len(x)
        if device != "cuda" and forward * len(x) < QUICK:
            x = x.repeat(FULLER, 1, 1, 1)
            forward = seconds(lambda: net(x)) / len(x)
        try:
            both = seconds(lambda: gradient(net, x, lambda output: output.sum(1))) / len(x)
        except Exception:  # what cannot be differentiated has no backward pass to wait for
            return forward, 0.0
    return forward, max(both - forward, 0.0)


def _memory() -> float | None:
    """Gigabytes at the probe's peak: the device's, or else this process's where the system tells."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 1e9
    try:
        import resource  # only on Unix
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
