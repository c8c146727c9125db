"""A model with its attention scores scaled, and the search for the scales (Jain and Dutta, CVPR 2024).

One factor for each attention block multiplies the scores before the softmax. The factors are found by
ascending the distance of the scaled model from the unscaled one. M attention blocks, B batch, K classes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from robvit.attacks.core import Model, frozen, modules_of
from robvit.attacks.counting import Count
from robvit.attacks.scale_objectives import OBJECTIVES, View
from robvit.attention import SCALERS, attention_layers, scaled, watch
from robvit.errors import InputError, Unsupported
from robvit.registry import unknown

LOW = 1e-7  # the paper's smallest factor; the largest is 1

Batch = tuple[torch.Tensor, torch.Tensor | None]


# --- the scaled model ---------------------------------------------------------------------------------


def network_of(model: Model) -> nn.Module:
    """The network with attention behind a callable; refuses a model that has none."""
    networks = modules_of(model)
    if not networks:
        raise Unsupported(
            f"attention can only be scaled in a network, got {type(model).__name__} with none inside; "
            "pass the torch module itself"
        )
    with_attention = [n for n in networks if any(type(m) in SCALERS for m in n.modules())]
    net = (with_attention or networks)[0]
    attention_layers(net)
    return net


class Scaled:
    """A model whose attention scores are multiplied while it runs, block by block, and only then."""

    def __init__(self, model: Model, scales: torch.Tensor | Sequence[float]) -> None:
        self.__wrapped__ = model
        self.net = network_of(model)
        self.scales = scales
        if any(getattr(part, "grad_checkpointing", False) is True for part in self.net.modules()):
            raise Unsupported(
                "a checkpointed block runs a second time after the scales are gone; "
                "switch it off with set_grad_checkpointing(False)"
            )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with scaled(self.net, self.scales):
            return self.__wrapped__(x)


# --- finding the scales -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scales:
    """One factor for each attention block, how they came about, and the passes that took, summed over images.

    `start` is the random point from which the last batch was climbed, `moved` by how much the ascent moved
    the factor that it moved most, batch by batch: near zero where the factors are those of the random start.
    `value` is the objective on the last batch, as far from the unscaled model as the factors lead; it is
    only measured where several starts are compared.
    """

    values: tuple[float, ...]
    start: tuple[float, ...]
    moved: tuple[float, ...]
    forward: int
    backward: int
    value: float | None = None

    def metrics(self) -> dict[str, float]:
        """Where every factor began on the last batch and ended, and how far the ascent moved them."""
        found = {"scales, furthest move of the ascent": max(self.moved)}
        for place, (start, end) in enumerate(zip(self.start, self.values, strict=True)):
            found |= {f"scale {place + 1}, start": start, f"scale {place + 1}": end}
        return found


@dataclass(frozen=True)
class _Chain:
    """Factors (M,) on their way from batch to batch, with what `Scales` tells of it."""

    factors: torch.Tensor
    start: torch.Tensor
    moved: tuple[float, ...] = ()


def find_scales(
    model: Model,
    batches: Iterable[Batch],
    *,
    objective: str = "unit",
    steps: int = 10,
    step_size: float = 1.0,
    direction: str = "gradient",
    starts: int = 1,
    blocks: int | Sequence[int] | None = None,
    space: str = "linear",
    low: float = LOW,
    begin: Sequence[float] | None = None,
    seed: int = 0,
) -> Scales:
    """Factors in [low, 1] that drive the model far from itself, carried on from batch to batch (Algorithm 1).

    batches: images (B 3 H W) and labels (B,) or None; each batch starts at random around the factors so
        far, which are also its reference, as in the paper.
    objective: a name from `OBJECTIVES`, the distance from the unscaled model.
    steps, step_size: of the ascent on each batch; without steps the factors are random ones.
    direction: a step along the "gradient" as it is, as the paper's, its "sign", or the "unit" vector.
    starts: searches; the one is kept that ends furthest from the unscaled model on the last batch.
    blocks: scale only the first so many blocks, or those listed.
    space: "linear" starts are normal around the factors, often at an end of the range; "log" starts are
        uniform in the logarithm.
    low: the smallest factor.
    begin: the factors to begin with; ones if left out.
    seed: decides the starts.
    """
    if steps < 0 or starts < 1 or not 0 < low < 1:
        raise InputError(f"expected steps >= 0, starts >= 1 and low in (0,1), got {steps, starts, low}")
    for kind, name, known in (("space", space, _SPACES), ("direction", direction, list(_DIRECTIONS))):
        if name not in known:
            raise unknown(kind, name, list(known))
    with torch.no_grad(), frozen(model):
        free = free_blocks(blocks, network_of(model))
        search = _Search(model, objective, steps, step_size, direction, free, space, low)
        first = torch.ones(len(free)) if begin is None else torch.tensor([float(v) for v in begin])
        if first.shape != free.shape:
            raise InputError(f"expected one factor for each of {len(free)} blocks to begin, got {len(first)}")
        chains = [_Chain(first, first)] * starts
        last: Batch | None = None
        for index, last in enumerate(batches):
            seeds = [f"{seed} {start} {index}" for start in range(starts)]
            chains = [search.climb(chain, last, text) for chain, text in zip(chains, seeds, strict=True)]
        if last is None:
            raise InputError("scales are found on images, got no batch")
        value, chosen = None, chains[0]
        if starts > 1:
            values = search.compare([chain.factors for chain in chains], last)
            value = max(values)
            chosen = chains[values.index(value)]
    end, start = (tuple(factors.tolist()) for factors in (chosen.factors, chosen.start))
    return Scales(end, start, chosen.moved, search.forward, search.backward, value)


_SPACES = ("linear", "log")
_DIRECTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gradient": lambda gradient: gradient,
    "sign": torch.sign,
    "unit": lambda gradient: gradient / gradient.norm().clamp_min(1e-30),
}


def free_blocks(blocks: int | Sequence[int] | None, net: nn.Module) -> torch.Tensor:
    """Which blocks are scaled: (M,) bool."""
    count = len(attention_layers(net))
    chosen = list(range(count) if blocks is None else range(blocks) if isinstance(blocks, int) else blocks)
    if any(not 0 <= i < count for i in chosen):
        raise InputError(f"blocks must be a number up to {count}, or indices below it, got {blocks}")
    free = torch.zeros(count, dtype=torch.bool)
    free[chosen] = True
    return free


class _Search:
    """Ascent on the factors; the unscaled model's features are kept while their batch lasts."""

    def __init__(
        self,
        model: Model,
        objective: str,
        steps: int,
        step_size: float,
        direction: str,
        free: torch.Tensor,
        space: str,
        low: float,
    ) -> None:
        self.model, self.net = model, network_of(model)
        entry = OBJECTIVES.entry(objective)
        self.objective, self.uses_features = entry.value, entry.info.features
        self.steps, self.step_size, self.direction = steps, step_size, _DIRECTIONS[direction]
        self.free, self.log, self.low = free, space == "log", low
        self.forward = self.backward = 0
        self._reference_cache: tuple[torch.Tensor, torch.Tensor, View] | None = None

    def climb(self, chain: _Chain, batch: Batch, seed: str) -> _Chain:
        """From the factors so far to new ones, by ascent from a random start around them."""
        x, y = batch
        reference = self._reference(chain.factors, x) if self.steps else None
        point = self._start(chain.factors, seed)
        start = self._factors(point)
        for _ in range(self.steps):
            assert reference is not None
            with torch.enable_grad():
                leaf = point.detach().requires_grad_()
                value = self.objective(self._forward(self._factors(leaf), x), reference, y).mean()
            (grad,) = torch.autograd.grad(value, leaf)
            self._note_backward(len(x))
            step = self.direction(torch.nan_to_num(grad, 0.0, 0.0, 0.0))
            point = self._project(point + self.step_size * step)
        end = self._factors(point).detach()
        return _Chain(end, start, (*chain.moved, float((end - start).abs().max())))

    def compare(self, chains: list[torch.Tensor], batch: Batch) -> list[float]:
        """The objective of each set of factors against the unscaled model."""
        x, y = batch
        reference = self._reference(torch.ones_like(chains[0]), x)
        return [float(self.objective(self._forward(chain, x), reference, y).mean()) for chain in chains]

    def _start(self, chain: torch.Tensor, seed: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(random.Random(seed).getrandbits(63))
        if self.log:
            return math.log(self.low) * torch.rand(chain.shape, generator=generator)
        return self._project(chain + torch.randn(chain.shape, generator=generator))

    def _project(self, point: torch.Tensor) -> torch.Tensor:
        return point.clamp(math.log(self.low), 0.0) if self.log else point.clamp(self.low, 1.0)

    def _factors(self, point: torch.Tensor) -> torch.Tensor:
        factors = point.exp().clamp(self.low, 1.0) if self.log else point
        return torch.where(self.free, factors, 1.0)

    def _reference(self, chain: torch.Tensor, x: torch.Tensor) -> View:
        if (
            self._reference_cache is None
            or self._reference_cache[0] is not x
            or not torch.equal(self._reference_cache[1], chain)
        ):
            self._reference_cache = (x, chain, self._forward(chain, x))
        return self._reference_cache[2]

    def _forward(self, factors: torch.Tensor, x: torch.Tensor) -> View:
        self.forward += len(x)
        with watch(self.net, residual=self.uses_features) as recording:
            output = Scaled(self.model, factors)(x)
        return View(output, list(recording.residual))

    def _note_backward(self, count: int) -> None:
        self.backward += count
        counter: Any = self.model
        while (
            self.uses_features and counter is not None
        ):  # no gradient passes the output that a Count watches
            if isinstance(counter, Count):
                counter.backward += count
            counter = getattr(counter, "__wrapped__", None)
