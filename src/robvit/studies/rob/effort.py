"""What the studies of robustness tokens spend: minutes, as much as the paper, or as its published code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from robvit.attacks import ATTACKS
from robvit.attacks.published_code import STD
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError
from robvit.studies.common import Effort
from robvit.studies.judging import Attempt
from robvit.threat import Threat

SMALL, PAPER_SCALE, REFERENCE_SCALE = "small", "paper", "reference"
SIDE = 112  # pixels at the small scale: a sixth of the cost of 224, and the effect shows


@dataclass(frozen=True)
class TokenEffort(Effort):
    """What is spent on learning tokens; the defaults take a few minutes on two processor cores.

    Tokens learn from images attacked in `inner_steps` within `eps`, kept at `psnr` decibels (0: no such
    bound) and with `mse` as the weight of Eq. 4's second term. The `scale` decides all that is not set:
    "small", "paper" (224x224, 1,600 images, 200 steps of 8, 30 attack steps at 8/255 and 40 dB), or
    "reference", the published code with its own attacks, cosine axis and positions. Tokens and heads learn
    from `learn_data` where it is given, and from a part of the study's data otherwise.
    """

    learn: int = 192
    steps: int = 60
    batch: int = 16
    inner_steps: int = 8
    eps: float = 3 / 255
    psnr: float = 0.0
    mse: float = 0.0
    scale: str = SMALL
    learn_data: str = ""

    def changed(self, given: dict[str, Any]) -> Self:
        """The scale that was given, or this one, with the other settings in place of its own."""
        scale = given.get("scale", self.scale)
        if scale not in (SMALL, *SCALES):
            raise InputError(f"scale must be {SMALL}, {' or '.join(SCALES)}, got {scale!r}")
        own = {} if scale == self.scale else SCALES[scale]
        return replace(self, **{**own, **given})

    @property
    def published(self) -> bool:
        """Whether the published code's choices are taken, cell by cell."""
        return self.scale == REFERENCE_SCALE

    @property
    def side(self) -> int | None:
        """The side of the images, None for the model's own."""
        return SIDE if self.scale == SMALL else 224

    @property
    def axis(self) -> int:
        """The cosine's: features of each token, or, as in the published code, tokens of each feature."""
        return 1 if self.published else -1

    @property
    def threat(self) -> Threat:
        """The budget of attacks on classes and masks; the published code's is in normalised space."""
        return Threat("linf", self.eps, None if self.published else self.psnr or None)

    @property
    def pixel_threat(self) -> Threat:
        """The budget in pixels alone, for attacks that keep no PSNR."""
        return Threat("linf", self.eps * (sum(STD) / 3 if self.published else 1))

    def recipe(self, *, count: int = 10, seed: int = 0) -> TokenRecipe:
        """How tokens are learned."""
        attack = self.feature_attack(self.inner_steps)
        return TokenRecipe(
            count=count, steps=self.steps, batch=self.batch, axis=self.axis, seed=seed, attack=attack
        )

    def feature_attack(self, steps: int) -> AttackSetting:
        """The attack on features in so many steps."""
        if self.published:
            return AttackSetting("feature_reference", Threat("linf", self.eps), {"steps": steps})
        settings: dict[str, Any] = {"steps": steps, "psnr": self.psnr or None}
        return AttackSetting("feature", Threat("linf", self.eps), settings | self._error())

    def class_attack(self, steps: int, seed: int) -> Attempt:
        """The attack on a head's classes in so many steps."""
        return Attempt(
            "pgd_reference" if self.published else "pgd", self.threat, {"steps": steps, "seed": seed}
        )

    def mask_attack(self, steps: int) -> Attempt:
        """The attack on segmentations in so many steps; all pixels count alike, as in the paper."""
        if self.published:
            return Attempt("segpgd_reference", self.threat, {"steps": steps})
        return Attempt("segpgd", self.threat, {"steps": steps, "weighted": False})

    def _error(self) -> dict[str, float]:
        """Eq. 4's second term, named only where it is wanted: attacked images are kept by their settings."""
        return {"mse": self.mse} if self.mse else {}

    def __str__(self) -> str:
        return f"Scale {self.scale}; tokens {_learned(self.recipe(), self.learn)}."

    def told(self, *sets: RobustTokens) -> str:
        """The scale, and how these tokens were learned, which a file may tell otherwise than the scale."""
        return "; ".join([f"Scale {self.scale}", *dict.fromkeys(map(learned, sets))]) + "."


def learned(tokens: RobustTokens) -> str:
    """How tokens were learned, by what they say of themselves."""
    if "attack" not in tokens.settings:
        return (
            f"tokens of {tokens.settings.get('imported', 'a file')}, which does not say how they were learned"
        )
    where = "" if tokens.layers == (0,) else f" before blocks {', '.join(map(str, tokens.layers))}"
    how = _learned(TokenRecipe.from_settings(tokens.settings), len(tokens.learned_from))
    return f"{tokens.count} tokens{where} {how}"


def _learned(recipe: TokenRecipe, images: int) -> str:
    attacks = " and ".join(attack_told(attack) for attack in recipe.attacks)
    sees = ", which sees the tokens" if recipe.adaptive else ""
    return (
        f"learned from {images or 'unnamed'} images in {recipe.steps} steps of {recipe.batch} at rate "
        f"{recipe.lr:g} against {attacks}{sees}"
    )


def attack_told(attack: AttackSetting) -> str:
    """An attack on features with its steps and its budget."""
    published = attack.name == "feature_reference"
    where = "in normalised space (about a quarter of it in pixels)" if published else "in pixels"
    psnr = {**ATTACKS.info(attack.name).defaults, **attack.settings}.get("psnr")
    kept = f", images kept at {psnr:g} dB" if psnr and not published else ""
    return f"{attack.name} of {attack.steps} steps within {attack.threat} {where}{kept}"


# What a scale changes in the small one.
SCALES: dict[str, dict[str, Any]] = {
    PAPER_SCALE: {
        "learn": 1600,
        "steps": 200,
        "batch": 8,
        "inner_steps": 30,
        "eps": 8 / 255,
        "psnr": 40.0,
    },
    REFERENCE_SCALE: {"learn": 400, "steps": 50, "batch": 8, "inner_steps": 30, "eps": 8 / 255},
}
