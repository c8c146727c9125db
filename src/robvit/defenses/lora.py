"""Low-rank factors that make a frozen network robust: trained beside its weights, kept in a small file.

Every linear layer W (O I) of the blocks becomes W + alpha/r B A, with A (r I) and B (O r). Merged into a
copy of the network they cost nothing at inference. They are no secret: they are meant to stand against an
attacker who has them.

Legend for shapes: r rank, I inputs, O outputs of a linear layer.
"""

from __future__ import annotations

import copy
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from robvit.backbones.model import Model
from robvit.errors import InputError, Unsupported, WrongBackbone
from robvit.files import described, read_tensors, written_whole

FORMAT = "robvit-lora-1"
ABOUT = {"alpha": float, "fingerprint": str, "settings": dict}
DOWN, UP = ".down", ".up"  # how A and B of a layer are called in a file
MOST_RANK = 4096
Pair = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class LoRA:
    """Factors (A, B) by the name of their layer, for the weights with this fingerprint.

    They are kept in bfloat16, in memory as in the file, so what is judged is what is shipped. `settings`
    tell how they were trained: eps, norm, image size, data digest, objective, steps, seed.
    """

    factors: dict[str, Pair] = field(repr=False)
    alpha: float
    fingerprint: str
    settings: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.factors:
            raise InputError("a LoRA needs factors for one linear layer or more, got none")
        if not math.isfinite(self.alpha):
            raise InputError(f"alpha must be a finite number, got {self.alpha}")
        ranks = {name: _rank(name, *pair) for name, pair in self.factors.items()}
        if len(set(ranks.values())) > 1:
            raise InputError(f"all layers must have one rank, got {sorted(set(ranks.values()))}")
        small = {name: (a.bfloat16(), b.bfloat16()) for name, (a, b) in self.factors.items()}
        if not all(torch.isfinite(t).all() for pair in small.values() for t in pair):
            raise InputError("factors must be finite, some are not; train or fetch them again")
        object.__setattr__(self, "factors", small)

    @property
    def rank(self) -> int:
        """r, the rank of every change."""
        return len(next(iter(self.factors.values()))[0])

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return sum(t.numel() for pair in self.factors.values() for t in pair)

    def __str__(self) -> str:
        what = f"rank {self.rank} on {len(self.factors)} linear layers, {2 * self.size / 1e6:.1f} MB"
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
        if self.fingerprint != (fingerprint := model.fingerprint()):
            raise WrongBackbone(
                f"these factors belong to weights with fingerprint {self.fingerprint[:12]}, {model.name} has "
                f"{fingerprint[:12]}; a LoRA only works on the exact weights it was trained on"
            )

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
                weight.copy_(_changed(weight, down, up, self.alpha / self.rank))
        merged.original_fingerprint = model.original_fingerprint or self.fingerprint
        return merged

    def save(self, path: str | Path) -> None:
        """Write the factors as safetensors, with the fingerprint of their weights and how they came about."""
        tensors = {}
        for name, (down, up) in self.factors.items():
            tensors[name + DOWN] = down.detach().cpu().contiguous()
            tensors[name + UP] = up.detach().cpu().contiguous()
        about = {name: getattr(self, name) for name in ABOUT}
        with written_whole(path) as aside:
            save_file(tensors, aside, {"format": FORMAT, "about": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path) -> LoRA:
        """Factors from the file that `save` wrote."""
        tensors, facts = read_tensors(path, "a LoRA file")
        if facts.get("format") != FORMAT:
            raise InputError(
                f"{path} does not hold a LoRA of format {FORMAT}; `robvit robustify --method lora` writes one"
            )
        about = described(facts, "about", path, ABOUT)
        names = [name.removesuffix(DOWN) for name in tensors if name.endswith(DOWN)]
        if sorted(tensors) != sorted(name + end for name in names for end in (DOWN, UP)):
            raise InputError(f"{path} is damaged: every layer must have {DOWN} and {UP}; train it again")
        try:
            return cls({name: (tensors[name + DOWN], tensors[name + UP]) for name in names}, **about)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


class LowRank(nn.Module):
    """A frozen linear layer whose weight is W + scale B A, with A and B to be trained; B starts at zero."""

    def __init__(self, linear: nn.Linear, factors: Factors, scale: float) -> None:
        super().__init__()
        self.linear, self.factors, self.scale = linear, factors, scale

    @property
    def weight(self) -> torch.Tensor:
        """The changed weight (O I); some networks of timm take it from their layers."""
        return _changed(self.linear.weight, self.factors.down, self.factors.up, self.scale)

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias (O,), as it was."""
        return self.linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down, up = self.factors.down, self.factors.up
        if torch.is_grad_enabled() and up.requires_grad:
            # The gradient of the whole weight, which nobody needs, would cost as much as the layer itself.
            out: torch.Tensor = self.linear(x) + self.scale * F.linear(F.linear(x, down), up)
            return out
        return F.linear(x, self.weight, self.linear.bias)  # attacks: cheaper than two more products


class Factors(nn.Module):
    """A (r I), small and random, and B (O r), zero, so that nothing is changed at first."""

    def __init__(self, linear: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = linear.in_features**-0.5
        down = torch.rand(rank, linear.in_features, generator=generator) * 2 * bound - bound
        self.down = nn.Parameter(down)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))


def trainable(
    model: Model, rank: int, alpha: float, *, blocks: int | None = None, seed: int = 0
) -> tuple[Model, nn.ModuleDict]:
    """A frozen copy of the model with factors beside its linear layers, and the factors, to be trained.

    Their names are those of the layers with / for the dots, which torch does not allow there.
    """
    if not 1 <= rank <= MOST_RANK:
        raise InputError(f"rank must be a number from 1 to {MOST_RANK}, got {rank}")
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    parts = nn.ModuleDict()
    for name in linear_layers(twin, blocks):
        above, _, own = name.rpartition(".")
        linear: Any = twin.net.get_submodule(name)
        factors = Factors(linear, rank, generator).to(linear.weight.device)
        setattr(twin.net.get_submodule(above), own, LowRank(linear, factors, alpha / rank))
        parts[name.replace(".", "/")] = factors
    return twin, parts


def lora_of(factors: nn.ModuleDict, alpha: float, fingerprint: str, settings: dict[str, Any]) -> LoRA:
    """Trained factors of a `trainable` copy, as a LoRA to save and merge."""
    pairs = {}
    for name, part in factors.items():
        assert isinstance(part, Factors)
        pairs[name.replace("/", ".")] = part.down.detach().cpu(), part.up.detach().cpu()
    return LoRA(pairs, float(alpha), fingerprint, settings)


def linear_layers(model: Model, blocks: int | None = None) -> list[str]:
    """The names of all linear layers in the first `blocks` blocks of a model's network, or in all."""
    chosen = first_blocks(model, blocks)
    names = [
        f"{prefix}.{name}"
        for prefix, block in chosen.items()
        for name, part in block.named_modules()
        if isinstance(part, nn.Linear)
    ]
    if not names:
        raise Unsupported(
            f"{model.name} has no linear layers in {len(chosen)} blocks, so there is nothing to put factors "
            "beside; use --method full, or a transformer"
        )
    return names


def first_blocks(model: Model, count: int | None = None) -> dict[str, nn.Module]:
    """The first `count` blocks of a model's network by name, or all of them."""
    blocks = model.family.blocks(model.net)
    if count is not None and not 1 <= count <= len(blocks):
        raise InputError(f"blocks must be a number from 1 to {len(blocks)}, {model.name}'s own, got {count}")
    names = {id(part): name for name, part in model.net.named_modules()}
    return {names[id(block)]: block for block in blocks[:count]}


def _changed(weight: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    return weight + (scale * (up @ down)).to(weight.dtype)


def _rank(name: str, down: torch.Tensor, up: torch.Tensor) -> int:
    """r of a layer's factors, if they are a pair."""
    fits = down.ndim == up.ndim == 2 and len(down) == up.shape[1] >= 1
    if not fits or not (down.is_floating_point() and up.is_floating_point()):
        got = f"{down.dtype} {tuple(down.shape)} and {up.dtype} {tuple(up.shape)}"
        raise InputError(f"factors of {name} must be floats (r I) and (O r) with r >= 1, got {got}")
    return len(down)
