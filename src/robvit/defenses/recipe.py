"""How tokens are learned, as data: the paper's choices, the published code's, and what goes beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from robvit.attacks import ATTACKS
from robvit.defenses.attack_cache import AttackSetting
from robvit.errors import InputError
from robvit.settings import parse_layers
from robvit.threat import Threat


@dataclass(frozen=True)
class AdaptiveAttack:
    """The attacker who knows the tokens as they are now: `share` of each step's images is attacked afresh.

    The inner attack takes `steps` steps; the other images come from the cache.
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
class TokenRecipe:
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
    adaptive: AdaptiveAttack | None = None
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
    def from_settings(cls, settings: dict[str, Any]) -> TokenRecipe:
        """The recipe that token settings were written from; the defaults for what they do not say."""
        known = {f.name for f in fields(cls)}
        given = {name: value for name, value in settings.items() if name in known}
        if "attack" in given:
            given["attack"] = AttackSetting.from_settings(given["attack"])
        given["also"] = tuple(AttackSetting.from_settings(one) for one in given.get("also", ()))
        if isinstance(given.get("layers"), list):
            given["layers"] = tuple(given["layers"])
        if given.get("adaptive"):
            given["adaptive"] = AdaptiveAttack(**given["adaptive"])
        return cls(**given)


# Names for whole recipes; docs/robustness-tokens.md says what each reaches and at which cost.
PRESETS = {
    "paper": TokenRecipe(),
    # The best of the search against an attacker without tokens: a higher rate, tokens before every block.
    "deep": TokenRecipe(
        steps=120,
        lr=5e-3,
        layers="all",
        attack=AttackSetting("feature", Threat("linf", 3 / 255), {"steps": 8, "psnr": None}),
    ),
    # The published code's choices: its attack, its cosine axis, and the 50 steps its tokens were made with.
    "reference": TokenRecipe(
        steps=50, axis=1, attack=AttackSetting("feature_reference", Threat("linf", 8 / 255))
    ),
}
REFERENCE = PRESETS["reference"]


def preset(name: str) -> TokenRecipe:
    """A recipe by its name."""
    if name not in PRESETS:
        raise InputError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
    return PRESETS[name]


def changed(
    recipe: TokenRecipe,
    *,
    attacks: Sequence[str] = (),
    eps: float | str | None = None,
    attack_steps: int | None = None,
    psnr: float | None = None,
    layers: Sequence[int] | str | None = None,
    **given: Any,
) -> TokenRecipe:
    """A recipe with what is given in place of its own; None leaves a thing as it is.

    `attacks` are texts such as "feature@2/255", which take turns; `eps`, `attack_steps` and `psnr` (0 for
    none) are for all of them. `given` are fields of the recipe.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    if layers is not None:
        chosen["layers"] = parse_layers(layers)
    texts = attacks or [recipe.attack.name]
    first, *others = (_attack(recipe.attack, text, eps, attack_steps, psnr) for text in texts)
    chosen |= {"attack": first} | ({"also": tuple(others)} if attacks else {})
    return replace(recipe, **chosen)


def _attack(
    base: AttackSetting, text: str, eps: float | str | None, steps: int | None, psnr: float | None
) -> AttackSetting:
    """An attack from text such as feature@2/255; what is not said is the recipe's."""
    name, _, own = text.partition("@")
    wanted = dict(base.settings) if name == base.name else {}
    wanted |= {} if steps is None else {"steps": steps}
    wanted |= {} if psnr is None else {"psnr": psnr or None}
    known = ATTACKS.info(name).defaults
    budget = own or eps
    threat = base.threat if budget is None else Threat.parse("linf", str(budget))
    return AttackSetting(name, threat, {k: v for k, v in wanted.items() if k in known}, base.seed)
