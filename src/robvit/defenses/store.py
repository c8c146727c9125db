"""Attacked pictures and clean target features, made once and kept.

Adversarial pictures of the token-free model do not depend on tokens, so every later training, with
other counts, seeds or layers, takes them from here. A shard holds a few pictures: 8-bit adversarial
values, the clean features they are to keep, and how far the attack got. Shards are keyed by weights,
pictures, attack and seed, carry a checksum, and are read back row by row, so memory stays flat.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from accelerate import PartialState
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from robvit.attacks import ATTACKS, certify
from robvit.backbones.model import Model
from robvit.errors import InputError
from robvit.files import cache_dir, tensors_sha256, written_whole
from robvit.threat import Threat

PER_SHARD = 16
Report = Callable[..., None]


class Pictures(Protocol):
    """What robustify learns from: pictures by index, and a digest that names them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[torch.Tensor, Any]: ...

    def digest(self) -> str: ...


@dataclass(frozen=True)
class TensorPictures:
    """Pictures (N 3 H W) that are already in memory."""

    x: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], -1

    def digest(self) -> str:
        return tensors_sha256({"x": self.x})


@dataclass(frozen=True)
class AttackSetting:
    """The attack on the token-free model's features that tokens learn to withstand."""

    name: str = "feature"
    threat: Threat = field(default_factory=lambda: Threat("linf", 8 / 255))
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def steps(self) -> int:
        """How many steps the attack takes."""
        known = ATTACKS.entry(self.name).facts["defaults"]
        return int(self.settings.get("steps", known.get("steps", 1)))

    def run(self, model: Model, x: torch.Tensor) -> torch.Tensor:
        """Adversarial pictures (B 3 H W), certified."""
        adv = ATTACKS[self.name](model.features, x, None, self.threat, seed=self.seed, **self.settings)
        if not ATTACKS.entry(self.name).facts["batch_coupled"]:
            certify(x, adv, self.threat)  # the published code's attack keeps no pixel budget
        return adv


@dataclass(frozen=True)
class Shard:
    """Where some pictures are kept: their adversarial values (uint8) and clean features (half)."""

    path: Path
    places: list[int]

    def is_whole(self, clean: torch.Tensor) -> bool:
        """Whether the shard is there, undamaged, and of these very pictures; else it is made again.

        The pixels are compared, because a data set's names stay when its pictures are fitted otherwise.
        """
        try:
            with safe_open(self.path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in ("adv", "target")}
                return bool(
                    (file.metadata() or {}).get("sha256") == tensors_sha256({**tensors, "clean": clean})
                )
        except (OSError, SafetensorError):
            return False


class AttackStore:
    """The attacked pictures of one model, one data set and one attack."""

    def __init__(
        self, model: Model, pictures: Pictures, attack: AttackSetting, folder: Path | None = None
    ) -> None:
        if model.extra is not None:
            raise InputError("attacks are crafted on the token-free model; load it without tokens")
        self.model, self.pictures, self.attack = model, pictures, attack
        size = tuple(pictures[0][0].shape)
        facts = ["store-1", model.identity(), pictures.digest(), size, asdict(attack)]
        self.key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self.folder = (folder or cache_dir("attacked")) / self.key[:32]

    def shard(self, number: int) -> Shard:
        first = number * PER_SHARD
        places = list(range(first, min(first + PER_SHARD, len(self.pictures))))
        return Shard(self.folder / f"shard-{number:05d}.safetensors", places)

    def missing(self, places: Sequence[int]) -> list[Shard]:
        """The shards of these pictures that are not there, or are damaged."""
        shards = [self.shard(number) for number in sorted({place // PER_SHARD for place in places})]
        return [shard for shard in shards if not shard.is_whole(self._clean(shard))]

    def fill(self, missing: list[Shard], report: Report) -> None:
        """Make these shards; several processes take turns."""
        state = PartialState()
        for turn, shard in enumerate(missing):
            if turn % state.num_processes == state.process_index:
                cosine = self._make(shard)
                report(len(shard.places), note=f"un-hardened cosine {cosine:.2f}")
        state.wait_for_everyone()

    def batch(self, places: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Clean pictures, adversarial pictures (B 3 H W) and clean features (B T D)."""
        clean, adv, target = [], [], []
        for place in places:
            with safe_open(self.shard(place // PER_SHARD).path, "pt") as file:
                row = place % PER_SHARD
                adv.append(file.get_slice("adv")[row : row + 1])
                target.append(file.get_slice("target")[row : row + 1])
            clean.append(self.pictures[place][0])
        return torch.stack(clean), torch.cat(adv).float() / 255, torch.cat(target).float()

    def baseline(self, places: Sequence[int]) -> float:
        """The mean cosine between clean and attacked features of the token-free model."""
        values = []
        for number in sorted({place // PER_SHARD for place in places}):
            with safe_open(self.shard(number).path, "pt") as file:
                values += json.loads(file.metadata()["cosine"])
        return sum(values) / len(values)

    def _clean(self, shard: Shard) -> torch.Tensor:
        return torch.stack([self.pictures[place][0] for place in shard.places])

    def _make(self, shard: Shard) -> float:
        clean = self._clean(shard)
        x = clean.to(next(self.model.parameters()).device)
        adv = self.attack.run(self.model, x)
        levels = (adv * 255).round().to(torch.uint8)
        with torch.no_grad():
            target = self.model.features(x)
            moved = self.model.features(levels.to(x.dtype) / 255)
        cosine: list[float] = F.cosine_similarity(target, moved, dim=-1).mean(1).tolist()
        tensors = {"adv": levels.cpu(), "target": target.half().cpu()}
        facts = {"sha256": tensors_sha256({**tensors, "clean": clean}), "cosine": json.dumps(cosine)}
        with written_whole(shard.path) as aside:
            save_file(tensors, aside, facts)
        return sum(cosine) / len(cosine)
