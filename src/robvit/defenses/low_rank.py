"""A network whose linear layers learn low-rank changes, and whose normalisations may learn along.

Legend for shapes: r rank, I inputs, O outputs of a linear layer.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers.layer_scale import LayerScale
from torch import nn

from robvit.backbones.model import Model
from robvit.defenses.lora import LoRA, merged_weight
from robvit.errors import InputError, Unsupported

MOST_RANK = 4096


class LowRank(nn.Module):
    """A frozen linear layer whose weight is W + scale B A, with A and B to be trained; B starts at zero."""

    def __init__(self, linear: nn.Linear, factors: Factors, scale: float) -> None:
        super().__init__()
        self.linear, self.factors, self.scale = linear, factors, scale

    @property
    def weight(self) -> torch.Tensor:
        """The changed weight (O I); some networks of timm take it from their layers."""
        return merged_weight(self.linear.weight, self.factors.down, self.factors.up, self.scale)

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


class Whole(nn.Module):
    """A parameter of the network that is trained as it is."""

    def __init__(self, value: nn.Parameter) -> None:
        super().__init__()
        self.value = value.requires_grad_()


def trainable(
    model: Model,
    rank: int,
    alpha: float,
    *,
    blocks: int | None = None,
    norms: bool = False,
    seed: int = 0,
    start: LoRA | None = None,
) -> tuple[Model, nn.ModuleDict]:
    """A frozen copy of the model with factors beside its linear layers, and the factors, to be trained.

    With `norms` the normalisations and layer scales are trained too. With `start` they go on from what an
    earlier training left. The names are those of layers and parameters with / for the dots, which torch does
    not allow there.
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
    for name in norm_parameters(twin, blocks) if norms else ():
        parts[name.replace(".", "/")] = Whole(twin.net.get_parameter(name))
    if start is not None:
        start.check(model)
        _go_on(parts, start, rank, alpha)
    return twin, parts


@torch.no_grad()
def _go_on(parts: nn.ModuleDict, start: LoRA, rank: int, alpha: float) -> None:
    """Put the numbers of an earlier LoRA into parts of the same shape."""
    known: dict[str, tuple[torch.Tensor, ...]] = {**start.factors}
    known |= {name: (value,) for name, value in start.whole.items()}
    named = {key.replace("/", "."): part for key, part in parts.items()}
    if set(known) != set(named) or (start.rank, start.alpha) != (rank, alpha):
        raise InputError(
            f"factors to go on from have rank {start.rank}, alpha {start.alpha:g} and {len(known)} parts, "
            f"wanted are rank {rank}, alpha {alpha:g} and {len(named)}; take their rank, blocks and norms"
        )
    for name, part in named.items():
        for parameter, value in zip(part.parameters(), known[name], strict=True):
            parameter.copy_(value)


def lora_of(factors: nn.ModuleDict, alpha: float, fingerprint: str, settings: dict[str, Any]) -> LoRA:
    """Trained factors of a `trainable` copy, as a LoRA to save and merge."""
    pairs, whole = {}, {}
    for key, part in factors.items():
        name = key.replace("/", ".")
        if isinstance(part, Whole):
            whole[name] = part.value.detach().cpu().clone()
            continue
        assert isinstance(part, Factors)
        pairs[name] = part.down.detach().cpu(), part.up.detach().cpu()
    return LoRA(pairs, float(alpha), fingerprint, settings, whole)


def norm_parameters(model: Model, blocks: int | None = None) -> list[str]:
    """The names of the parameters of normalisations and layer scales, in the first blocks or everywhere."""
    parts = dict(first_blocks(model, blocks))
    last = getattr(model.net, "norm", None)
    if blocks is None and isinstance(last, nn.Module):
        parts["norm"] = last
    return [
        ".".join(filter(None, (prefix, name, own)))
        for prefix, block in parts.items()
        for name, part in block.named_modules()
        if isinstance(part, nn.LayerNorm | LayerScale)
        for own, _ in part.named_parameters(recurse=False)
    ]


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
