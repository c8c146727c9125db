"""Adapters as something to train: a module on a frozen backbone, and the loss between two objectives."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.tora.io import adapted
from robvit.defenses.tora.modules import Adapters
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import LOSSES, Loss


class TrainableAdapters(nn.Module):
    """Adapters that learn, on a backbone that does not: (B 3 H W) in [0,1] to logits (B K).

    It answers by the mean of both heads ("joint") or by the head of one objective. The backbone is no
    submodule, so it is neither trained, nor saved, nor put into training mode.
    """

    def __init__(self, model: Model, adapters: Adapters, answers: str, learns: tuple[str, ...]) -> None:
        super().__init__()
        self.adapters, self.answers = adapters, answers
        self.input_size = model.input_size
        self.backbone = (adapted(model, adapters),)
        for name, parameter in adapters.named_parameters():
            parameter.requires_grad_(name.startswith(learns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (model,) = self.backbone
        if self.answers == "joint":
            joint: torch.Tensor = model(x)
            return joint
        return model.heads_apart(x)[self.answers]

    def _apply(self, fn: Any, recurse: bool = True) -> TrainableAdapters:
        self.backbone[0]._apply(fn, recurse)  # no submodule, yet it goes where the adapters go
        super()._apply(fn, recurse)
        return self


@LOSSES.add("tora")
class TradeOff(Loss):
    """The trade-off's share of the loss on attacked images, the rest on clean ones.

    With a `path`, every step draws a trade-off between the ends the adapters hold and sets it, so that one
    training serves all of them; between steps the adapters stand in the middle.
    """

    def __init__(
        self, model: nn.Module, images: ImageDataset, *, trade: float = 0.5, path: bool = False
    ) -> None:
        super().__init__()
        self.trade, self.path = trade, path
        self.adapters = (getattr(model, "adapters", None),)  # no submodule: they are the model's

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        if not self.path:
            return self._mixed(model, x, y, attack, self.trade)
        adapters: Any = self.adapters[0]
        low, high = (float(adapters.trades[i]) for i in (0, -1))
        trade = low + (high - low) * float(torch.rand(()))  # seeded by the step
        adapters.trade_off = trade
        loss = self._mixed(model, x, y, attack, trade)
        adapters.trade_off = (low + high) / 2
        return loss

    @staticmethod
    def _mixed(
        model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack, trade: float
    ) -> torch.Tensor:
        loss = torch.zeros((), device=x.device)
        if trade:
            loss = loss + trade * F.cross_entropy(model(attack(model, x, y)), y)
        if trade < 1:
            loss = loss + (1 - trade) * F.cross_entropy(model(x), y)
        return loss
