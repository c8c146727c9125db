"""Does scaling attention make an attack stronger? Judged on the unscaled model, at equal cost, pair by pair.

Three arms see the same images: the plain attack; the attack crafted on the scaled model, beside the
plain one; and a control, the plain attack with the passes of both. What the scaled model itself says of
any image is a diagnostic and decides nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from robvit.attacks import ATTACKS, Outcome, find_scales, run
from robvit.attacks.scales import Scaled
from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.evaluation.metrics import mcnemar, paired_interval
from robvit.evaluation.record import Trial
from robvit.threat import Threat

LOOKS = 2  # passes of every run besides the attack's: one look before, one after
SURE = 0.05  # a difference counts if chance alone makes it less often


@dataclass(frozen=True)
class ScalingMethod:
    """How scales come about: "aas" finds them on every batch unless given, "aas_uniform" tries factors.

    `settings` are those of `find_scales`, or `factors` and `blocks` of the attack `aas_uniform`.
    """

    name: str = "aas"
    scales: Sequence[float] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """Four trials on the same images, what the scaled model says of its own, and the scales.

    `own` holds the scaled model's accuracy on untouched images and on those crafted on it, where one
    set of scales was used for a batch.
    """

    clean: Trial
    plain: Trial
    scaled: Trial
    control: Trial
    scales: list[tuple[float, ...]]
    own: tuple[float, float] | None

    @property
    def trials(self) -> list[Trial]:
        return [self.clean, self.plain, self.scaled, self.control]

    @property
    def both(self) -> list[bool]:
        """Which images withstand the plain and the scaled attack."""
        return [a and b for a, b in zip(self.plain.correct, self.scaled.correct, strict=True)]

    def broken_only(self) -> tuple[int, int]:
        """How many images only plain and scaled together break, and how many only the control."""
        pairs = list(zip(self.both, self.control.correct, strict=True))
        return sum(c and not b for b, c in pairs), sum(b and not c for b, c in pairs)

    def verdict(self) -> str:
        """Whether the paper's effect appears, in a sentence with its evidence."""
        more, less = self.broken_only()
        count = len(self.both)
        _, low, high = (100 * v for v in paired_interval(more, less, count))
        p = mcnemar(more, less)
        if p >= SURE:
            says = "The paper's effect does not appear beyond chance"
        elif more > less:
            says = "The paper's effect appears"
        else:
            says = "The paper's effect does not appear; ordinary restarts are stronger"
        return (
            f"{says}: of {count} images {self.plain.attack} with scaled attention breaks {more} that the "
            f"control of the same cost leaves, and leaves {less} that the control breaks "
            f"(95 % interval of the difference {low:+.1f} to {high:+.1f} points, McNemar p = {p:.2g})."
        )


def compare_scaling(
    model: nn.Module,
    images: ImageDataset,
    threat: Threat,
    *,
    base: str = "pgd",
    settings: dict[str, Any] | None = None,
    way: ScalingMethod | None = None,
    batch: int = 64,
    seed: int = 0,
    report: Callable[..., None] = lambda *_, **__: None,
) -> Comparison:
    """The plain attack, the scaled one and the control on all images; `settings` are the base attack's."""
    arms = _Arms(model, threat, base, dict(settings or {}), way or ScalingMethod(), seed)
    for x, y in images.batches(batch):
        arms.see(x, y)
        report(len(x))
    return arms.finish()


class _Arms:
    """The four trials as they grow, batch by batch."""

    def __init__(
        self,
        model: nn.Module,
        threat: Threat,
        base: str,
        settings: dict[str, Any],
        way: ScalingMethod,
        seed: int,
    ) -> None:
        self.model, self.threat, self.base, self.settings = model, threat, base, settings
        self.way, self.seed = way, seed
        self.trials = {
            "clean": Trial("clean", None, {}, [], [], []),
            "plain": Trial(base, threat.budget, settings, [], [], []),
            "scaled": Trial(
                f"{base}+{way.name}",
                threat.budget,
                {**settings, **way.settings},
                [],
                [],
                [],
                surrogate="the model with its attention scaled",
            ),
            "control": Trial(f"{base}, same cost", threat.budget, settings, [], [], [], control=True),
        }
        self.scales: list[tuple[float, ...]] = []
        self.own: list[tuple[int, int, int]] = []

    def see(self, x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.no_grad():
            correct = self.model(x).argmax(1) == y
        self._note("clean", x, x, y, _Cost(len(x), 0, 0.0))
        rows = correct.nonzero()[:, 0]
        advs = {name: x.clone() for name in ("plain", "scaled", "control")}
        costs = dict.fromkeys(advs, _Cost(0, 0, 0.0))
        if len(rows):
            plain, costs["plain"] = self._run(self.base, x[rows], y[rows], self.settings, self.seed)
            made, costs["scaled"] = self._scaled(x[rows], y[rows])
            advs["plain"][rows], advs["scaled"][rows] = plain.adv, made
            left = (~plain.success).nonzero()[:, 0]
            adv, costs["control"] = plain.adv.clone(), costs["plain"]
            if len(left):
                budget = costs["scaled"].each(len(rows)) - LOOKS
                name, more = control_of(self.base, self.settings, self.threat, budget)
                again, cost = self._run(name, x[rows][left], y[rows][left], more, self.seed + 1)
                adv[left], costs["control"] = again.adv, costs["plain"] + cost
            advs["control"][rows] = adv
        for name, adv in advs.items():
            self._note(name, x, adv, y, costs[name])

    def finish(self) -> Comparison:
        own = None
        if self.own and len(self.scales):
            count, clean, under = (sum(column) for column in zip(*self.own, strict=True))
            own = (clean / count, under / count)
        return Comparison(**self.trials, scales=self.scales, own=own)

    def _run(
        self, name: str, x: torch.Tensor, y: torch.Tensor, settings: dict[str, Any], seed: int
    ) -> tuple[Outcome, _Cost]:
        start = time.monotonic()
        outcome = run(name, self.model, x, y, self.threat, batch=len(x), **{"seed": seed, **settings})
        return outcome, _Cost(outcome.forward, outcome.backward, time.monotonic() - start)

    def _scaled(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, _Cost]:
        """Images from the scaled model, the search for its scales in their cost."""
        start = time.monotonic()
        given: dict[str, Any] = {"base": self.base, **self.settings}
        found = _Cost(0, 0, 0.0)
        if self.way.name == "aas_uniform":
            made, cost = self._run("aas_uniform", x, y, {**given, **self.way.settings}, self.seed)
            return made.adv, cost
        values = self.way.scales
        if values is None:
            scales = find_scales(self.model, [(x, y)], seed=self.seed, **self.way.settings)
            values, found = scales.values, _Cost(scales.forward, scales.backward, time.monotonic() - start)
        made, cost = self._run("aas", x, y, {**given, "scales": list(values)}, self.seed)
        self.scales.append(tuple(values))
        with torch.no_grad():
            clean, under = (int((Scaled(self.model, values)(v).argmax(1) == y).sum()) for v in (x, made.adv))
        self.own.append((len(x), clean, under))
        return made.adv, found + cost

    def _note(self, name: str, x: torch.Tensor, adv: torch.Tensor, y: torch.Tensor, cost: _Cost) -> None:
        with torch.no_grad():
            predicted = self.model(adv).argmax(1)
        trial = self.trials[name]
        self.trials[name] = replace(
            trial,
            correct=trial.correct + (predicted == y).tolist(),
            predicted=trial.predicted + predicted.tolist(),
            distance=trial.distance + self.threat.size(adv - x).tolist(),
            forward=trial.forward + cost.forward,
            backward=trial.backward + cost.backward,
            seconds=trial.seconds + cost.seconds,
        )


@dataclass(frozen=True)
class _Cost:
    """Passes summed over images, and seconds."""

    forward: int
    backward: int
    seconds: float

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(
            self.forward + other.forward, self.backward + other.backward, self.seconds + other.seconds
        )

    def each(self, count: int) -> float:
        return (self.forward + self.backward) / count


def control_of(
    base: str, settings: dict[str, Any], threat: Threat, passes: float
) -> tuple[str, dict[str, Any]]:
    """The plain attack with at least so many passes an image: more starts, and more steps for the rest.

    A step takes a pass forward and one back. One-step attacks start from random points, as pgd does.
    """
    if base == "fgsm":
        kept = {k: v for k, v in settings.items() if k == "loss"}
        return "pgd", {"steps": 1, "step_size": threat.eps, "restarts": math.ceil(passes / 3), **kept}
    known = ATTACKS.info(base).defaults
    if not {"steps", "restarts"} <= set(known):
        fit = ", ".join(e.name for e in ATTACKS if {"steps", "restarts"} <= set(e.info.defaults))
        raise InputError(f"a control needs an attack with steps and restarts, got {base}; these have: {fit}")
    steps = int(settings.get("steps", known["steps"]))
    restarts = max(1, int(passes / (2 * steps + 1)))
    return base, {**settings, "restarts": restarts, "steps": math.ceil((passes / restarts - 1) / 2)}


def universal_scales(
    model: nn.Module, images: ImageDataset, *, batch: int = 32, **settings: Any
) -> tuple[float, ...]:
    """One set of scales for all images, found on others than those that are judged."""
    return find_scales(model, _pairs(images, batch), **settings).values


def _pairs(images: ImageDataset, batch: int) -> Iterable[tuple[torch.Tensor, torch.Tensor | None]]:
    for x, y in images.batches(batch):
        yield x, y if images.kind == "labels" else None
