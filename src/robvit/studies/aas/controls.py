"""Scales that nobody searched for, which stand beside those of a search: random ones, and one factor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from robvit.attacks import find_scales
from robvit.attacks.aas import FACTORS
from robvit.attention import attention_layers
from robvit.data import ImageDataset
from robvit.measuring.batches import BatchRunner
from robvit.progress import progress
from robvit.threat import Threat

RANDOM, FACTOR = "random scales", "one factor"
CHOOSE, FACTOR_STEPS = 64, 20  # images on which one factor for all blocks is chosen, and GAMA's steps there


@dataclass
class Unsearched:
    """Scales of a model that nobody searched for, chosen on images that are not judged; `memory` keeps what
    became of them at each factor."""

    model: nn.Module
    learn: ImageDataset
    threat: Threat
    steps: int
    seed: int
    memory: Path
    space: str = "linear"
    draws: int = 1

    @property
    def depth(self) -> int:
        return len(attention_layers(self.model))

    def controls(self, blocks: int | None = None) -> dict[str, list[list[float]]]:
        """Random scales, as a search starts from, and one factor for all blocks, or for the first so many."""
        count = self.depth if blocks is None else blocks
        given: dict[str, Any] = {"steps": 0, "blocks": count, "space": self.space}
        first = next(iter(self.learn.batches(1)))
        # Others than those from which the search itself starts, whose seed is the study's own.
        seeds = range(self.seed + 1, self.seed + 1 + self.draws)
        drawn = [list(find_scales(self.model, [first], seed=seed, **given).values) for seed in seeds]
        one = [self.best_factor] * count + [1.0] * (self.depth - count)
        return {RANDOM: drawn, FACTOR: [one]}

    @cached_property
    def best_factor(self) -> float:
        """The factor other than 1 at which GAMA leaves the least accuracy."""
        x, y = self.learn.take(range(min(CHOOSE, len(self.learn)))).tensors()
        gama = {"steps": min(FACTOR_STEPS, self.steps)}
        runner = BatchRunner(self.model, self.threat, "gama", gama, self.seed, self.memory)
        left = {}
        with progress("choosing one factor", total=len(FACTORS) - 1) as advance:
            for factor in (f for f in FACTORS if f != 1):
                given = {"base": "gama", "factors": factor, **gama}
                left[factor] = sum(runner.run("aas_uniform", x, y, given, self.seed).correct)
                advance()
        return min(left, key=lambda f: left[f])
