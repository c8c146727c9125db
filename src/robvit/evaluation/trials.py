"""From an attack's outcome to the trial in a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from robvit.attacks import Outcome
from robvit.record import Trial
from robvit.threat import Threat


def trial_of(
    outcome: Outcome, attack: str, threat: Threat, settings: dict[str, Any] | None = None, **fields: Any
) -> Trial:
    """An attack's outcome as a trial; `fields` are others of the trial's, such as the scenario."""
    return Trial(
        attack,
        threat.budget,
        settings or {},
        correct=outcome.correct.tolist(),
        predicted=outcome.predicted.tolist(),
        distance=outcome.distance.tolist(),
        forward=outcome.forward,
        backward=outcome.backward,
        seconds=outcome.seconds,
        warnings=list(outcome.warnings),
        **fields,
    )


def clean_trial_of(outcome: Outcome, **fields: Any) -> Trial:
    """What the judged model made of the same images before the attack, as a trial of no attack."""
    return clean_trial(outcome.clean_correct.tolist(), outcome.clean_predicted.tolist(), **fields)


def clean_trial(correct: list[bool], predicted: list[int], **fields: Any) -> Trial:
    """Predictions on untouched images as a trial of no attack."""
    count = len(correct)
    return Trial("clean", None, {}, correct, predicted, [0.0] * count, forward=count, **fields)


def joined(trials: Sequence[Trial]) -> Trial:
    """The trials of several batches under the same attack as one; other fields are the first one's."""
    lists: dict[str, Any] = {
        name: [value for trial in trials for value in getattr(trial, name)]
        for name in ("correct", "predicted", "distance")
    }
    sums: dict[str, Any] = {
        name: sum(getattr(t, name) for t in trials) for name in ("forward", "backward", "seconds")
    }
    names = sorted({name for trial in trials for name in trial.warnings})
    return replace(trials[0], **lists, **sums, warnings=names)


def spread(part: Trial, alive: list[int], before: Trial) -> Trial:
    """A trial on some images as one on all: the rest keep what became of them before.

    Those of the rest that were wrong are skipped, those that were correct unseen.
    """
    lists: dict[str, Any] = {}
    for name in ("correct", "predicted", "distance"):
        whole = list(getattr(before, name))
        for place, value in zip(alive, getattr(part, name), strict=True):
            whole[place] = value
        lists[name] = whole
    seen = set(alive)
    rest = [i for i in range(len(before.correct)) if i not in seen]
    return replace(
        part,
        **lists,
        skipped=[i for i in rest if not before.correct[i]],
        unseen=[i for i in rest if before.correct[i]],
    )


def as_asked(trial: Trial, asked: Mapping[str, Any], ready: Mapping[str, Any]) -> Trial:
    """A trial without what its attack learned of this model, by settings before and after that.

    It is among a record's metrics; models are compared by what was asked.
    """
    kept = {k: v for k, v in trial.settings.items() if k in asked or k not in ready}
    return replace(trial, settings=kept)
