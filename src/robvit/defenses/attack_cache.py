"""Attacked images and clean target features, made once and kept.

Adversarial images of the token-free model do not depend on tokens, so every later training, with
other counts, seeds or layers, takes them from here. A shard holds a few images: 8-bit adversarial
values, the clean features they are to keep, and how far the attack got. Shards are keyed by weights,
images, attack, seed and precision, carry a checksum, and are read back row by row, so memory stays flat.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from robvit.attacks import ATTACKS, Count, check_adversarial, eight_bit, pgd
from robvit.attacks.core import refuse_targets, supported
from robvit.attacks.precision import searched
from robvit.backbones.model import Model
from robvit.errors import InputError
from robvit.files import cache_dir, remove_remains, written_whole
from robvit.processes import processes
from robvit.progress import Advance, BatchProgress, silent
from robvit.resuming import versions
from robvit.tensor_files import tensors_sha256
from robvit.threat import Threat

PER_SHARD = 16


class Images(Protocol):
    """What tokens learn from: images by index, and a digest that names them."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[torch.Tensor, Any]: ...

    def digest(self) -> str: ...


@dataclass(frozen=True)
class TensorImages:
    """Images (N 3 H W) that are already in memory."""

    x: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], -1

    def digest(self) -> str:
        return tensors_sha256({"x": self.x})

    def facts(self) -> dict[str, Any]:
        """What a record tells of the images."""
        return {"spec": "", "digest": self.digest(), "count": len(self)}


@dataclass(frozen=True)
class AttackSetting:
    """An attack that tokens are trained against: on features, or on a head's classes if it needs labels."""

    name: str = "feature"
    threat: Threat = field(default_factory=lambda: Threat("linf", 8 / 255))
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_targets(self.settings)

    @property
    def steps(self) -> int:
        """How many steps the attack takes."""
        known = ATTACKS.info(self.name).defaults
        return int(self.settings.get("steps", known.get("steps", 1)))

    @property
    def needs_labels(self) -> bool:
        """Whether it attacks the head's classes rather than the features."""
        return ATTACKS.info(self.name).task == "classes"

    def run(
        self,
        model: Model,
        x: torch.Tensor,
        y: torch.Tensor | None = None,
        *,
        precision: str = "fp32",
        each_pass: Callable[[int], None] = silent,
    ) -> torch.Tensor:
        """Adversarial images (B 3 H W) in whole grey levels, certified if the attack can be.

        `precision` is that of the search, and `each_pass` is told of its forward passes.
        """
        function = ATTACKS[self.name]
        attacked = Count(searched(model if self.needs_labels else model.features, precision), each_pass)
        if self.needs_labels:
            # Other models are to learn from these images: each is driven as far as the attack goes.
            settings = supported(self.name, early_stop=False) | self.settings
            adv = function(attacked, x, y, self.threat, seed=self.seed, **settings)
        else:
            adv = function(attacked, x, None, self.threat, seed=self.seed, **self.settings)
        if not ATTACKS.info(self.name).keeps_budget:
            return (adv * 255).round() / 255
        check_adversarial(x, adv, self.threat)
        adv = eight_bit(x, adv, self.threat)
        check_adversarial(x, adv, self.threat, eight_bit=True)
        return adv

    def inner(
        self,
        model: Model,
        x: torch.Tensor,
        goal: torch.Tensor,
        *,
        steps: int,
        seed: int,
        precision: str = "fp32",
    ) -> torch.Tensor:
        """A short attack on a hardened model, for training: x (B 3 H W); not rounded to 8 bits.

        `goal` holds what the tokens are to keep: features (B T D), or labels (B,) if it needs them.
        """
        if self.needs_labels:
            settings = supported(self.name, early_stop=False) | self.settings | {"steps": steps}
            return ATTACKS[self.name](searched(model, precision), x, goal, self.threat, seed=seed, **settings)
        known = ATTACKS.info(self.name).defaults.get("psnr")
        bound = replace(self.threat, psnr=self.settings.get("psnr", known))
        features = searched(model.features, precision)
        return pgd(features, x, goal, bound, steps=steps, loss="cosine", early_stop=False, seed=seed)

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> AttackSetting:
        """The attack that token settings were written from."""
        return cls(**{**settings, "threat": Threat(**settings["threat"])})


@dataclass(frozen=True)
class CacheShard:
    """Where some images are kept: their adversarial values (uint8) and clean features (half)."""

    path: Path
    places: list[int]

    def is_whole(self, clean: torch.Tensor) -> bool:
        """Whether the shard is there, undamaged, and of these very images; else it is made again.

        The pixels are compared, because a dataset's names stay when its images are fitted otherwise.
        """
        try:
            with safe_open(self.path, "pt") as file:
                tensors = {name: file.get_tensor(name) for name in ("adv", "target")}
                return bool(
                    (file.metadata() or {}).get("sha256") == tensors_sha256({**tensors, "clean": clean})
                )
        except (OSError, SafetensorError):
            return False


class AttackCache:
    """The attacked images of one model, one dataset and one attack."""

    def __init__(
        self,
        model: Model,
        images: Images,
        attack: AttackSetting,
        folder: Path | None = None,
        precision: str = "fp32",
    ) -> None:
        if model.hardened:
            raise InputError("attacks are run on the token-free model; load it without tokens")
        if attack.needs_labels and not model.classes:
            raise InputError(f"{attack.name} attacks a classifier; give {model.name} a head")
        if not attack.needs_labels:  # features do not depend on a head, so neither does the key
            model = model.replace(head=None)
        self.model, self.images, self.attack, self.precision = model, images, attack, precision
        size = tuple(images[0][0].shape)
        facts = ["store-2", versions(), model.identity(), images.digest(), size, asdict(attack)]
        facts += [] if precision == "fp32" else [precision]
        self.key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self.folder = (folder or cache_dir("attacked")) / self.key[:32]

    def shard(self, number: int) -> CacheShard:
        first = number * PER_SHARD
        places = list(range(first, min(first + PER_SHARD, len(self.images))))
        return CacheShard(self.folder / f"shard-{number:05d}.safetensors", places)

    def missing(self, places: Sequence[int]) -> list[CacheShard]:
        """The shards of these images that are not there, or are damaged."""
        shards = [self.shard(number) for number in sorted({place // PER_SHARD for place in places})]
        return [shard for shard in shards if not shard.is_whole(self._clean(shard))]

    def fill(self, missing: list[CacheShard], progress: Advance) -> None:
        """Make these shards; several processes take turns."""
        state = processes()
        remove_remains(self.folder)
        for turn, shard in enumerate(missing):
            if turn % state.num_processes == state.process_index:
                shown = BatchProgress(progress, len(shard.places), self.attack.steps)
                cosine = self._make(shard, shown.each_pass)
                shown.finish(f"un-hardened cosine {cosine:.2f}")
        state.wait_for_everyone()

    def row(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One image's adversarial version (1 3 H W) and clean features (1 T D)."""
        with safe_open(self.shard(place // PER_SHARD).path, "pt") as file:
            row = place % PER_SHARD
            adv, target = (file.get_slice(name)[row : row + 1] for name in ("adv", "target"))
        return adv.float() / 255, target.float()

    def cosines(self, places: Sequence[int]) -> list[float]:
        """The cosine of clean and attacked features without tokens, of all images in these shards."""
        values: list[float] = []
        for number in sorted({place // PER_SHARD for place in places}):
            with safe_open(self.shard(number).path, "pt") as file:
                values += json.loads(file.metadata()["cosine"])
        return values

    def _clean(self, shard: CacheShard) -> torch.Tensor:
        return torch.stack([self.images[place][0] for place in shard.places])

    def _make(self, shard: CacheShard, each_pass: Callable[[int], None]) -> float:
        clean = self._clean(shard)
        x = clean.to(next(self.model.parameters()).device)
        labels = None
        if self.attack.needs_labels:
            labels = label_tensor([self.images[place][1] for place in shard.places]).to(x.device)
        adv = self.attack.run(self.model, x, labels, precision=self.precision, each_pass=each_pass)
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


def label_tensor(labels: Sequence[Any]) -> torch.Tensor:
    """Labels (B,), one whole number an image."""
    if not all(isinstance(label, int) and label >= 0 for label in labels):
        raise InputError(
            "a label-using attack or a head that learns along needs labelled images; these have none"
        )
    return torch.tensor(labels)
