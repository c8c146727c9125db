"""How tokens are learned, as data: the paper's choices, the published code's, and what goes beyond them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from robvit.defenses.attack_cache import AttackSetting
from robvit.errors import InputError
from robvit.threat import Threat


@dataclass(frozen=True)
class Adaptive:
    """The attacker who knows the tokens as they are now: `share` of each step's images is attacked afresh.

    The inner attack takes `steps` steps; the other images come from the store.
    """

    steps: int = 3
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.share <= 1:
            raise InputError(
                f"adaptive tokens need steps of at least 1 and a share in (0, 1], got {self.steps} "
                f"and {self.share}"
            )


@dataclass(frozen=True)
class Recipe:
    """How tokens are learned; the defaults are the paper's, with the published code's small start.

    `layers` are the blocks before which tokens enter, or "all". Images are attacked by `attack` and
    the attacks in `also`, in turns; with `adaptive` the attacker sees the tokens. `task` is the share
    of the objective that is the cross-entropy of a linear head, which then learns along. `axis` is
    that of the cosine: features of each token (-1), or, as in the published code, tokens of each
    feature (1).
    """

    count: int = 10
    steps: int = 200
    batch: int = 8
    lr: float = 1e-3
    start: float = 0.01
    axis: int = -1
    seed: int = 0
    attack: AttackSetting = field(default_factory=AttackSetting)
    also: tuple[AttackSetting, ...] = ()
    layers: tuple[int, ...] | Literal["all"] = (0,)
    adaptive: Adaptive | None = None
    task: float = 0.0

    def __post_init__(self) -> None:
        for name in ("count", "steps", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.task <= 1:
            raise InputError(f"task must be a share of the objective, 0 to 1, got {self.task}")

    @property
    def attacks(self) -> tuple[AttackSetting, ...]:
        """All attacks that take turns."""
        return (self.attack, *self.also)

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Recipe:
        """The recipe that token settings were written from; the defaults for what they do not say."""
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in settings.items() if name in known}
        if "attack" in given:
            given["attack"] = AttackSetting.from_settings(given["attack"])
        given["also"] = tuple(AttackSetting.from_settings(one) for one in given.get("also", ()))
        if isinstance(given.get("layers"), list):
            given["layers"] = tuple(given["layers"])
        if given.get("adaptive"):
            given["adaptive"] = Adaptive(**given["adaptive"])
        return cls(**given)


# The published code's choices: its attack, its cosine axis, and the 50 steps its tokens were made with.
REFERENCE = Recipe(steps=50, axis=1, attack=AttackSetting("feature_reference", Threat("linf", 8 / 255)))

# Names for whole recipes; docs/robustness-tokens.md says what each reaches and at which cost.
PRESETS = {
    "paper": Recipe(),
    # The best of the search against an attacker without tokens: a higher rate, tokens before every block.
    "deep": Recipe(
        steps=120,
        lr=5e-3,
        layers="all",
        attack=AttackSetting("feature", Threat("linf", 3 / 255), {"steps": 8, "psnr": None}),
    ),
}
