"""A record in the terms of its page: accuracy by attacker, attack after attack, class by class.

Nothing here is a new measurement; every number is counted from the record's outcomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from robvit.record import Record, Trial
from robvit.statistics import interval

OUTCOMES = {
    "correct": "correct under every attack",
    "misclassified": "misclassified under attack",
    "wrong": "misclassified without any attack",
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
    """One attack in its turn: accuracy on the images it saw, and how many are correct after all so far."""

    name: str
    accuracy: Share
    correct: int
    lost: int


@dataclass(frozen=True)
class AttackerSummary:
    """The attacks of one scenario within one threat: a model and what its attacker knows.

    `correct` says for each image whether the model is correct under all of them, `worst` counts these;
    `is_worst` marks the attacker who leaves the fewest, controls aside.
    """

    scenario: str
    threat: str
    clean: Share | None
    worst: Share
    stages: list[Stage]
    correct: list[bool]
    trials: list[Trial]
    control: bool
    is_worst: bool = False

    @property
    def certified(self) -> bool:
        """Whether the share is proven, and so a lower bound, where attacks give an upper one."""
        return all(trial.is_certificate for trial in self.trials)

    @property
    def label(self) -> str:
        """What the share is, for people."""
        if self.certified:
            return ", ".join(filter(None, ("certified accuracy", self.scenario)))
        return self.scenario or "accuracy under attack"

    @property
    def attacker(self) -> str:
        """Whose attacks these are, by the names that protocols use; empty if the record does not say."""
        return ", ".join(dict.fromkeys(trial.attacker for trial in self.trials if trial.attacker))


@dataclass(frozen=True)
class Headline:
    """Accuracy under all attackers within one threat, image by image, controls aside, and what it means."""

    threat: str
    worst: Share
    clean: Share | None
    attackers: list[AttackerSummary]
    claim: str

    @property
    def certified(self) -> bool:
        return all(summary.certified for summary in self.attackers)

    @property
    def attacks(self) -> int:
        return sum(len(summary.trials) for summary in self.attackers)


@dataclass(frozen=True)
class ClassRow:
    """One class: its images, accuracy without attack and in the worst case, and the likeliest mistake."""

    name: str
    count: int
    clean: Share | None
    worst: Share
    mistake: str


def trial_name(trial: Trial, among: Sequence[Trial]) -> str:
    """The attack's name, with what tells it from its namesakes."""
    same = [t.settings for t in among if (t.name, t.surrogate) == (trial.name, trial.surrogate)]
    different = [k for k in trial.settings if any(other.get(k) != trial.settings[k] for other in same)]
    settings = ", ".join(f"{k}={trial.settings[k]}" for k in different)
    return f"{trial.title} ({settings})" if settings else trial.title


def attacker_summaries(record: Record) -> list[AttackerSummary]:
    """A summary of every scenario and threat, in the record's order."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in record.trials:
        if trial.kind == "attack":
            groups.setdefault((trial.scenario, trial.strength), []).append(trial)
    summaries = [_summary(record, scenario, threat, trials) for (scenario, threat), trials in groups.items()]
    worst: dict[str, AttackerSummary] = {}
    for summary in summaries:
        if not summary.control:
            weakest = worst.setdefault(summary.threat, summary)
            worst[summary.threat] = min(weakest, summary, key=lambda s: s.worst.share)
    return [replace(s, is_worst=s is worst.get(s.threat)) for s in summaries]


def _summary(record: Record, scenario: str, threat: str, trials: list[Trial]) -> AttackerSummary:
    clean = record.clean(scenario)
    correct = list(clean.correct) if clean else [True] * len(trials[0].correct)
    stages = []
    for trial in trials:
        before = sum(correct)
        correct = [a and b for a, b in zip(correct, trial.correct, strict=True)]
        accuracy = share(_attacked(trial))
        stages.append(Stage(trial_name(trial, trials), accuracy, sum(correct), before - sum(correct)))
    return AttackerSummary(
        scenario,
        threat,
        share(clean.correct) if clean else None,
        share(correct),
        stages,
        correct,
        trials,
        control=all(trial.control for trial in trials),
    )


def _attacked(trial: Trial) -> list[bool]:
    """The outcomes of the images that the attack saw."""
    skipped = trial.not_attacked
    return [correct for index, correct in enumerate(trial.correct) if index not in skipped]


def headlines(record: Record, summaries: list[AttackerSummary]) -> list[Headline]:
    """A headline for each threat, first the one that most attacks were spent on."""
    found = []
    for threat in dict.fromkeys(s.threat for s in summaries if not s.control):
        attackers = [s for s in summaries if s.threat == threat and not s.control]
        worst = share([all(correct) for correct in zip(*(s.correct for s in attackers), strict=True)])
        found.append(Headline(threat, worst, attackers[0].clean, attackers, claim(record, attackers)))
    return sorted(found, key=lambda headline: -headline.attacks)


def claim(record: Record, attackers: Sequence[AttackerSummary]) -> str:
    """What may be said of the accuracy under these attackers' attacks, in a sentence or two."""
    trials = [trial for summary in attackers for trial in summary.trials]
    if any(trial.is_certificate for trial in trials):  # no attack beside it can make it more than a bound
        return "A lower bound: no attack within this budget leaves the defended model less on these images."
    if all(trial.surrogate for trial in trials):
        return "Transfer only: nobody attacked this very model, so this is no claim of robustness."
    if record.kind == "doctor":
        return "The doctor's attacks are short: take robvit evaluate for a number to quote."
    if len(trials) == 1:
        return "One attack gives an upper bound of robust accuracy; this is no claim of robustness."
    about = record.protocol.get("about")
    if record.protocol.get("name") and about:
        return f"{record.protocol['name']}: {about}"
    return "An upper bound of robust accuracy: stronger attacks may leave less."


def outcome(summary: AttackerSummary, clean: Trial | None, index: int) -> str:
    """What became of one image in a scenario: a key of OUTCOMES."""
    if clean and not clean.correct[index]:
        return "wrong"
    return "correct" if summary.correct[index] else "misclassified"


class Labels:
    """Names of images and classes as text, whatever the record holds or lacks."""

    def __init__(self, record: Record) -> None:
        count = max([len(t.correct) for t in record.trials] + [0])
        self.images = _list_of(record.data.get("names"), count) or [f"image {i}" for i in range(count)]
        labels = _list_of(record.data.get("labels"), count)
        self.labels = labels if all(isinstance(label, int) for label in labels) else []
        classes = record.data.get("classes")
        self.classes = [str(name) for name in classes] if isinstance(classes, list) else []

    def class_name(self, label: Any) -> str:
        is_known = isinstance(label, int) and 0 <= label < len(self.classes)
        return self.classes[label] if is_known else f"class {label}"

    def label(self, index: int) -> str:
        return self.class_name(self.labels[index]) if self.labels else ""


def _list_of(value: Any, count: int) -> list[Any]:
    return value if isinstance(value, list) and len(value) == count else []


def class_rows(record: Record, summary: AttackerSummary, labels: Labels) -> list[ClassRow]:
    """A row for each class in one scenario, the weakest first; none where most classes have one image."""
    members: dict[Any, list[int]] = {}
    for index, label in enumerate(labels.labels):
        members.setdefault(label, []).append(index)
    if len(members) < 2 or len(labels.labels) < 2 * len(members):
        return []
    clean = record.clean(summary.scenario)
    in_turn = [*([clean] if clean else []), *summary.trials]
    rows = []
    for label, indices in members.items():
        mistakes = ([t.predicted[i] for t in in_turn if not t.correct[i]] for i in indices)
        first = Counter(found[0] for found in mistakes if found)
        mistake = labels.class_name(first.most_common(1)[0][0]) if first else ""
        clean_share = share([clean.correct[i] for i in indices]) if clean else None
        worst = share([summary.correct[i] for i in indices])
        rows.append(ClassRow(labels.class_name(label), len(indices), clean_share, worst, mistake))
    return sorted(rows, key=lambda row: row.worst.share)


def title(record: Record) -> str:
    """The judged model's name."""
    return str(record.model.get("name") or "a model")
