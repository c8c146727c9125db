"""Does scaling attention make an attack stronger? Judged on the unscaled model, at equal cost, pair by pair.

Three arms see the same images: the plain attack; the attack crafted on the scaled model, beside the
plain one; and a control, the plain attack with the passes of both. What the scaled model itself says of
any image is a diagnostic and decides nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from robvit.attacks import ATTACKS, Outcome, find_scales, run
from robvit.attacks.scales import Scaled
from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.evaluation.trials import clean_trial, joined, spread, trial_of
from robvit.progress import Advance, silent
from robvit.record import Trial
from robvit.threat import Threat
from robvit.verdict import Claim, claim_of

LOOKS = 2  # passes of every run besides the attack's: one look before, one after


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

    def claim(
        self,
        text: str = "scaled attention breaks more than a control of the same cost",
        paper: float | None = None,
    ) -> Claim:
        """The paper's effect, tested: plain and scaled together break more than the control, image by image.

        `paper` is the gain in points that was published.
        """
        arms = (self.both, self.control.correct)
        ours, control = ([not correct for correct in arm] for arm in arms)
        return claim_of(text, ours, control, paper)


def compare_scaling(
    model: nn.Module,
    images: ImageDataset,
    threat: Threat,
    *,
    base: str = "pgd",
    settings: dict[str, Any] | None = None,
    method: ScalingMethod | None = None,
    batch: int = 64,
    seed: int = 0,
    progress: Advance = silent,
) -> Comparison:
    """The plain attack, the scaled one and the control on all images.

    Args:
        model: the unscaled model, which judges.
        images: a data set with labels.
        threat: the budget of all attacks.
        base: the attack that is scaled; it needs steps and restarts, or is fgsm.
        settings: those of the base attack.
        method: how scales come about; found on every batch if left out.
        batch: images attacked at once, for which scales are found together.
        seed: decides every random draw.
        progress: is told how many images are done.
    """
    arms = _Arms(model, threat, base, dict(settings or {}), method or ScalingMethod(), seed)
    for x, y in images.batches(batch):
        arms.add(x, y)
        progress(len(x))
    return arms.finish()


class _Arms:
    """The trials of all arms, batch by batch; attacks see the images that the model gets right."""

    def __init__(
        self,
        model: nn.Module,
        threat: Threat,
        base: str,
        settings: dict[str, Any],
        method: ScalingMethod,
        seed: int,
    ) -> None:
        self.model, self.threat, self.base, self.settings = model, threat, base, settings
        self.method, self.seed = method, seed
        empty = Trial(base, threat.budget, settings, [], [], [])
        scaled: dict[str, Any] = {
            "attack": f"{base}+{method.name}",
            "settings": {**settings, **method.settings},
            "surrogate": "the model with its attention scaled",
        }
        self.parts = {
            "clean": [clean_trial([], [])],
            "plain": [empty],
            "scaled": [replace(empty, **scaled)],
            "control": [replace(empty, attack=f"{base}, same cost", control=True)],
        }
        self.scales: list[tuple[float, ...]] = []
        self.own: list[tuple[int, int, int]] = []  # of a batch: images, and the scaled model's correct ones

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """One batch (B 3 H W) with its labels (B,)."""
        with torch.no_grad():
            pred = self.model(x).argmax(1)
        correct = pred == y
        self.parts["clean"].append(clean_trial(correct.tolist(), pred.tolist()))
        if bool(correct.any()):
            self._attack(x[correct], y[correct])

    def _attack(self, x: torch.Tensor, y: torch.Tensor) -> None:
        plain, scaled = self._run(self.base, x, y, self.settings, self.seed), self._scaled(x, y)
        control, alive = plain, [i for i, correct in enumerate(plain.correct) if correct]
        if alive:
            passes = (scaled.forward + scaled.backward) / len(x) - LOOKS
            name, settings = control_of(self.base, self.settings, self.threat, passes)
            again = self._run(name, x[alive], y[alive], settings, self.seed + 1)
            control = replace(spread(again, alive, plain), **_costs(plain, again))
        for name, trial in (("plain", plain), ("scaled", scaled), ("control", control)):
            self.parts[name].append(trial)

    def finish(self) -> Comparison:
        """All batches as one; images that the model gets wrong keep what it made of them."""
        clean = joined(self.parts["clean"])
        alive = [i for i, correct in enumerate(clean.correct) if correct]
        arms = {
            name: replace(spread(joined(self.parts[name]), alive, clean), skipped=[])
            for name in ("plain", "scaled", "control")
        }
        own = None
        if self.own:
            count, right, under = (sum(column) for column in zip(*self.own, strict=True))
            own = (right / count, under / count)
        return Comparison(clean, **arms, scales=self.scales, own=own)

    def _run(self, name: str, x: torch.Tensor, y: torch.Tensor, settings: dict[str, Any], seed: int) -> Trial:
        return self._trial(self._outcome(name, x, y, settings, seed))

    def _outcome(
        self, name: str, x: torch.Tensor, y: torch.Tensor, settings: dict[str, Any], seed: int
    ) -> Outcome:
        return run(name, self.model, x, y, self.threat, batch=len(x), **{"seed": seed, **settings})

    def _trial(self, outcome: Outcome) -> Trial:
        return trial_of(outcome, self.base, self.threat, self.settings)

    def _scaled(self, x: torch.Tensor, y: torch.Tensor) -> Trial:
        """The attack crafted on the scaled model, the search for its scales in the cost."""
        settings: dict[str, Any] = {"base": self.base, **self.settings}
        if self.method.name == "aas_uniform":
            return self._run("aas_uniform", x, y, {**settings, **self.method.settings}, self.seed)
        start = time.monotonic()
        search, values = None, self.method.scales
        if values is None:
            search = find_scales(self.model, [(x, y)], seed=self.seed, **self.method.settings)
            values = search.values
        seconds = time.monotonic() - start
        outcome = self._outcome("aas", x, y, {**settings, "scales": list(values)}, self.seed)
        self.scales.append(tuple(values))
        with torch.no_grad():
            preds = [Scaled(self.model, values)(images).argmax(1) for images in (x, outcome.adv)]
        clean, under = (int((pred == y).sum()) for pred in preds)
        self.own.append((len(x), clean, under))
        trial = self._trial(outcome)
        if search is None:
            return trial
        return replace(
            trial,
            forward=trial.forward + search.forward,
            backward=trial.backward + search.backward,
            seconds=trial.seconds + seconds,
        )


def _costs(first: Trial, second: Trial) -> dict[str, Any]:
    """What two trials cost together."""
    return {name: getattr(first, name) + getattr(second, name) for name in ("forward", "backward", "seconds")}


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
