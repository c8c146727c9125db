"""Optimisers by name; what is a vector or says so itself is not decayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from robvit.errors import InputError
from robvit.training.recipe import Recipe


def make_optimizer(module: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW or SGD over what needs gradients; biases, norms, positions and tokens are not decayed."""
    spared = _spared(module)
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not named:
        raise InputError("nothing is left to train: every parameter is frozen")
    plain = [p for n, p in named if p.ndim <= 1 or n in spared]
    decayed = [p for n, p in named if not (p.ndim <= 1 or n in spared)]
    pairs = ((decayed, recipe.weight_decay), (plain, 0.0))
    groups = [{"params": held, "weight_decay": decay} for held, decay in pairs if held]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.peak_lr, momentum=recipe.momentum)
    return torch.optim.AdamW(groups, lr=recipe.peak_lr)


def _spared(module: nn.Module) -> set[str]:
    """The names that timm's networks ask not to decay."""
    found = set()
    for prefix, part in module.named_modules():
        ask: Any = getattr(part, "no_weight_decay", None)
        if callable(ask):
            found |= {f"{prefix}.{name}" if prefix else name for name in ask()}
    return found
