"""What one attack did to every image: the part of a record that all tables and tests are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from robvit.budget import Budget


@dataclass(frozen=True)
class Trial:
    """One attack on all images: for each, whether the judged model is still correct, and its prediction.

    Lists run over the images. `threat` is the attack's budget and `distance` is in its norm; the attack
    "clean" has none. `variant` sets it apart from others of the same attack where settings do not, a control
    at equal cost, say. A common corruption has its name as `attack` and a `severity`. Passes are sums over
    images. `scenario` says which variant of the model was judged and what its attacker knew, where there
    are several; `attacker` is that attacker's name among the protocols' and `surrogate` the model the
    images were made on, if not the judged one. The images in `skipped` were misclassified before this
    attack, which did not see them: they count as wrong, with what was predicted then. Those in `unseen` were
    correct, and the attack, an audit of a sample, did not see them either. A targeted attack has the class
    it aimed at in `targets`, the label itself where there was nothing to attack. A `control` takes no part in
    the worst case. `shards` is the folder of the adversarial images, relative to the record's, and
    `shards_sha256` names its files.
    """

    attack: str
    threat: Budget | None
    settings: dict[str, Any]
    correct: list[bool]
    predicted: list[int]
    distance: list[float]
    forward: int = 0
    backward: int = 0
    seconds: float = 0.0
    warnings: list[str] = field(default_factory=list)
    scenario: str = ""
    attacker: str = ""
    surrogate: str = ""
    skipped: list[int] = field(default_factory=list)
    unseen: list[int] = field(default_factory=list)
    control: bool = False
    severity: int | None = None
    shards: str = ""
    shards_sha256: str = ""
    targets: list[int] = field(default_factory=list)
    variant: str = ""

    @property
    def kind(self) -> str:
        """ "clean", "corruption" or "attack"."""
        if self.severity is not None:
            return "corruption"
        return "clean" if self.attack == "clean" else "attack"

    @property
    def is_certificate(self) -> bool:
        """Whether outcomes are proven for every attack within the budget, rather than tried by one."""
        return self.attack == "certificate"

    @property
    def not_attacked(self) -> set[int]:
        """The images that the attack did not see."""
        return {*self.skipped, *self.unseen}

    @property
    def name(self) -> str:
        """The attack with its variant: "pgd, same cost"."""
        return f"{self.attack}, {self.variant}" if self.variant else self.attack

    @property
    def title(self) -> str:
        """The attack, for people, with its surrogate and the sample it saw: "fab_t, 300 of 812"."""
        seen, name = len(self.correct) - len(self.not_attacked), self.name
        name += f" to {self.settings.get('target', 'targets')}" if self.targets else ""
        name += f" on {self.surrogate}" if self.surrogate else ""
        return name + (f", {seen} of {seen + len(self.unseen)}" if self.unseen else "")

    @property
    def strength(self) -> str:
        """How hard the images were changed, for people: "linf 8/255", "severity 3" or "none"."""
        if self.severity is not None:
            return f"severity {self.severity}"
        return "none" if self.threat is None else str(self.threat)

    @property
    def accuracy(self) -> float:
        """The share of images that the judged model gets right."""
        return sum(self.correct) / len(self.correct)
