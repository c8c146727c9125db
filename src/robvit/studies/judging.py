"""How studies judge: a list of attacks in, a trial for each out, kept in shards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from robvit.attacks import ATTACKS
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.attack_shards import AttackJob, Shards, run_job
from robvit.locks import alone_in
from robvit.progress import progress
from robvit.record import Trial
from robvit.statistics import over_seeds, share_of
from robvit.studies.common import StudyContext
from robvit.threat import Threat

BATCH = 50
# How papers write the names of attacks; others are written in capitals.
TITLES = {
    "autoattack": "AutoAttack",
    "apgd_ce": "APGD-CE",
    "pgd_margin": "CW",
    "pgd_dlr": "DLR",
    "clean": "clean",
    "gate-aware": "gate-aware",
}
COUNTS = ("steps", "restarts", "targets", "queries")  # settings that say how long an attack is


@dataclass(frozen=True)
class Attempt:
    """One attack on a model; "clean" leaves the images as they are and has no threat."""

    attack: str
    threat: Threat | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What was run, by its real length: PGD-20, or AutoAttack (20 steps, 3 targets, 100 queries)."""
        return attack_title(self.attack, self.settings)


CLEAN = Attempt("clean")


def attack_title(attack: str, settings: Mapping[str, Any]) -> str:
    """An attack as papers name it; what makes it shorter or longer than its own defaults is in the name."""
    name = TITLES.get(attack, attack.upper().replace("_", "-"))
    if attack == "clean":
        return name
    defaults = ATTACKS.info(attack).defaults if attack in ATTACKS else {}  # a study's own has none
    counts = {key: settings[key] for key in COUNTS if key in settings}
    if attack != "autoattack" and "steps" in counts:
        name = f"{name}-{counts.pop('steps')}"
    unusual = ["audited"] if settings.get("version") == "audited" else []
    unusual += [f"{value} {key}" for key, value in counts.items() if value != defaults.get(key)]
    return f"{name} ({', '.join(unusual)})" if unusual else name


def rounding_notes(*threats: Threat | None) -> list[str]:
    """Which budgets were really judged by `judge`, where whole grey levels do not fill those asked for."""
    notes = []
    for threat in threats:
        if threat is not None and threat.norm == "linf" and math.isfinite(threat.eps):
            whole = math.floor(255 * threat.eps + 1e-6)
            if 255 * threat.eps - whole > 1e-6:
                real = replace(threat, eps=whole / 255)
                notes.append(
                    f"Images are whole grey levels, so within {threat} it is {real} that was judged."
                )
    return notes


def judge(
    context: StudyContext,
    model: nn.Module,
    images: ImageDataset,
    attempts: Sequence[Attempt],
    *,
    scenario: str,
    identity: str = "",
    batch: int = BATCH,
) -> list[Trial]:
    """A trial for each attempt of an attacker who knows the model.

    `identity` names what decides the model's outputs, where it is no `Model`. An audit draws its sample from
    all images, so they come in one batch then.
    """
    trials = []
    for attempt in attempts:
        whole = attempt.settings.get("version") == "audited"
        job = _job(attempt, model, identity, images, len(images) if whole else batch)
        label = ", ".join(str(part) for part in (scenario, attempt.attack, attempt.threat) if part)
        trials.append(replace(_trial(context, _run(context, job, label)), scenario=scenario))
    return trials


def judge_transfer(
    context: StudyContext,
    surrogate: nn.Module,
    judged: Mapping[str, Model],
    images: ImageDataset,
    attempt: Attempt,
    *,
    label: str,
    identity: str = "",
    batch: int = BATCH,
) -> list[Trial]:
    """A clean and an attacked trial of each model under `transferred` images.

    Every attacked trial costs what making the images did.
    """
    made, shown = transferred(
        context, surrogate, judged, images, attempt, label=label, identity=identity, batch=batch
    )
    of_all = _trial(context, made)
    cost = {name: getattr(of_all, name) for name in ("forward", "backward", "seconds", "warnings")}
    trials = []
    for scenario, model in judged.items():
        trials += judge(context, model, images, [CLEAN], scenario=scenario, batch=batch)
        trials.append(replace(_trial(context, shown[scenario]), **cost, scenario=scenario))
    return trials


def transferred(
    context: StudyContext,
    surrogate: nn.Module,
    judged: Mapping[str, Model],
    images: ImageDataset,
    attempt: Attempt,
    *,
    label: str,
    identity: str = "",
    batch: int = BATCH,
) -> tuple[Shards, dict[str, Shards]]:
    """Attack a surrogate once, to the full objective; the images, and what each model makes of them.

    `judged` maps scenarios to models; a single one is not shown what it gets wrong from the start. `identity`
    names what decides the surrogate's outputs, where it is no `Model`.
    """
    victim: nn.Module = next(iter(judged.values()))  # naming one makes the attack run to its full objective
    if len(judged) > 1 and "judge" in ATTACKS.info(attempt.attack).defaults:
        victim = surrogate  # what an attack takes to judge in between may not favour one of them
    job = replace(_job(attempt, surrogate, identity, images, batch), victim=victim)
    if len(judged) == 1:  # whose own answers then decide which images are attacked
        (only,) = judged.values()
        job = replace(job, leave_wrong=True, identity=f"{job.identity}+{only.identity()}")
    made, shown = _run(context, job, label), dict[str, Shards]()
    for scenario, model in judged.items():
        other = replace(job, model=model, victim=None, identity=model.identity(), source=made.folder)
        shown[scenario] = _run(context, other, f"{label}, {scenario}")
    return made, shown


def worst_of(first: Trial, second: Trial) -> Trial:
    """The first trial, with what the second found for images that only the second breaks."""
    lists: dict[str, Any] = {
        name: [
            b if ok and not other else a
            for a, b, ok, other in zip(
                getattr(first, name), getattr(second, name), first.correct, second.correct, strict=True
            )
        ]
        for name in ("correct", "predicted", "distance")
    }
    return replace(first, **lists)


def per_cent(trial: Trial) -> float:
    """The accuracy that is left, in per cent."""
    return percentage(trial.correct)


def percentage(correct: Sequence[bool]) -> float:
    """How many of the outcomes are true, in per cent."""
    return 100 * sum(correct) / len(correct)


def with_interval(correct: Sequence[bool]) -> str:
    """A share in per cent with its 95 % interval, as a cell of a table."""
    return over_seeds_cell([correct])


def over_seeds_cell(correct: Sequence[Sequence[bool]]) -> str:
    """As `with_interval` for trainings with several seeds, a row a seed: the mean, over seeds and images."""
    mean, low, high = share_over_seeds(correct)
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def share_over_seeds(correct: Sequence[Sequence[bool]]) -> tuple[float, float, float]:
    """A share in per cent with its 95 % interval, over images, and over seeds where there are several."""
    if len(correct) == 1:
        share, low, high = (100 * value for value in share_of(correct[0]))
        return share, low, high
    mean, low, high, _ = over_seeds([[100.0 * right for right in row] for row in correct])
    return mean, max(0.0, low), min(100.0, high)


def point(at: float, *correct: Sequence[bool]) -> list[float]:
    """A point of a curve: a share in per cent over an axis, with its 95 % interval; a row a seed."""
    return [at, *share_over_seeds(correct)]


def _job(attempt: Attempt, model: nn.Module, identity: str, images: ImageDataset, batch: int) -> AttackJob:
    if not identity:
        assert isinstance(model, Model)
        identity = model.identity()
    return AttackJob(
        attempt.attack, attempt.threat, dict(attempt.settings), model, identity, images, batch=batch
    )


def shard_folder(context: StudyContext, job: AttackJob) -> Path:
    """Where a job is kept: named by all that decides it, so that studies share it and never mix."""
    return (context.attacks or context.out / "shards") / job.key()[:16]


def _run(context: StudyContext, job: AttackJob, label: str) -> Shards:
    """Of two studies that ask for the same job at once, one waits for the other."""
    folder = shard_folder(context, job)
    with alone_in(folder, wait=True), progress(label, total=len(job.images)) as advance:
        return run_job(job, folder, advance)


def _trial(context: StudyContext, shards: Shards) -> Trial:
    return shards.trial(None if context.attacks else context.out)  # shared images do not stay with a record
