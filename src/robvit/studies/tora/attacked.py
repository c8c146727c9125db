"""What a model withstands within a budget: PGD, AutoAttack and, if it has gates, the gate-aware attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from robvit.attacks.pixels import levels
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.tora.attack import gate_aware
from robvit.defenses.tora.modules import Adapters
from robvit.evaluation.attack_shards import LISTS, SUMS, AttackJob
from robvit.evaluation.shards import finished, pixels_sha256, shard_path, write_shard
from robvit.evaluation.trials import joined, spread, trial_of
from robvit.processes import processes
from robvit.progress import progress
from robvit.record import Trial
from robvit.studies.judging import BATCH, Attempt, judge, with_interval
from robvit.studies.tora.common import AdapterBench
from robvit.threat import Threat

GATE_AWARE, GOALS = "gate-aware", "success by"
KEPT = (*LISTS, *SUMS, "warnings")  # of a trial, in its shards


@dataclass(frozen=True)
class Attacked:
    """One budget's attacks on a model: PGD on all images, `strong` ones on the first of them."""

    threat: Threat
    pgd: Trial
    strong: list[Trial]

    @property
    def trials(self) -> list[Trial]:
        """All of them as trials on all images, as a record holds them."""
        return [self.pgd, *(spread(t, list(range(len(t.correct))), self.pgd) for t in self.strong)]

    @property
    def standing(self) -> list[bool]:
        """Which of the images that all attacks saw withstood all of them."""
        seen = [self.pgd.correct[: len(self.strong[0].correct)], *(t.correct for t in self.strong)]
        return [all(each) for each in zip(*seen, strict=True)]

    def cells(self) -> list[str | None]:
        """The accuracy that PGD, AutoAttack and the gate-aware attack leave, and all of them together."""
        by_name = {trial.attack: with_interval(trial.correct) for trial in (self.pgd, *self.strong)}
        attacks = [by_name.get(name) for name in ("pgd", "autoattack", GATE_AWARE)]
        return [*attacks, with_interval(self.standing)]


def fuses(model: Model) -> bool:
    """Whether the model has gates that can be attacked."""
    return isinstance(model.adapters, Adapters) and len(model.adapters.fusions) > 0


def attack_within(
    at: AdapterBench, model: Model, scenario: str, pgds: Sequence[Attempt], strong: Attempt, few: ImageDataset
) -> list[Attacked]:
    """PGD within each budget, then AutoAttack, as long as `strong` is, and the gate-aware attack on `few`."""
    found = []
    for pgd, trial in zip(pgds, at.judge(model, scenario, pgds), strict=True):
        assert pgd.threat is not None
        attempt = replace(strong, threat=pgd.threat)
        trials = judge(at.context, model, few, [attempt], scenario=scenario)
        if fuses(model):
            steps = int(strong.settings["steps"])
            trials.append(gate_aware_trial(at, model, few, scenario, pgd.threat, steps))
        found.append(Attacked(pgd.threat, trial, trials))
    return found


def headline(found: Sequence[Attacked]) -> list[list[bool]]:
    """What stands within each of the rising budgets: what fools within one lies within the next one too."""

    def both(before: list[bool], now: list[bool]) -> list[bool]:
        return [a and b for a, b in zip(before, now, strict=True)]

    return list(accumulate((one.standing for one in found), both))


def gate_aware_trial(
    at: AdapterBench, model: Model, images: ImageDataset, scenario: str, threat: Threat, steps: int
) -> Trial:
    """The gate-aware attack as a trial; its settings say which goal broke how many images.

    It is kept batch by batch, so that a study that was killed goes on with the next one.
    """
    settings = {"steps": steps, "goals": GATE_AWARE}
    job = AttackJob("apgd", threat, settings, model, model.identity(), images, batch=BATCH)
    folder = at.context.out / "shards" / job.key()[:16]
    parts = []
    with progress(f"{scenario}, gate-aware, {threat}", total=len(images)) as advance:
        for index, some in enumerate(job.batches()):
            path = shard_path(folder, index)
            parts.append(finished(path, some) or _attacked_batch(path, model, some, threat, steps))
            advance(len(some))
    goals = dict.fromkeys(name for part in parts for name in part[GOALS])
    successes = {name: sum(part[GOALS].get(name, 0) for part in parts) for name in goals}
    trials = [Trial(GATE_AWARE, threat.budget, {}, **{name: part[name] for name in KEPT}) for part in parts]
    return replace(joined(trials), scenario=scenario, settings={"steps": steps, GOALS: successes})


def _attacked_batch(
    path: Path, model: Model, images: ImageDataset, threat: Threat, steps: int
) -> dict[str, Any]:
    """Attack a batch and keep it; the facts of it."""
    x, y = (tensor.to(processes().device) for tensor in images.tensors())
    attack = gate_aware(model, x, y, threat, attack="apgd", steps=steps)
    trial = trial_of(attack.outcome, GATE_AWARE, threat)
    facts: dict[str, Any] = {name: getattr(trial, name) for name in KEPT}
    facts |= {"clean": pixels_sha256(x, y), GOALS: attack.success_by}
    write_shard(path, {"adv": levels(attack.outcome.adv).cpu()}, facts)
    return facts
