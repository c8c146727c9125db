"""What a model withstands within rising budgets: PGD on all images, stronger attacks on what it left.

What fools within one budget lies within the next one too, so nothing is broken twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from robvit.attacks.pixels import levels
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.tora.attack import OWN_GOALS, gate_aware
from robvit.defenses.tora.modules import Adapters
from robvit.evaluation.attack_shards import LISTS, SUMS, AttackJob
from robvit.evaluation.shards import finished, pixels_sha256, shard_path, write_shard
from robvit.evaluation.trials import joined, spread, trial_of
from robvit.locks import alone_in
from robvit.processes import processes
from robvit.progress import progress
from robvit.record import Table, Trial
from robvit.studies.judging import (
    BATCH,
    Attempt,
    judge,
    rounding_notes,
    shard_folder,
    with_interval,
    worst_of,
)
from robvit.studies.tora.common import WEAK, AdapterBench, title_of
from robvit.studies.tora.efforts import AttackEffort
from robvit.threat import Threat

GATE_AWARE, GOALS = "gate-aware", "success by"
KEPT = (*LISTS, *SUMS, "warnings")  # of a trial, in its shards


@dataclass(frozen=True)
class Attacked:
    """One budget's attacks on a model.

    `trials` are PGD's and those of stronger attacks, each on what stood before it. `left` is what stands of
    the images that all attacks see: after AutoAttack, and after the last attack.
    """

    threat: Threat
    trials: list[Trial]
    left: list[list[bool]]

    @property
    def standing(self) -> list[bool]:
        """Which of the images that all attacks see withstood all of them, within smaller budgets too."""
        return self.left[-1]

    def cells(self) -> list[str]:
        """The accuracy that PGD leaves of all images, and what is left after each of the others."""
        return [with_interval(correct) for correct in (self.trials[0].correct, *self.left)]


@dataclass(frozen=True)
class JudgedRow:
    """A model as the tables show it: attacks that stand for themselves, and all within each budget."""

    weak: list[Trial]
    within: list[Attacked]

    @property
    def trials(self) -> list[Trial]:
        return [*self.weak, *(trial for one in self.within for trial in one.trials)]

    @property
    def outcomes(self) -> list[list[bool]]:
        """What stands, image by image, in the order of `titles_of`."""
        return [*(trial.correct for trial in self.weak), *(one.standing for one in self.within)]


def titles_of(effort: AttackEffort, weak: Sequence[Attempt] = WEAK) -> list[str]:
    """What a row's outcomes are of."""
    return [*map(title_of, weak), *(f"worst {threat}" for threat in effort.threats)]


def judge_row(
    at: AdapterBench,
    model: nn.Module,
    scenario: str,
    effort: AttackEffort,
    *,
    weak: Sequence[Attempt] = WEAK,
    identity: str = "",
) -> JudgedRow:
    """A model under attacks that stand for themselves, and the worst of all within each budget."""
    found = at.judge(model, scenario, weak, identity)
    return JudgedRow(found, attack_within(at, model, scenario, effort, identity))


def attacks_table(judged: Mapping[str, JudgedRow], effort: AttackEffort) -> Table:
    """What each attack leaves of the rows."""
    rows = [[name, str(one.threat), *one.cells()] for name, row in judged.items() for one in row.within]
    first = next(iter(judged.values())).within[0]
    columns = ["", "within", effort.attempts[0].title, f"then {effort.long.title}", "then the last"]
    note = (
        f"Per cent with 95 % intervals; PGD on {len(first.trials[0].correct)} images, the others on what "
        f"stands of {len(first.standing)}, within smaller budgets too. The last attack is the gate-aware "
        f"one, or where there are no gates {_as_long(effort, None).title}, of as many passes."
    )
    note = " ".join([note, *rounding_notes(*effort.threats)])
    return Table("Attacks by budget", columns, rows, note)


def fuses(model: nn.Module) -> bool:
    """Whether the model has gates that can be attacked."""
    adapters = model.adapters if isinstance(model, Model) else None
    return isinstance(adapters, Adapters) and len(adapters.fusions) > 0


def attack_within(
    at: AdapterBench, model: nn.Module, scenario: str, effort: AttackEffort, identity: str = ""
) -> list[Attacked]:
    """PGD within each budget; then AutoAttack and a last attack on what stands of the first images."""
    few = range(len(at.first(effort.strong)))
    found = list[Attacked]()
    worst: Trial | None = None
    for pgd in effort.attempts:
        assert pgd.threat is not None
        (trial,) = at.judge(model, scenario, [pgd], identity)
        worst = trial if worst is None else worst_of(trial, worst)
        trials, left = [trial], list[list[bool]]()
        for attempt, attack in _strong(at, model, scenario, effort, pgd.threat, identity):
            alive = [place for place in few if worst.correct[place]]
            part = attack(at.judged.take(alive)) if alive else _nothing(attempt, scenario)
            worst = spread(part, alive, worst)
            trials.append(worst)
            left.append([worst.correct[place] for place in few])
        found.append(Attacked(pgd.threat, trials, left))
    return found


def _nothing(attempt: Attempt, scenario: str) -> Trial:
    """A trial of an attack that no image was left for: every seed's record has the same ones."""
    assert attempt.threat is not None
    settings = dict(attempt.settings)
    return Trial(attempt.attack, attempt.threat.budget, settings, [], [], [], scenario=scenario)


def _strong(
    at: AdapterBench, model: nn.Module, scenario: str, effort: AttackEffort, threat: Threat, identity: str
) -> list[tuple[Attempt, Callable[[ImageDataset], Trial]]]:
    """AutoAttack, then one who knows of the gates or, where there are none, tries as often."""

    def run(attempt: Attempt, images: ImageDataset) -> Trial:
        return judge(at.context, model, images, [attempt], scenario=scenario, identity=identity)[0]

    long, last = replace(effort.long, threat=threat), _as_long(effort, threat)
    if not fuses(model):
        return [(long, partial(run, long)), (last, partial(run, last))]
    assert isinstance(model, Model)
    gates = Attempt(GATE_AWARE, threat, {"steps": effort.steps})
    aware = partial(gate_aware_trial, at, model, scenario=scenario, threat=threat, steps=effort.steps)
    return [(long, partial(run, long)), (gates, aware)]


def _as_long(effort: AttackEffort, threat: Threat | None) -> Attempt:
    """APGD with a restart, from other points than AutoAttack's, for each goal of the gate-aware attack."""
    return Attempt("apgd", threat, {"steps": effort.steps, "restarts": OWN_GOALS, "seed": 1})


def gate_aware_trial(
    at: AdapterBench, model: Model, images: ImageDataset, scenario: str, threat: Threat, steps: int
) -> Trial:
    """The gate-aware attack where AutoAttack of as many steps has failed; which goal broke how many images.

    AutoAttack's APGD-CE is the attack on the joint output, which is left out here. It is kept batch by
    batch, so that a study that was killed goes on with the next one.
    """
    settings = {"steps": steps, "goals": GATE_AWARE, "joint": False}
    job = AttackJob("apgd", threat, settings, model, model.identity(), images, batch=BATCH)
    folder, label = shard_folder(at.context, job), f"{scenario}, gate-aware, {threat}"
    parts = []
    with alone_in(folder, wait=True), progress(label, total=len(images)) as advance:
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
    attack = gate_aware(model, x, y, threat, attack="apgd", joint=False, steps=steps)
    trial = trial_of(attack.outcome, GATE_AWARE, threat)
    facts: dict[str, Any] = {name: getattr(trial, name) for name in KEPT}
    facts |= {"clean": pixels_sha256(x, y), GOALS: attack.success_by}
    write_shard(path, {"adv": levels(attack.outcome.adv).cpu()}, facts)
    return facts
