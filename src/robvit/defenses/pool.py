"""Several token sets for one backbone: a secret choice for every request.

An attacker who knows one set, or all of them, still does not know which one answers. The model is
then randomised, and honest attacks on it average over the choice (`robvit.attacks.eot`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file

from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError
from robvit.files import parse_json, written_whole
from robvit.sharing import Shareable
from robvit.tensor_files import FORMATS, check_format, kind_of, read_facts, read_tensors


@dataclass(frozen=True)
class TokenPool(Shareable):
    """Token sets for one backbone, as secret as each of them."""

    shared_as: ClassVar[str] = "pool"
    sets: tuple[RobustTokens, ...]

    def __post_init__(self) -> None:
        if not self.sets:
            raise InputError("a pool needs at least one set of tokens, got none")
        if len(owners := {one.fingerprint for one in self.sets}) > 1:
            raise InputError(f"all sets of a pool must belong to the same weights, got {len(owners)} kinds")
        if len(images := {one.trained_on for one in self.sets}) > 1:
            raise InputError(f"all sets of a pool must be for images of one size, got {len(images)} kinds")

    def __len__(self) -> int:
        return len(self.sets)

    def __getitem__(self, index: int) -> RobustTokens:
        return self.sets[index]

    def __iter__(self) -> Iterator[RobustTokens]:
        return iter(self.sets)

    def __str__(self) -> str:
        return f"a pool of {len(self)} sets: " + "; ".join(map(str, self.sets))

    def draw(self, generator: torch.Generator | None = None) -> RobustTokens:
        """One set, by the system's own randomness unless a generator makes the choice repeatable."""
        if generator is None:
            return secrets.choice(self.sets)
        return self.sets[int(torch.randint(len(self.sets), (1,), generator=generator))]

    @property
    def trained_on(self) -> TrainedOn:
        """The images its sets were learned from."""
        return self.sets[0].trained_on

    def check(self, model: Model) -> None:
        """Refuse a backbone with other weights than the one these sets belong to."""
        for one in self.sets:
            one.check(model)

    def shared_facts(self) -> dict[str, Any]:
        return {"sets": [one.key_id for one in self.sets]} | {
            name: value for name, value in self.sets[0].shared_facts().items() if name != "key"
        }

    def warning(self) -> str:
        return next(filter(None, (one.warning() for one in self.sets)), "")

    def write_shared(self, path: Path) -> None:
        self.save(path)

    @classmethod
    def read_shared(cls, path: Path) -> TokenPool:
        return cls.load(path)

    def save(self, path: str | Path) -> None:
        """Write all sets as one safetensors file that only its owner may read."""
        tensors = {f"tokens {i}": one.values.detach().cpu().contiguous() for i, one in enumerate(self.sets)}
        about = json.dumps([one.about() for one in self.sets])
        with written_whole(path, mode=0o600) as aside:
            save_file(tensors, aside, {"format": FORMATS["pool"].word, "about": about})

    @classmethod
    def load(cls, path: str | Path) -> TokenPool:
        """A pool from the file that `save` wrote."""
        tensors, facts = read_tensors(path, "a pool of tokens")
        check_format(path, facts, "pool")
        about = parse_json(facts.get("about", "null"), path, "a pool of tokens")
        names = [f"tokens {i}" for i in range(len(tensors))]
        if not isinstance(about, list) or len(about) != len(tensors) or set(tensors) != set(names):
            raise InputError(f"{path} is damaged: it must tell of each of {len(tensors)} sets; make it again")
        parts = ({"about": json.dumps(one)} for one in about)
        return cls(
            tuple(RobustTokens.read(tensors[n], one, path) for n, one in zip(names, parts, strict=True))
        )


def load_tokens(path: str | Path) -> RobustTokens | TokenPool:
    """What a token file holds: one set, or a pool."""
    is_pool = kind_of(read_facts(path, "a token file")) == "pool"
    return TokenPool.load(path) if is_pool else RobustTokens.load(path)
