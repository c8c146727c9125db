"""Robustness tokens as a thing to keep: a secret with an identity, saved apart from the weights.

Tokens are a key. They are written for the owner's eyes only, as safetensors, and no message, log or
representation shows their values.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file

from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.errors import InputError, WrongBackbone
from robvit.files import written_whole
from robvit.sharing import Shareable
from robvit.tensor_files import FORMATS, check_format, described, is_dense, read_pickled, read_tensors

ABOUT = {
    "fingerprint": str,
    "key_id": str,
    "settings": dict,
    "layers": list,
    "origin": str,
    "salt": str,
    "learned_from": list,
}
SECRET, SEED, IMPORTED = "secret", "seed", "imported"  # what tokens may have grown from
TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class UnverifiedTokens(UserWarning):
    """Tokens that do not say which weights they belong to; only their width could be checked."""


class SearchableTokens(UserWarning):
    """Tokens of an older robvit, whose random start and order had 32 bits and can be found by search."""


@dataclass(frozen=True)
class RobustTokens(Shareable):
    """Secret tokens (L R D) for the layers of one backbone, named by its fingerprint.

    The fingerprint is empty if the weights are not known; L is one unless there are deeper layers. `origin`
    says what they grew from: a "secret" of the system's randomness, a "seed" that makes them again and so
    no secret, "imported" from elsewhere, or nothing that is known. `salt` keeps checksums of them from
    confirming a guess. `learned_from` names the images of the training, so that attackers are judged with
    others; the file that holds it is the secret itself.
    """

    shared_as: ClassVar[str] = "tokens"
    values: torch.Tensor = field(repr=False)
    fingerprint: str = ""
    key_id: str = field(default_factory=lambda: secrets.token_hex(6))
    settings: dict[str, Any] = field(default_factory=dict, repr=False)  # with the seed, where there is one
    layers: tuple[int, ...] = (0,)
    origin: str = ""
    salt: str = field(default="", repr=False)
    learned_from: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for name in ("layers", "learned_from"):  # lists where they were read from a file
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not all(isinstance(name, str) for name in self.learned_from):
            raise InputError("images learned from must be names; the file is damaged, make it again")
        rows = len(self.layers)
        if not all(type(layer) is int and layer >= 0 for layer in self.layers):
            raise InputError(f"layers must be numbers of blocks, got {self.layers}")
        if self.values.ndim != 3 or len(self.values) != rows or self.values.dtype not in TYPES:
            got = f"{self.values.dtype} {tuple(self.values.shape)}"
            raise InputError(f"tokens for {rows} layers must be floats ({rows} R D), got {got}")
        if self.values.numel() == 0:
            raise InputError(f"tokens must be one or more, got {tuple(self.values.shape)}; make them again")
        if not self.key_id.isprintable() or len(self.key_id) > 64:
            raise InputError("a key's name must be short and printable; the file is damaged, make it again")
        if not re.fullmatch(r"(?:[0-9a-f]{2})*", self.salt):
            raise InputError("the salt of tokens must be hexadecimal; the file is damaged, make it again")
        TrainedOn.told_by(self.settings)  # refuses what no images can be
        if not torch.isfinite(self.values).all():
            raise InputError("tokens must be finite, some are not; train or fetch them again")

    @property
    def count(self) -> int:
        """R, how many tokens enter each layer."""
        return int(self.values.shape[1])

    @property
    def width(self) -> int:
        """D, the width of the backbone they are for."""
        return int(self.values.shape[2])

    @property
    def trained_on(self) -> TrainedOn:
        """The images they were learned from."""
        return TrainedOn.told_by(self.settings)

    @property
    def searchable(self) -> bool:
        """Whether they are of an older robvit, and so can be found by search."""
        return not self.origin and "seed" in self.settings

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
        self.trained_on.check("set of tokens", model)

    def shared_facts(self) -> dict[str, Any]:
        facts = {
            "fingerprint": self.fingerprint,
            "key": self.key_id,
            "count": self.count,
            "width": self.width,
        }
        return facts | {"layers": list(self.layers), "origin": self.origin} | self.trained_on.settings()

    def warning(self) -> str:
        open_ = self.origin in (SEED, IMPORTED)
        return "" if open_ else f"these tokens, key {self.key_id}, are a secret"

    def write_shared(self, path: Path) -> None:
        self.save(path)

    @classmethod
    def read_shared(cls, path: Path) -> RobustTokens:
        return cls.load(path)

    def save(self, path: str | Path) -> None:
        """Write the tokens as safetensors that only their owner may read."""
        with written_whole(path, mode=0o600) as aside:
            tensors = {"tokens": self.values.detach().cpu().contiguous()}
            save_file(tensors, aside, {"format": FORMATS["tokens"].word, "about": json.dumps(self.about())})

    def about(self) -> dict[str, Any]:
        """All that is known of the tokens but their values."""
        return {name: getattr(self, name) for name in ABOUT}

    def __str__(self) -> str:
        where = "" if self.layers == (0,) else f" in layers {', '.join(map(str, self.layers))}"
        open_ = ", not a secret: whoever knows the seed can make them" if self.origin == SEED else ""
        return f"{self.count} tokens of width {self.width}{where}, key {self.key_id}{open_}"

    @classmethod
    def load(cls, path: str | Path) -> RobustTokens:
        """Tokens from the file that `save` wrote."""
        tensors, facts = read_tensors(path, "a token file")
        check_format(path, facts, "tokens")
        if "tokens" not in tensors:
            raise InputError(f"{path} is damaged: it has no tokens; make them again")
        return cls.read(tensors["tokens"], facts, path)

    @classmethod
    def read(cls, values: torch.Tensor, facts: Mapping[str, str], path: str | Path) -> RobustTokens:
        """Tokens from values and what stands beside them in a file."""
        try:
            before = {
                "layers": [0],
                "origin": "",
                "salt": "",
                "learned_from": [],
            }  # for what older files do not say
            found = cls(values, **described(facts, "about", "the file", ABOUT, **before))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if found.searchable:
            warnings.warn(
                f"tokens {found.key_id} of {path} were made by an older robvit, and whoever has a record of "
                "their training can find them by search; issue new ones: "
                f"robvit tokens rotate {shlex.quote(str(path))} MODEL",
                SearchableTokens,
                stacklevel=4,
            )
        return found


def import_published(path: str | Path, model: Model | None = None) -> RobustTokens:
    """Tokens from a `.pt` file of the paper's project: a torch zip of {"rtokens": (1 R D)}.

    Nothing in the file is executed. The files do not name their backbone; give the model they are
    for, so that the tokens are tied to its weights.
    """
    content = read_pickled(path, "a token file")
    values = content.get("rtokens") if isinstance(content, dict) else None
    if not is_dense(values) or not values.is_floating_point():
        raise InputError(f'{path} must hold {{"rtokens": floats (1 R D)}}, as the published files do')
    about: dict[str, Any] = {"settings": {"imported": Path(path).name}, "origin": IMPORTED}
    tokens = RobustTokens(values.detach().float().clone(), **about)
    if model is None:
        return tokens
    if tokens.width != model.width:
        tokens.check(model)
    return replace(tokens, fingerprint=model.fingerprint())
