"""Robustness tokens as a thing to keep: a secret with an identity, saved apart from the weights.

Tokens are a key. They are written for the owner's eyes only, as safetensors, and no message, log or
representation shows their values.
"""

from __future__ import annotations

import json
import secrets
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from robvit.backbones.model import Model
from robvit.errors import InputError, WrongBackbone
from robvit.files import read_tensors, written_whole

FORMAT = "robvit-tokens-1"


class UnverifiedTokens(UserWarning):
    """Tokens that do not say which weights they belong to; only their width could be checked."""


@dataclass(frozen=True)
class RobustTokens:
    """Secret tokens (1 R D) for one backbone, named by its fingerprint; empty if it is not known."""

    values: torch.Tensor = field(repr=False)
    fingerprint: str = ""
    key_id: str = field(default_factory=lambda: secrets.token_hex(6))
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.values.ndim != 3 or self.values.shape[0] != 1 or not self.values.is_floating_point():
            got = f"{self.values.dtype} {tuple(self.values.shape)}"
            raise InputError(f"tokens must be floats (1 R D), got {got}")
        if not torch.isfinite(self.values).all():
            raise InputError("tokens must be finite, some are not; train or fetch them again")

    @property
    def count(self) -> int:
        """R, how many tokens there are."""
        return int(self.values.shape[1])

    @property
    def width(self) -> int:
        """D, the width of the backbone they are for."""
        return int(self.values.shape[2])

    def check(self, model: Model) -> None:
        """Refuse a backbone with other weights than the one these tokens belong to."""
        if self.width != model.width:
            raise WrongBackbone(
                f"these tokens have width {self.width}, {model.name} has {model.width}; "
                "tokens belong to the exact weights they were trained on"
            )
        if not self.fingerprint:
            warnings.warn(
                f"tokens {self.key_id} do not name their weights; only their width fits {model.name}",
                UnverifiedTokens,
                stacklevel=3,
            )
        elif self.fingerprint != model.fingerprint():
            raise WrongBackbone(
                f"these tokens belong to weights with fingerprint {self.fingerprint[:12]}, {model.name} has "
                f"{model.fingerprint()[:12]}; tokens only work on the exact weights they were trained on"
            )

    def save(self, path: str | Path) -> None:
        """Write the tokens as safetensors that only their owner may read."""
        about = {"fingerprint": self.fingerprint, "key_id": self.key_id, "settings": self.settings}
        with written_whole(path, mode=0o600) as aside:
            tensors = {"tokens": self.values.detach().cpu().contiguous()}
            save_file(tensors, aside, {"format": FORMAT, "about": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path) -> RobustTokens:
        """Tokens from the file that `save` wrote."""
        tensors, facts = read_tensors(path, "a token file")
        if facts.get("format") != FORMAT or "tokens" not in tensors:
            raise InputError(
                f"{path} does not hold robvit tokens; published .pt files come in by `robvit tokens import`"
            )
        return cls(tensors["tokens"], **json.loads(facts["about"]))


def import_published(path: str | Path, model: Model | None = None) -> RobustTokens:
    """Tokens from a `.pt` file of the paper's project: a torch zip of {"rtokens": (1 R D)}.

    Nothing in the file is executed. The files do not name their backbone; give the model they are
    for, so that the tokens are tied to its weights.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a hostile or broken file
        raise InputError(f"{path} is not a token file that can be read safely: {error}") from error
    values = content.get("rtokens") if isinstance(content, dict) else None
    if not isinstance(values, torch.Tensor) or not values.is_floating_point():
        raise InputError(f'{path} must hold {{"rtokens": floats (1 R D)}}, as the published files do')
    tokens = RobustTokens(values.detach().float().clone(), settings={"imported": Path(path).name})
    if model is None:
        return tokens
    if tokens.width != model.width:
        tokens.check(model)
    return RobustTokens(tokens.values, model.fingerprint(), tokens.key_id, tokens.settings)
