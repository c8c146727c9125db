"""Harden Vision Transformers against adversarial examples, attack them, and say what may be claimed.

Names are looked up when they are first used, so `import robvit` is quick: torch is not loaded, no
model is built and nothing is downloaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from robvit import attacks as attacks
    from robvit import data as data
    from robvit.attacks.outcome import Outcome as Outcome
    from robvit.backbones.families import Tokens as Tokens
    from robvit.backbones.model import Model as Model
    from robvit.certification.certify import certify as certify
    from robvit.certification.patches import PatchDefense as PatchDefense
    from robvit.certification.patches import defend_patches as defend_patches
    from robvit.challenging.challenge import challenge as challenge
    from robvit.checking import check as check
    from robvit.data.dataset import ImageDataset as ImageDataset
    from robvit.data.opening import open_data as open_data
    from robvit.defenses.lora import LoRA as LoRA
    from robvit.defenses.pool import TokenPool as TokenPool
    from robvit.defenses.tokens import RobustTokens as RobustTokens
    from robvit.diagnosis.doctor import doctor as doctor
    from robvit.errors import RobvitError as RobvitError
    from robvit.evaluation.attack import attack as attack
    from robvit.evaluation.compare import Pair as Pair
    from robvit.evaluation.compare import compare as compare
    from robvit.evaluation.curve import curve as curve
    from robvit.evaluation.evaluate import evaluate as evaluate
    from robvit.evaluation.protocol import Protocol as Protocol
    from robvit.explanation.explain import explain as explain
    from robvit.exporting import export as export
    from robvit.exporting.parity import Parity as Parity
    from robvit.hardening import Hardening as Hardening
    from robvit.hardening import robustify as robustify
    from robvit.loading import load as load
    from robvit.pushing import push as push
    from robvit.record import Record as Record
    from robvit.record import Trial as Trial
    from robvit.report.verdict import Review as Review
    from robvit.reviewing import review as review
    from robvit.studies.common import reproduce as reproduce
    from robvit.threat import Threat as Threat
    from robvit.training.recipe import Recipe as Recipe
    from robvit.training.train import train as train
    from robvit.training.tuning import Tuning as Tuning

# Public name: where it lives; an empty second part is a module.
_PUBLIC = {
    "Hardening": ("robvit.hardening", "Hardening"),
    "ImageDataset": ("robvit.data.dataset", "ImageDataset"),
    "LoRA": ("robvit.defenses.lora", "LoRA"),
    "Model": ("robvit.backbones.model", "Model"),
    "Outcome": ("robvit.attacks.outcome", "Outcome"),
    "Pair": ("robvit.evaluation.compare", "Pair"),
    "Parity": ("robvit.exporting.parity", "Parity"),
    "PatchDefense": ("robvit.certification.patches", "PatchDefense"),
    "Protocol": ("robvit.evaluation.protocol", "Protocol"),
    "Recipe": ("robvit.training.recipe", "Recipe"),
    "Record": ("robvit.record", "Record"),
    "Review": ("robvit.report.verdict", "Review"),
    "RobustTokens": ("robvit.defenses.tokens", "RobustTokens"),
    "RobvitError": ("robvit.errors", "RobvitError"),
    "Threat": ("robvit.threat", "Threat"),
    "TokenPool": ("robvit.defenses.pool", "TokenPool"),
    "Tokens": ("robvit.backbones.families", "Tokens"),
    "Trial": ("robvit.record", "Trial"),
    "Tuning": ("robvit.training.tuning", "Tuning"),
    "attack": ("robvit.evaluation.attack", "attack"),
    "attacks": ("robvit.attacks", ""),
    "certify": ("robvit.certification.certify", "certify"),
    "challenge": ("robvit.challenging.challenge", "challenge"),
    "check": ("robvit.checking", "check"),
    "compare": ("robvit.evaluation.compare", "compare"),
    "curve": ("robvit.evaluation.curve", "curve"),
    "data": ("robvit.data", ""),
    "defend_patches": ("robvit.certification.patches", "defend_patches"),
    "doctor": ("robvit.diagnosis.doctor", "doctor"),
    "evaluate": ("robvit.evaluation.evaluate", "evaluate"),
    "explain": ("robvit.explanation.explain", "explain"),
    "export": ("robvit.exporting", "export"),
    "load": ("robvit.loading", "load"),
    "open_data": ("robvit.data.opening", "open_data"),
    "push": ("robvit.pushing", "push"),
    "reproduce": ("robvit.studies", "reproduce"),
    "review": ("robvit.reviewing", "review"),
    "robustify": ("robvit.hardening", "robustify"),
    "train": ("robvit.training.train", "train"),
}
__all__ = [
    "Hardening",
    "ImageDataset",
    "LoRA",
    "Model",
    "Outcome",
    "Pair",
    "Parity",
    "PatchDefense",
    "Protocol",
    "Recipe",
    "Record",
    "Review",
    "RobustTokens",
    "RobvitError",
    "Threat",
    "TokenPool",
    "Tokens",
    "Trial",
    "Tuning",
    "attack",
    "attacks",
    "certify",
    "challenge",
    "check",
    "compare",
    "curve",
    "data",
    "defend_patches",
    "doctor",
    "evaluate",
    "explain",
    "export",
    "load",
    "open_data",
    "push",
    "reproduce",
    "review",
    "robustify",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'robvit' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted((*globals(), *_PUBLIC))
