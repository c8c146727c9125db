"""Judging on held-out images while training, and the guard against one-step collapse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import nn

from robvit.attacks.core import frozen
from robvit.data import ImageDataset
from robvit.threat import Threat
from robvit.training.inner_attack import ascend
from robvit.training.losses import Loss
from robvit.training.recipe import Recipe

BATCH = 250  # images judged in one pass
GAP = 0.25  # one-step over multi-step accuracy: healthy networks show about 0.1


@dataclass(frozen=True)
class Scores:
    """Means over held-out images: untouched, after a short attack (of one step for most losses) and after
    many steps of the full budget, of several starts the worst."""

    clean: float
    one_step: float
    robust: float

    def doubt(self, floor: float, short: str = "one step") -> str:
        """What is wrong with the training, in words, or nothing; accuracy up to `floor` tells nothing.

        `short` is what the short attack is called.
        """
        if self.one_step > self.clean + 0.02 and self.clean > floor:
            return (
                f"label leaking: images attacked by {short} are recognised better ({self.one_step:.1%}) "
                f"than clean ones ({self.clean:.1%}); the network reads the label off the attack"
            )
        if self.one_step - self.robust > GAP and self.robust < self.one_step / 2:
            return (
                f"catastrophic overfitting: {self.one_step:.1%} are correct after {short}, "
                f"{self.robust:.1%} after many; use more inner steps, a wide start or a longer eps_warmup"
            )
        return ""


def judge(
    model: nn.Module, loss: Loss, images: ImageDataset, recipe: Recipe, accelerator: Accelerator
) -> Scores:
    """How the model does within the full budget, whatever the warm-up; all processes share the work."""
    threat = Threat(recipe.inner.norm, recipe.inner.eps)
    share = images.take(range(accelerator.process_index, len(images), accelerator.num_processes))
    few, share_of_eps = loss.short_attack(recipe.inner)
    short = [(few, share_of_eps * threat.eps, 0)]
    size = 2.5 * threat.eps / recipe.judge_steps
    long = [(recipe.judge_steps, size, seed) for seed in range(recipe.judge_starts)]
    sums = torch.zeros(3, dtype=torch.float64)
    with frozen(model):
        for x, y in share.batches(BATCH) if len(share) else ():
            x, y = x.to(accelerator.device), y.to(accelerator.device)
            target = loss.target(x, y)
            tries = [[x]]
            with loss.seeing(model, x):
                for attacks in (short, long):
                    tries.append([_attacked(model, loss, x, target, threat, *one) for one in attacks])
                with torch.no_grad():
                    sums += torch.stack([_worst(model, loss, points, target) for points in tries])
    total = accelerator.reduce(sums.to(accelerator.device, torch.float32), "sum").tolist()
    return Scores(*(value / len(images) for value in total))


def _worst(model: nn.Module, loss: Loss, points: list[torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """The sum over images of the lowest score at one of the points (B 3 H W)."""
    scores = torch.stack([loss.judge(model(point), target).double() for point in points])
    return scores.amin(0).sum().cpu()


def _attacked(
    model: nn.Module,
    loss: Loss,
    x: torch.Tensor,
    target: torch.Tensor,
    threat: Threat,
    steps: int,
    size: float,
    seed: int,
) -> torch.Tensor:
    if threat.eps == 0:
        return x
    return ascend(model, x, target, threat, steps=steps, step_size=size, loss=loss.attack_loss, seed=seed)
