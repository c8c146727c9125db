"""A record in the terms of its page: who withstood what, attack after attack, class by class.

Nothing here is a new measurement; every figure is counted from the record's outcomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from robvit.record import Record, Trial
from robvit.statistics import interval

OUTCOMES = {
    "withstood": "withstood every attack",
    "misclassified": "misclassified by an attack",
    "wrong": "wrong before any attack",
}


class Share(NamedTuple):
    """So many images of all, with the 95 % interval of their share."""

    hits: int
    total: int
    share: float
    low: float
    high: float


def share(correct: Sequence[bool]) -> Share:
    hits, total = sum(correct), len(correct)
    return Share(hits, total, hits / total if total else 0.0, *interval(hits, total))


@dataclass(frozen=True)
class Stage:
    """One attack in its turn: who of those it saw withstand it, and who is left after all up to it."""

    name: str
    withstood: Share
    left: int
    lost: int


@dataclass(frozen=True)
class AttackerSummary:
    """One scenario of the ladder: a model and what its attacker knows, within one threat."""

    scenario: str
    threat: str
    clean: Share | None
    worst: Share
    stages: list[Stage]
    survives: list[bool]
    trials: list[Trial]
    control: bool
    headline: bool = False


@dataclass(frozen=True)
class ClassRow:
    """One class: how many images, right when clean, right in the worst case, and what is seen instead."""

    name: str
    count: int
    clean: Share | None
    worst: Share
    mistaken: str


def clean_of(record: Record, scenario: str) -> Trial | None:
    """The scenario's trial of no attack, if there is one."""
    return next((t for t in record.trials if t.scenario == scenario and t.attack == "clean"), None)


def trial_name(trial: Trial, among: Sequence[Trial]) -> str:
    """The attack's name, with what tells it from its namesakes."""
    name = f"{trial.attack} on {trial.surrogate}" if trial.surrogate else trial.attack
    same = [t.settings for t in among if (t.attack, t.surrogate) == (trial.attack, trial.surrogate)]
    apart = [k for k in trial.settings if any(other.get(k) != trial.settings[k] for other in same)]
    told = ", ".join(f"{k}={trial.settings[k]}" for k in apart)
    return f"{name} ({told})" if told else name


def ladder(record: Record) -> list[AttackerSummary]:
    """A summary of every scenario and threat; within a threat the worst scenario carries the headline."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in record.trials:
        if trial.attack != "clean":
            groups.setdefault((trial.scenario, trial.strength), []).append(trial)
    found = [_standing(record, scenario, threat, trials) for (scenario, threat), trials in groups.items()]
    rivals: dict[str, list[AttackerSummary]] = {}
    for standing in found:
        if not standing.control:
            rivals.setdefault(standing.threat, []).append(standing)
    worst = [min(some, key=lambda s: s.worst.share) for some in rivals.values()]
    return [replace(s, headline=any(s is w for w in worst)) for s in found]


def _standing(record: Record, scenario: str, threat: str, trials: list[Trial]) -> AttackerSummary:
    clean = clean_of(record, scenario)
    alive = list(clean.correct) if clean else [True] * len(trials[0].correct)
    stages = []
    for trial in trials:
        before = sum(alive)
        alive = [a and r for a, r in zip(alive, trial.correct, strict=True)]
        seen = share(_seen(trial))
        stages.append(Stage(trial_name(trial, trials), seen, sum(alive), before - sum(alive)))
    untouched = share(clean.correct) if clean else None
    control = all(trial.control for trial in trials)
    return AttackerSummary(scenario, threat, untouched, share(alive), stages, alive, trials, control)


def _seen(trial: Trial) -> list[bool]:
    """The outcomes of the images that the attack took up."""
    skipped = set(trial.skipped)
    return [correct for place, correct in enumerate(trial.correct) if place not in skipped]


@dataclass(frozen=True)
class Headline:
    """What one threat leaves when every attacker does their best, image by image, controls aside."""

    threat: str
    worst: Share
    clean: Share | None
    attackers: int
    attacks: int


def headlines(standings: list[AttackerSummary]) -> list[Headline]:
    """A headline for each threat, first the one that most attacks were spent on."""
    found = []
    for threat in dict.fromkeys(s.threat for s in standings if not s.control):
        some = [s for s in standings if s.threat == threat and not s.control]
        worst = share([all(survives) for survives in zip(*(s.survives for s in some), strict=True)])
        attacks = sum(len(s.trials) for s in some)
        found.append(Headline(threat, worst, some[0].clean, len(some), attacks))
    return sorted(found, key=lambda h: -h.attacks)


def outcome(standing: AttackerSummary, clean: Trial | None, place: int) -> str:
    """What became of one image on a scenario: a key of OUTCOMES."""
    if clean and not clean.correct[place]:
        return "wrong"
    return "withstood" if standing.survives[place] else "misclassified"


class Labels:
    """Names of images and classes as text, whatever the record holds or lacks."""

    def __init__(self, record: Record) -> None:
        count = max([len(t.correct) for t in record.trials] + [0])
        self.images = _listed(record.data.get("names"), count) or [f"image {i}" for i in range(count)]
        labels = _listed(record.data.get("labels"), count)
        self.labels = labels if all(isinstance(label, int) for label in labels) else []
        named = record.data.get("classes")
        self.classes = [str(name) for name in named] if isinstance(named, list) else []

    def class_name(self, label: Any) -> str:
        known = isinstance(label, int) and 0 <= label < len(self.classes)
        return self.classes[label] if known else f"class {label}"

    def truth(self, place: int) -> str:
        return self.class_name(self.labels[place]) if self.labels else ""


def _listed(value: Any, count: int) -> list[Any]:
    return value if isinstance(value, list) and len(value) == count else []


def class_rows(record: Record, standing: AttackerSummary, labels: Labels) -> list[ClassRow]:
    """A row for each class on one scenario, the weakest first; none where most classes have one image."""
    places: dict[Any, list[int]] = {}
    for place, label in enumerate(labels.labels):
        places.setdefault(label, []).append(place)
    if len(places) < 2 or len(labels.labels) < 2 * len(places):
        return []
    clean = clean_of(record, standing.scenario)
    rows = []
    for label, members in places.items():
        in_turn = [*([clean] if clean else []), *standing.trials]
        first = ([t.predicted[i] for t in in_turn if not t.correct[i]] for i in members)
        seen = Counter(answers[0] for answers in first if answers)
        mistaken = labels.class_name(seen.most_common(1)[0][0]) if seen else ""
        untouched = share([clean.correct[i] for i in members]) if clean else None
        worst = share([standing.survives[i] for i in members])
        rows.append(ClassRow(labels.class_name(label), len(members), untouched, worst, mistaken))
    return sorted(rows, key=lambda row: row.worst.share)


def title(record: Record) -> str:
    """The judged model's name."""
    return str(record.model.get("name") or "a model")
