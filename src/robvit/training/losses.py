"""What trainings minimise. A loss is a function `(model, x, y, attack, *, settings) -> scalar`.

x (B 3 H W) in [0,1]; y (B,) labels, or (B K) probabilities where images were mixed; `attack` is the
inner attack of the step. A loss that owns a state, chooses what is trained or wants to be called every
epoch is a class on `Loss`; its buffers are saved, resumed and kept with the weights. (K classes, D width.)
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks import losses as objectives
from robvit.attacks.losses import Loss as AttackLoss
from robvit.data import ImageDataset
from robvit.record import Table
from robvit.registry import NoInfo, Registry, unknown
from robvit.training.inner_attack import InnerAttack
from robvit.training.recipe import Inner

if TYPE_CHECKING:
    from robvit.training.validation import Scores

LossFunction = Callable[..., torch.Tensor]
LOSSES: Registry[Any, NoInfo] = Registry("training loss", NoInfo, ("model", "x", "y", "attack"))


class Loss(nn.Module):
    """What the loop asks of a loss; the defaults are those of a classifier trained whole."""

    needs_labels = True
    needs_classifier = True  # whether the output is one logit a class
    attack_loss: str | AttackLoss = "cross_entropy"
    measure = "accuracy"  # what `judge` measures

    def trains(self, name: str) -> bool:
        """Whether the model's parameter of this name is trained; asked once, before the first step."""
        return True

    def on_epoch(self, model: nn.Module, epoch: int) -> None:
        """Runs before the first step of every epoch, counted from 0; what it changes must be a buffer."""

    def updates_weights(self, epoch: int) -> bool:
        """Whether the batch at hand trains weights, or the loss only works on its own state."""
        return True

    def target(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """What the judging attack moves the output away from, for clean images and their labels."""
        return y

    def seeing(self, model: nn.Module, x: torch.Tensor) -> AbstractContextManager[None]:
        """What holds while a model is judged by these images: it sees all of them, unless some is hidden."""
        return nullcontext()

    def judge(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """How good each output is, from 0 to 1: (B,); the mean chooses the best checkpoint."""
        return (output.argmax(1) == target).float()

    def short_attack(self, inner: Inner) -> tuple[int, float]:
        """The short one of the judging attacks: how many steps, each of which share of eps."""
        return 1, 1.0

    def doubt(self, seen: Scores, classes: int) -> str:
        """What a validation says is wrong, or nothing; a loss may answer by changing its buffers."""
        return seen.doubt(by_guessing(classes) if self.needs_labels else 1.0)

    def keeps(self, seen: Scores) -> bool:
        """Whether a validation saw kept what was asked to be; weights that keep it are preferred."""
        return True

    def tables(self) -> list[Table]:
        """What the training's record should tell of the loss's own state."""
        return []

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        raise NotImplementedError


class _Function(Loss):
    """A loss that is a function and owns nothing."""

    def __init__(self, function: LossFunction, settings: dict[str, Any]) -> None:
        super().__init__()
        self.function = functools.partial(function, **settings)

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        return self.function(model, x, y, attack)


class OwnAttack(Loss):
    """Another loss with labels, which the training's own attack judges in place of one of one step.

    Where training attacks in a few steps, it is from those that a network may learn to hide.
    """

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss

    def short_attack(self, inner: Inner) -> tuple[int, float]:
        return inner.steps, inner.relative_step

    def doubt(self, seen: Scores, classes: int) -> str:
        return seen.doubt(by_guessing(classes), "the training's own attack")

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        value: torch.Tensor = self.loss(model, x, y, attack)
        return value


def by_guessing(classes: int) -> float:
    """The accuracy that guessing may reach, and that tells nothing."""
    return 1.5 / classes if classes else 1.0


def make_loss(name: str, model: nn.Module, images: ImageDataset, settings: dict[str, Any]) -> Loss:
    """A loss by its name, with the model as it starts and the images it will learn from."""
    entry: Any = LOSSES[name]
    known = [p.name for p in inspect.signature(entry).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of the loss {name}", setting, known or ["none"])
    is_class = isinstance(entry, type)
    made: Loss = entry(model, images, **settings) if is_class else _Function(entry, settings)
    return made


def hard(y: torch.Tensor) -> torch.Tensor:
    """Labels (B,) from labels or from probabilities (B K)."""
    return y if y.ndim == 1 else y.argmax(1)


@LOSSES.add()
def standard(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack, *, smoothing: float = 0.0
) -> torch.Tensor:
    """Cross-entropy on clean images."""
    return F.cross_entropy(model(x), y, label_smoothing=smoothing)


@LOSSES.add()
def pgd_at(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack, *, smoothing: float = 0.0
) -> torch.Tensor:
    """Cross-entropy on attacked images only (1706.06083)."""
    return F.cross_entropy(model(attack(model, x, y)), y, label_smoothing=smoothing)


@LOSSES.add()
def trades(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    attack: InnerAttack,
    *,
    beta: float = 6.0,
    smoothing: float = 0.0,
) -> torch.Tensor:
    """Clean cross-entropy plus beta times the divergence of attacked from clean answers (1901.08573).

    The attack meets the clean probabilities as constants; the divergence itself pulls at both sides.
    """
    clean = model(x)
    adv = attack(model, x, clean.detach().softmax(1), "kl")
    apart = objectives.kl(model(adv), clean.softmax(1)).mean()
    return F.cross_entropy(clean, y, label_smoothing=smoothing) + beta * apart


@LOSSES.add()
def mart(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack, *, beta: float = 6.0
) -> torch.Tensor:
    """Boosted cross-entropy on attacked images, and divergence where the clean answer is unsure (MART)."""
    labels = hard(y)
    adv = attack(model, x, labels)
    clean, attacked = model(x).softmax(1), model(adv)
    likely = attacked.softmax(1)
    margin = -(1.0001 - objectives.best_other(likely, labels)).log().mean()
    unsure = 1 - clean.gather(1, labels[:, None])[:, 0]
    apart: torch.Tensor = (objectives.kl(attacked, clean) * unsure).mean()
    return F.cross_entropy(attacked, labels) + margin + beta * apart


@LOSSES.add("free")
class Free(Loss):
    """Free training (1904.12843): one pass serves the weights and the perturbation, replay after replay.

    It takes `replays` from the recipe. The perturbation of a batch starts from random noise and grows
    by a step of the whole budget with every replay. The authors carry it over from batch to batch
    instead; a start of its own keeps a batch what it is wherever a run is resumed or shared out.
    """

    def __init__(self, model: nn.Module, images: ImageDataset, *, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing
        self._adv: dict[int, torch.Tensor] = {}  # of each part of the batch

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        if attack.replay == 0:
            self._adv[attack.part] = attack.random(x)
        point = attack.threat.project(x, self._adv[attack.part]).requires_grad_()

        def climb(grad: torch.Tensor) -> None:
            with torch.no_grad():
                move = attack.threat.steepest(grad, attack.step_size)
                self._adv[attack.part] = attack.threat.project(x, point.detach() + move)

        point.register_hook(climb)
        return F.cross_entropy(model(point), y, label_smoothing=self.smoothing)
