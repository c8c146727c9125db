"""What changes over time, as pure functions of the time in epochs; nothing here has a state."""

from __future__ import annotations

import math

from robvit.training.recipe import Recipe


def learning_rate(recipe: Recipe, time: float) -> float:
    """The learning rate after `time` epochs: warm-up, the schedule, then cool-down at its end."""
    peak = recipe.peak_lr
    if time < recipe.warmup:
        return recipe.warmup_lr + (peak - recipe.warmup_lr) * time / recipe.warmup
    if recipe.schedule == "constant":
        return peak
    if recipe.schedule == "drops":
        return peak * math.prod(factor for epoch, factor in recipe.drops if time >= epoch)
    # The cosine spans the warm-up too, as timm's does; the line starts at its end.
    if recipe.schedule == "cosine":
        left = (1 + math.cos(math.pi * min(time / recipe.epochs, 1.0))) / 2
    else:
        left = max(0.0, (recipe.epochs - time) / (recipe.epochs - recipe.warmup))
    return recipe.min_lr + (peak - recipe.min_lr) * left


def budget(recipe: Recipe, time: float) -> tuple[float, float]:
    """The attack's eps and the size of its step after `time` epochs."""
    full = recipe.inner.eps
    grown = 1.0
    if recipe.eps_warmup and time < recipe.eps_warmup:
        grown = (math.floor(time) if recipe.published_warmup else time) / recipe.eps_warmup
    eps = full * grown
    return eps, recipe.inner.relative_step * (full if recipe.published_warmup else eps)
