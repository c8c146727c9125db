"""Low-rank factors that make a frozen network robust: trained beside its weights, kept in a small file.

Every linear layer W (O I) of the blocks becomes W + alpha/r B A, with A (r I) and B (O r). Merged into a
copy of the network they cost nothing at inference. They are no secret: they are meant to stand against an
attacker who has them. `low_rank` trains them.

Legend for shapes: r rank, I inputs, O outputs of a linear layer.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import nn

from robvit.backbones.model import Model
from robvit.backbones.trained_on import LORA, TrainedOn
from robvit.errors import InputError, WrongBackbone
from robvit.files import written_whole
from robvit.sharing import Shareable
from robvit.tensor_files import FORMATS, check_format, described, read_tensors

ABOUT = {"alpha": float, "fingerprint": str, "settings": dict}
DOWN, UP = ".down", ".up"  # how A and B of a layer are called in a file
WHOLE = ".whole"  # and a parameter that was trained as it is
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class LoRA(Shareable):
    """Factors (A, B) by the name of their layer, for the weights with this fingerprint.

    They are kept in bfloat16, in memory as in the file, so what is judged is what is shipped. `settings`
    tell how they were trained: eps, norm, image size, data digest, objective, steps, seed. `whole` are
    parameters that take the place of the original's, by name: normalisations and layer scales, if they
    learned along; these are small and kept in full precision.
    """

    shared_as: ClassVar[str] = "lora"
    factors: dict[str, Pair] = field(repr=False)
    alpha: float
    fingerprint: str
    settings: dict[str, Any] = field(default_factory=dict, repr=False)
    whole: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.factors:
            raise InputError("a LoRA needs factors for one linear layer or more, got none")
        if not math.isfinite(self.alpha):
            raise InputError(f"alpha must be a finite number, got {self.alpha}")
        ranks = {name: _rank(name, *pair) for name, pair in self.factors.items()}
        if len(set(ranks.values())) > 1:
            raise InputError(f"all layers must have one rank, got {sorted(set(ranks.values()))}")
        small = {name: (a.bfloat16(), b.bfloat16()) for name, (a, b) in self.factors.items()}
        for name, value in self.whole.items():
            if not value.is_floating_point() or value.ndim > 1:
                raise InputError(f"{name} must be floats (n,), got {value.dtype} {tuple(value.shape)}")
        TrainedOn.told_by(self.settings)  # refuses what no images can be
        every = [*(t for pair in small.values() for t in pair), *self.whole.values()]
        if not all(torch.isfinite(t).all() for t in every):
            raise InputError("factors must be finite, some are not; train or fetch them again")
        object.__setattr__(self, "factors", small)

    @property
    def trained_on(self) -> TrainedOn:
        """The images they were trained on."""
        return TrainedOn.told_by(self.settings)

    @property
    def rank(self) -> int:
        """r, the rank of every change."""
        return len(next(iter(self.factors.values()))[0])

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        factors = sum(t.numel() for pair in self.factors.values() for t in pair)
        return factors + sum(t.numel() for t in self.whole.values())

    def digest(self) -> str:
        """A hash of every number it holds."""
        found = hashlib.sha256()
        for name in sorted(self.factors):
            for part in self.factors[name]:
                found.update(part.float().numpy().tobytes())
        for name in sorted(self.whole):
            found.update(self.whole[name].float().numpy().tobytes())
        return found.hexdigest()

    def __str__(self) -> str:
        size = 2 * self.size + 2 * sum(t.numel() for t in self.whole.values())  # those take four bytes
        what = f"rank {self.rank} on {len(self.factors)} linear layers, {size / 1e6:.1f} MB"
        what += f", with {len(self.whole)} parameters of normalisations" if self.whole else ""
        return f"LoRA of {what}, for weights {self.fingerprint[:12]}"

    def check(self, model: Model) -> None:
        """Refuse a network other than the one, with the very weights, that the factors were trained on."""
        for name, (down, up) in self.factors.items():
            shape = (len(up), down.shape[1])
            try:
                layer = model.net.get_submodule(name)
            except AttributeError:
                layer = None
            if not isinstance(layer, nn.Linear) or tuple(layer.weight.shape) != shape:
                got = tuple(layer.weight.shape) if isinstance(layer, nn.Linear) else "no such linear layer"
                raise WrongBackbone(
                    f"these factors are for a linear layer {name} {shape}, {model.name} has {got}; "
                    "load the network they were trained on"
                )
        own = dict(model.net.named_parameters())
        for name, value in self.whole.items():
            if name not in own or own[name].shape != value.shape:
                got = tuple(own[name].shape) if name in own else "no such parameter"
                raise WrongBackbone(
                    f"this LoRA has a parameter {name} {tuple(value.shape)}, {model.name} has {got}; "
                    "load the network it was trained on"
                )
        if self.fingerprint != (fingerprint := model.fingerprint()):
            raise WrongBackbone(
                f"these factors belong to weights with fingerprint {self.fingerprint[:12]}, {model.name} has "
                f"{fingerprint[:12]}; a LoRA only works on the exact weights it was trained on"
            )
        self.trained_on.check(LORA, model)

    def merge(self, model: Model) -> Model:
        """A new model whose weights are W + alpha/r B A; it takes the heads of the original."""
        if model.hardened or model.adapters is not None:
            raise InputError(
                "tokens and adapters belong to exact weights, which merging changes; merge first, then add "
                "those that were trained on the merged model"
            )
        self.check(model)
        merged = copy.deepcopy(model)
        with torch.no_grad():
            for name, (down, up) in self.factors.items():
                weight: Any = merged.net.get_submodule(name).weight
                down, up = (t.to(weight.device, torch.float32) for t in (down, up))
                weight.copy_(merged_weight(weight, down, up, self.alpha / self.rank))
            for name, value in self.whole.items():
                merged.net.get_parameter(name).copy_(value)
        return merged.replace(
            original=model.original_fingerprint or self.fingerprint,
            usual_resize=self.trained_on.resize or model.usual_resize,
        )

    def shared_facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            name: self.settings[name] for name in ("eps", "norm", "loss") if name in self.settings
        }
        facts |= {"model": Path(str(self.settings.get("model", ""))).name} | self.trained_on.settings()
        return {"fingerprint": self.fingerprint, "rank": self.rank, "alpha": self.alpha, **facts}

    def write_shared(self, path: Path) -> None:
        named = {"model": Path(str(self.settings["model"])).name} if "model" in self.settings else {}
        replace(self, settings=self.settings | named).save(path)

    @classmethod
    def read_shared(cls, path: Path) -> LoRA:
        return cls.load(path)

    def save(self, path: str | Path) -> None:
        """Write the factors as safetensors, with the fingerprint of their weights and how they came about."""
        tensors = {}
        for name, (down, up) in self.factors.items():
            tensors[name + DOWN] = down.detach().cpu().contiguous()
            tensors[name + UP] = up.detach().cpu().contiguous()
        tensors |= {name + WHOLE: value.detach().cpu().contiguous() for name, value in self.whole.items()}
        about = {name: getattr(self, name) for name in ABOUT}
        with written_whole(path) as aside:
            save_file(tensors, aside, {"format": FORMATS["lora"].word, "about": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path) -> LoRA:
        """Factors from the file that `save` wrote."""
        tensors, facts = read_tensors(path, "a LoRA file")
        check_format(path, facts, "lora")
        about = described(facts, "about", path, ABOUT)
        whole = {name.removesuffix(WHOLE): t for name, t in tensors.items() if name.endswith(WHOLE)}
        tensors = {name: t for name, t in tensors.items() if not name.endswith(WHOLE)}
        names = [name.removesuffix(DOWN) for name in tensors if name.endswith(DOWN)]
        if sorted(tensors) != sorted(name + end for name in names for end in (DOWN, UP)):
            raise InputError(f"{path} is damaged: every layer must have {DOWN} and {UP}; train it again")
        try:
            return cls(
                {name: (tensors[name + DOWN], tensors[name + UP]) for name in names}, **about, whole=whole
            )
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def merged_weight(weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    """W + scale B A (O I)."""
    return weight + (scale * (up @ down)).to(weight.dtype)


def _rank(name: str, down: torch.Tensor, up: torch.Tensor) -> int:
    """r of a layer's factors, if they are a pair."""
    fits = down.ndim == up.ndim == 2 and len(down) == up.shape[1] >= 1
    if not fits or not (down.is_floating_point() and up.is_floating_point()):
        got = f"{down.dtype} {tuple(down.shape)} and {up.dtype} {tuple(up.shape)}"
        raise InputError(f"factors of {name} must be floats (r I) and (O r) with r >= 1, got {got}")
    return len(down)
