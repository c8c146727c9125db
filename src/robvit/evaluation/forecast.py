"""What an evaluation will cost, before it starts: passes, time and memory, from a short probe."""

from __future__ import annotations

import resource
import sys
import time
import warnings
from dataclasses import dataclass

import torch
from torch import nn

from robvit.attacks import AttackWarning, frozen, run
from robvit.attacks.core import gradient
from robvit.evaluation.protocol import Attack, Protocol
from robvit.threat import Threat

PROBED = 4  # images in the probe


@dataclass(frozen=True)
class Forecast:
    """Passes over single images if every image withstands every attack, and what they take."""

    forward: int
    backward: int
    seconds: float
    gigabytes: float

    def __str__(self) -> str:
        return (
            f"at most {self.forward:,} forward and {self.backward:,} backward passes, about "
            f"{span(self.seconds)} if every image withstands; {self.gigabytes:.1f} GB of memory"
        )


def span(seconds: float) -> str:
    """A time that people can read."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} seconds"


def forecast(protocol: Protocol, net: nn.Module, x: torch.Tensor, *, count: int, classes: int) -> Forecast:
    """The cost for `count` images like x (B 3 H W), of which a few are passed through the network."""
    forward_time, backward_time = _pace(net, x[:PROBED])
    sources = {"own-tokens": protocol.attacker_budget.sets + (protocol.attacker_budget.sets > 1)}
    scenarios = 1 + len(protocol.controls)
    forward, backward = count * scenarios, 0
    for entry in protocol.attacks:
        # An ensemble of k passes through k models; so the sets together cost as much as all alone.
        times = 2 * sources["own-tokens"] - 2 if entry.attacker == "own-tokens" else 1
        one = passes(entry, protocol.threat_of(entry), classes)
        forward += count * len(protocol.seeds) * max(times, 1) * one[0]
        backward += count * len(protocol.seeds) * max(times, 1) * one[1]
    if protocol.corruptions is not None:
        forward += count * len(protocol.corruptions.severities) * len(protocol.corruptions.names or range(15))
    learning = _learning(protocol)
    forward, backward = forward + learning, backward + learning
    seconds = forward * forward_time + backward * backward_time
    return Forecast(forward, backward, seconds, _memory())


def passes(entry: Attack, threat: Threat, classes: int) -> tuple[int, int]:
    """Forward and backward passes of an attack on one image that withstands it, counted on a toy."""
    toy = _Steadfast(classes)
    x, y = torch.full((1, 3, 8, 8), 0.5), torch.zeros(1, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttackWarning)
        outcome = run(entry.attack, toy, x, y, threat, **entry.ready(0))
    return outcome.forward + 1, outcome.backward


class _Steadfast(nn.Module):
    """A linear model of 8x8 images that no budget of a protocol moves away from class 0."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        slopes = torch.randn(classes, 3 * 64, generator=torch.Generator().manual_seed(0))
        self.register_buffer("slopes", 1e-3 * slopes)
        self.register_buffer("lead", 20.0 * (torch.arange(classes) == 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.slopes.T + self.lead  # type: ignore[operator]


def _pace(net: nn.Module, x: torch.Tensor) -> tuple[float, float]:
    """Seconds an image of a forward pass and of the backward pass beside it; the second try counts."""
    with torch.no_grad(), frozen(net):
        for _ in range(2):
            start = time.monotonic()
            net(x)
            forward = (time.monotonic() - start) / len(x)
        start = time.monotonic()
        try:
            gradient(net, x, lambda output: output.sum(1))
        except Exception:  # what cannot be differentiated has no backward pass to wait for
            return forward, 0.0
        both = (time.monotonic() - start) / len(x)
    return forward, max(both - forward, 0.0)


def _learning(protocol: Protocol) -> int:
    """Passes, forward and as many backward, of attackers who learn."""
    means, known = protocol.attacker_budget, {entry.attacker for entry in protocol.attacks}
    own = means.images * means.attack_steps + means.sets * means.steps * means.batch * 2
    return own * ("own-tokens" in known) + means.leak_steps * means.batch * ("leak" in known)


def _memory() -> float:
    """Gigabytes at the probe's peak: the device's, or else this process's."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
