"""Does scaling attention make an attack stronger? Judged on the unscaled model, at equal cost, pair by pair.

The same images are seen by the plain attack; by the attack crafted on the scaled model, beside the plain
one; and by controls, which go on with what the plain attack leaves: the plain attack with the passes of both,
and the attack at other scales, such as random ones. What the scaled model itself says of any image is a
diagnostic and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit.attacks import ATTACKS, find_scales, judge
from robvit.attacks.scales import Batch, Scales
from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.evaluation.trials import clean_trial, clean_trial_of, joined, spread
from robvit.measuring.batches import BatchRunner
from robvit.progress import Advance, silent
from robvit.record import Trial
from robvit.threat import Threat
from robvit.verdict import Claim, claim_over_seeds

LOOKS = 2  # passes of every run besides the attack's: one look before, one after
# Images among which a search for scales is shared out at most: so comparisons on more have the same controls.
SHARED = 1000


@dataclass(frozen=True)
class ScalingMethod:
    """How scales come about: "aas" fits them unless given, "aas_uniform" tries factors.

    They are fitted on training images, over which they are carried, or with `fit="batch"` on every judged
    batch. `settings` are those of `find_scales`, or `factors` and `blocks` of the attack `aas_uniform`.
    """

    name: str = "aas"
    scales: Sequence[float] | None = None
    fit: str = "train"
    settings: dict[str, Any] = field(default_factory=dict)

    def found(self, model: nn.Module, batches: Iterable[Batch], seed: int) -> Scales:
        """The scales fitted on these batches."""
        return find_scales(model, batches, seed=seed, **self.settings)


@dataclass(frozen=True)
class Comparison:
    """Trials on the same images, what the scaled model says of its own, and the scales.

    `own` holds the scaled model's accuracy on untouched images and on those crafted on it, where one
    set of scales was used for a batch. `searches` are those that found the scales: one where they were fitted
    on training images, one a batch otherwise. `others` are controls at other scales, by name, a trial for
    each draw; they and `control` include what the plain attack breaks.
    """

    clean: Trial
    plain: Trial
    scaled: Trial
    control: Trial
    scales: list[tuple[float, ...]]
    own: tuple[float, float] | None
    searches: list[Scales] = field(default_factory=list)
    others: dict[str, list[Trial]] = field(default_factory=dict)

    @property
    def trials(self) -> list[Trial]:
        others = [trial for draws in self.others.values() for trial in draws]
        return [self.clean, self.plain, self.scaled, self.control, *others]

    @property
    def both(self) -> list[bool]:
        """Which images stay correct under the plain and the scaled attack."""
        return [a and b for a, b in zip(self.plain.correct, self.scaled.correct, strict=True)]

    def claim(
        self,
        text: str = "scaled attention breaks more than a control of the same cost",
        paper: float | None = None,
        *,
        over: str = "",
    ) -> Claim:
        """The paper's effect, tested: plain and scaled together break more than the control, image by image.

        `paper` is the gain in points that was published; `over` names another control than the plain attack
        at equal cost, one of `others`; the interval is over its draws too.
        """
        controls = self.others[over] if over else [self.control]
        broken = [[not correct for correct in trial.correct] for trial in controls]
        ours = [[not correct for correct in self.both]] * len(broken)
        return claim_over_seeds(text, ours, broken, paper)


def compare_scaling(
    model: nn.Module,
    images: ImageDataset,
    threat: Threat,
    *,
    base: str = "pgd",
    settings: dict[str, Any] | None = None,
    method: ScalingMethod | None = None,
    train: ImageDataset | None = None,
    others: Mapping[str, Sequence[Sequence[float]]] | None = None,
    batch: int = 64,
    seed: int = 0,
    memory: Path | None = None,
    progress: Advance = silent,
) -> Comparison:
    """The plain attack, the scaled one and the controls on all images.

    Args:
        model: the unscaled model, which judges.
        images: a dataset with labels.
        threat: the budget of all attacks.
        base: the attack that is scaled; it needs steps and restarts, or is fgsm.
        settings: those of the base attack.
        method: how scales come about; fitted on the training images if left out.
        train: images on which scales are fitted, in batches over which they are carried.
        others: scales of more controls, by name, such as random ones, a set for each draw.
        batch: images attacked at once.
        seed: decides every random draw.
        memory: a folder for what became of every batch, which other comparisons and a second run share.
        progress: is told how many images are done.
    """
    method = method or ScalingMethod()
    search = None
    if method.name == "aas" and method.scales is None and method.fit == "train":
        if train is None:
            raise InputError(
                'scales are fitted on training images: give train=, or a method with fit="batch"'
            )
        search = method.found(model, train.batches(batch), seed)
        method = replace(method, scales=search.values)
    # What one search for all images cost is shared out among them: the control gets its passes too.
    share = (search.forward + search.backward) / min(len(images), SHARED) if search else 0.0
    runner = BatchRunner(model, threat, base, dict(settings or {}), seed, memory)
    arms = _Arms(runner, method, dict(others or {}), share)
    for x, y in images.batches(batch):
        arms.add(x, y)
        progress(len(x))
    found = arms.finish()
    if search is None:
        return found
    return replace(found, scaled=_with_search(found.scaled, search), searches=[search])


class _Arms:
    """The trials of all arms, batch by batch; attacks see the images that the model gets right."""

    def __init__(
        self,
        runner: BatchRunner,
        method: ScalingMethod,
        others: dict[str, Sequence[Sequence[float]]],
        share: float,
    ) -> None:
        self.runner, self.method, self.share = runner, method, share
        self.others = {name: _labelled(name, draws) for name, draws in others.items()}
        self.drawn = {label: one for draws in self.others.values() for label, one in draws.items()}
        base, settings = runner.base, runner.settings
        empty = Trial(base, runner.threat.budget, settings, [], [], [])
        scaled: dict[str, Any] = {
            "attack": method.name,
            "settings": {"base": base, **settings, **method.settings},
            "surrogate": "the model with its attention scaled",
        }
        self.parts = {
            "clean": [clean_trial([], [])],
            "plain": [empty],
            "scaled": [replace(empty, **scaled)],
            "control": [replace(empty, variant="same cost", control=True)],
        }
        for label in self.drawn:
            other = {**scaled, "settings": {"base": base, **settings}}
            self.parts[label] = [replace(empty, **other, variant=f"{label}, after plain", control=True)]
        self.searches: list[Scales] = []
        self.scales: list[tuple[float, ...]] = []
        self.own: list[tuple[int, int, int]] = []

    def add(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """One batch (B 3 H W) with its labels (B,)."""
        outcome = judge(self.runner.model, x, y)
        self.parts["clean"].append(clean_trial_of(outcome))
        correct = outcome.clean_correct
        if bool(correct.any()):
            self._attack(x[correct], y[correct])

    def _attack(self, x: torch.Tensor, y: torch.Tensor) -> None:
        runner = self.runner
        plain, scaled = runner.plain(x, y), self._scaled(x, y)
        arms = {name: plain for name in self.parts if name != "clean"} | {"scaled": scaled}
        if alive := [i for i, correct in enumerate(plain.correct) if correct]:
            left = x[alive], y[alive]
            passes = (scaled.forward + scaled.backward) / len(x) - LOOKS + self.share
            name, settings = control_of(runner.base, runner.settings, runner.threat, passes)
            after = {"control": runner.run(name, *left, settings, runner.seed + 1)}
            after |= {label: runner.at(*left, scales).trial for label, scales in self.drawn.items()}
            for name, trial in after.items():
                arms[name] = replace(spread(trial, alive, plain), **_costs(plain, trial))
        for name, trial in arms.items():
            self.parts[name].append(trial)

    def finish(self) -> Comparison:
        """All batches as one; images that the model gets wrong keep what it made of them."""
        clean = joined(self.parts["clean"])
        alive = [i for i, correct in enumerate(clean.correct) if correct]
        whole = {
            name: replace(spread(joined(parts), alive, clean), skipped=[])
            for name, parts in self.parts.items()
            if name != "clean"
        }
        own = None
        if self.own:
            count, correct, adv_correct = (sum(column) for column in zip(*self.own, strict=True))
            own = (correct / count, adv_correct / count)
        others = {name: [whole[label] for label in draws] for name, draws in self.others.items()}
        plain, scaled, control = (whole[name] for name in ("plain", "scaled", "control"))
        return Comparison(clean, plain, scaled, control, self.scales, own, self.searches, others)

    def _scaled(self, x: torch.Tensor, y: torch.Tensor) -> Trial:
        """The attack crafted on the scaled model, the search for its scales in the cost."""
        runner = self.runner
        if self.method.name == "aas_uniform":
            settings = {"base": runner.base, **runner.settings, **self.method.settings}
            return runner.run("aas_uniform", x, y, settings, runner.seed)
        search, values = None, self.method.scales
        if values is None:
            search = self.method.found(runner.model, [(x, y)], runner.seed)
            self.searches.append(search)
            values = search.values
        trial, own = runner.at(x, y, values)
        self.scales.append(tuple(values))
        self.own.append(own)
        return trial if search is None else _with_search(trial, search)


def _labelled(name: str, draws: Sequence[Sequence[float]]) -> dict[str, Sequence[float]]:
    """The scales of a control by the name of each draw, where there are several."""
    return {name if len(draws) == 1 else f"{name}, draw {n}": one for n, one in enumerate(draws, 1)}


def _with_search(trial: Trial, search: Scales) -> Trial:
    """A trial with what finding its scales cost."""
    return replace(trial, forward=trial.forward + search.forward, backward=trial.backward + search.backward)


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
