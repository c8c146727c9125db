"""What attacks are tried on: small networks, images, and linear models whose best perturbation is known."""

from __future__ import annotations

import math

import torch
from torch import nn

from robvit.attacks import ATTACKS

SIDE = 6
# What needs attention inside is asked the same in tests/attention/test_scaling.py.
EVERY = [(e.name, norm) for e in ATTACKS if not e.info.needs for norm in e.info.norms]
EPS = {"linf": 0.1, "l2": 0.6, "l1": 3.0, "patch": 3}


def tiny(classes: int = 4, seed: int = 0) -> nn.Module:
    """A small network with something of everything: convolution, normalisation, dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.GELU(),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(6 * SIDE * SIDE, classes),
    ).double()


class Segmenter(nn.Module):
    """A class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = tiny()[:4]
        self.head = nn.Conv2d(6, 4, 1).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def prepared(name: str, count: int = 8) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A model for the attack's task, images, and the labels the model gives them."""
    model = Segmenter() if ATTACKS.info(name).task == "pixels" else tiny()
    return model, images(count), labelled(model, images(count))


def images(count: int = 8, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed)).double()


def labelled(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    training = model.training
    y = model.eval()(x).argmax(1)
    model.train(training)
    return y


def quick(name: str) -> dict[str, object]:
    return dict(ATTACKS.info(name).check.quick)


SMALL_EPS = {"linf": 0.03, "l2": 0.3, "l1": 0.4}  # from mid-grey none of them meets the box
DUAL = {"linf": 1.0, "l2": 2.0, "l1": math.inf}


def linear(classes: int, gap: float, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    """A linear model that puts class 0 first by at least `gap` at mid-grey; its weights (K n)."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(classes, 3 * 8 * 8, generator=generator)
    layer = nn.Linear(weight.shape[1], classes)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(-0.5 * weight.sum(1) - gap * torch.arange(classes))
    return nn.Sequential(nn.Flatten(), layer.requires_grad_(False)), weight


def setting() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((2, 3, 8, 8), 0.5), torch.zeros(2, dtype=torch.long)
