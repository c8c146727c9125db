"""One step of a training: forward and back on every part of a batch, then one step of the optimiser."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from timm.utils.model_ema import ModelEmaV3
from torch import nn

from robvit.attacks.compute import Compute
from robvit.data.augment import mix, seed_of
from robvit.errors import Diverged
from robvit.training.awp import awp
from robvit.training.computing import lowered, scaled
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import Loss
from robvit.training.optimizer import make_optimizer
from robvit.training.recipe import Recipe
from robvit.training.schedule import budget


class Objective(nn.Module):
    """Model and loss as one module, so that several processes see one pass forward and one back."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack) -> torch.Tensor:
        value: torch.Tensor = self.loss(self.model, x, y, attack)
        return value


class Stepper:
    """A model, its loss, its optimiser and its running average, moved step by step.

    All randomness of a step comes from seeds made of the run's seed and the step.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        recipe: Recipe,
        accelerator: Accelerator,
        *,
        compute: Compute,
        classes: int,
        folder: Path,
    ) -> None:
        self.model, self.loss, self.recipe, self.accelerator = model, loss, recipe, accelerator
        self.compute, self.classes, self.folder = compute, classes, folder
        self.objective = Objective(model, loss)
        # Buffers are copied: batch norm's are means already, and kept attention scales are no weights.
        self.ema = (
            ModelEmaV3(model, decay=recipe.ema, use_warmup=True, exclude_buffers=True) if recipe.ema else None
        )
        self.prepared, self.optimizer = accelerator.prepare(
            self.objective, make_optimizer(self.objective, recipe)
        )

    def advance(self, step: int, now: float, rate: float, parts: list[Any]) -> float:
        """Train on the parts of a batch at a learning rate; `now` is the time in epochs. The loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        updates = self.loss.updates_weights(math.floor(now))
        total = torch.zeros((), device=self.accelerator.device)
        with lowered(self.compute, self.model):
            for number, pair in enumerate(parts):
                total += self._part(step, now, number, len(parts), pair, updates=updates)
        value = float(self.accelerator.reduce(total, "mean"))
        self._check_finite("loss", value, step)
        if updates:
            trained = [p for p in self.objective.parameters() if p.requires_grad]
            norm = self.accelerator.clip_grad_norm_(trained, self.recipe.clip or math.inf)
            if scaled(self.compute) == "no":  # the scaler of fp16 leaves such steps out itself
                self._check_finite("length of the gradient", float(norm), step)
            self.optimizer.step()
        if self.ema is not None:  # also where a loss moved its own state, which may be the model's buffers
            self.ema.update(self.model, step=step)
        return value

    def _part(
        self, step: int, now: float, number: int, count: int, pair: Any, *, updates: bool
    ) -> torch.Tensor:
        """Forward and, where weights learn, back on part `number` of `count`; its share of the loss."""
        seed, turn, device = self.recipe.seed, step // self.recipe.replays, self.accelerator.device
        torch.manual_seed(seed_of(seed, "layers", step, number, self.accelerator.process_index))
        x, y = (tensor.to(device) for tensor in pair)
        mixed = seed_of(seed, "mix", step, number)
        x, y = mix(x, y, self.recipe.augment, classes=self.classes, seed=mixed)
        attack = InnerAttack(
            self.recipe.inner,
            *budget(self.recipe, now),
            part=number,
            seed=seed_of(seed, "attack", turn),
            replay=step % self.recipe.replays,
        )
        if not updates:
            share: torch.Tensor = self.objective(x, y, attack).detach() / count
            return share
        last = number == count - 1
        apart: AbstractContextManager[Any] = (
            nullcontext() if last else self.accelerator.no_sync(self.prepared)
        )
        with apart, self._worse_weights(x, y, attack, now):
            loss: torch.Tensor = self.prepared(x, y, attack) / count
            self.accelerator.backward(loss)
        return loss.detach()

    def _worse_weights(
        self, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack, now: float
    ) -> AbstractContextManager[None]:
        if not self.recipe.awp or now < self.recipe.awp_warmup:
            return nullcontext()

        def objective() -> torch.Tensor:
            with self.accelerator.autocast(), lowered(self.compute, self.model):
                value: torch.Tensor = self.objective(x, y, attack)
                return value

        def mean(gradient: torch.Tensor) -> torch.Tensor:
            averaged: torch.Tensor = self.accelerator.reduce(gradient, "mean")
            return averaged

        return awp(self.model, objective, attack, gamma=self.recipe.awp, mean=mean)

    def _check_finite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            raise Diverged(
                f"step {step}: the {what} is {value}; lower lr ({self.recipe.lr:g}), set clip, or warm up "
                f"longer; the last good state is kept in {self.folder}"
            )
