"""The attack inside a training step."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from robvit.attacks.core import ATTACKS, Model, frozen, gradient, per_image_uniform, refuse_targets
from robvit.attacks.losses import Loss as AttackLoss
from robvit.attacks.losses import objective_of
from robvit.threat import Threat
from robvit.training.recipe import ASCENT, Inner

TINY = 1e-3  # TRADES and MART start from normal noise of this size


class InnerAttack:
    """An attack with its budget and seed: `attack(model, x, target, loss)` gives adv (B 3 H W).

    It remembers what it made, so that a loss computed `again` meets the same images. `replay` counts
    how often the batch has been trained on before, `part` which of its parts this is. A loss may ask for
    `more` steps than the settings say, which are shorter by as much: the way stays as long.
    """

    def __init__(
        self, settings: Inner, eps: float, step_size: float, *, seed: int, replay: int = 0, part: int = 0
    ) -> None:
        refuse_targets(settings.settings)
        self.settings = settings
        self.threat = Threat(settings.norm, eps)
        self.step_size = step_size
        self.seed = seed
        self.replay = replay
        self.part = part
        self.more = 0
        self._made: list[torch.Tensor] = []
        self._held: Iterator[torch.Tensor] | None = None

    def __call__(
        self, model: Model, x: torch.Tensor, target: torch.Tensor, loss: str | AttackLoss = "cross_entropy"
    ) -> torch.Tensor:
        if self._held is not None:
            return next(self._held)
        self._made.append(self._make(model, x, target, loss))
        return self._made[-1]

    def again(self) -> None:
        """Give what was made before, in the same order, instead of attacking anew."""
        self._held = iter(self._made)

    def random(self, x: torch.Tensor) -> torch.Tensor:
        """Where the attack starts: (B 3 H W)."""
        return _start(x, self.threat, self.settings.start, self.seed)

    def _make(
        self, model: Model, x: torch.Tensor, target: torch.Tensor, loss: str | AttackLoss
    ) -> torch.Tensor:
        inner = self.settings.model_copy(update={"steps": self.settings.steps + self.more})
        step_size = self.step_size * self.settings.steps / inner.steps if self.more else self.step_size
        if self.threat.eps == 0:
            return x.detach()
        if inner.attack == ASCENT:
            return ascend(
                model,
                x,
                target,
                self.threat,
                steps=inner.steps,
                step_size=step_size,
                start=inner.start,
                project=inner.project,
                loss=loss,
                seed=self.seed,
            )
        takes = ATTACKS.info(inner.attack).defaults
        ours = {
            "steps": inner.steps,
            "step_size": step_size,
            "loss": loss,
            "seed": self.seed,
            "early_stop": False,
        }
        settings = {name: value for name, value in ours.items() if name in takes} | inner.settings
        return ATTACKS[inner.attack](model, x, target, self.threat, **settings)


def ascend(
    model: Model,
    x: torch.Tensor,
    target: torch.Tensor,
    threat: Threat,
    *,
    steps: int,
    step_size: float,
    start: str = "uniform",
    project: bool = True,
    loss: str | AttackLoss = "cross_entropy",
    seed: int = 0,
) -> torch.Tensor:
    """The last point of steepest ascent, unjudged: n passes forward and back, not one more. -> (B 3 H W).

    The model is in eval mode and its parameters need no gradients, as in every attack.
    """
    objective = objective_of(loss, target)
    rows = torch.arange(len(x), device=x.device)
    with torch.no_grad(), frozen(model):
        point = _start(x, threat, start, seed)
        for step in range(steps):
            _, _, grad = gradient(model, point, lambda output, step=step: objective(output, rows, step))  # type: ignore[misc]
            point = point + threat.steepest(grad, step_size)
            point = threat.project(x, point) if project else point.clamp(0, 1)
    return point


def _start(x: torch.Tensor, threat: Threat, kind: str, seed: int) -> torch.Tensor:
    if kind == "none":
        return x.detach().clone()
    noise = per_image_uniform(x, seed, "training")
    if kind == "tiny":
        normal = torch.erfinv(2 * noise.clamp(1e-6, 1 - 1e-6) - 1) * 2**0.5
        return threat.project(x, x + TINY * normal)
    return (threat.times(2) if kind == "wide" else threat).random(x, noise)
