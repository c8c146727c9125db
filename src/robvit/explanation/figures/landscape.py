"""The loss around an image: along the direction of the attack, and along a random one."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from robvit.attacks.losses import LOSSES
from robvit.backbones.model import Model
from robvit.drawing.surfaces import Surface
from robvit.explanation.subject import Subject, figure
from robvit.record import Curve
from robvit.report.figure import Figure

POINTS = 19  # along each direction: both the image and the end of the attack are among them
ATTACK, RANDOM = (-1.0, 2.0), (-1.5, 1.5)  # how far, in lengths of the attack
BATCH = 19

Loss = Callable[[torch.Tensor], torch.Tensor]


def random_like(delta: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """A random direction of signs, as long as each perturbation (B 3 H W) in L2."""
    noise = torch.rand(delta.shape, generator=torch.Generator().manual_seed(seed)) - 0.5
    length: torch.Tensor = delta.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    return noise.sign().to(delta) * length / math.sqrt(delta[0].numel())


@torch.no_grad()
def loss_landscape(
    loss: Loss, x: torch.Tensor, adv: torch.Tensor, other: torch.Tensor, *, points: int
) -> torch.Tensor:
    """The loss of one image (3 H W) over multiples of two moves from it: (points points).

    Rows go along `other`, from -1.5 to 1.5 of it; columns along the attack, from -1 (away from it)
    over 0 (the image) to 2. `loss` takes images (B 3 H W), clamped to [0,1], to (B,).
    """
    along, across = torch.linspace(*ATTACK, points), torch.linspace(*RANDOM, points)
    moves = torch.cartesian_prod(across, along).to(x)
    values = [
        loss(
            (x + part[:, 1].view(-1, 1, 1, 1) * (adv - x) + part[:, 0].view(-1, 1, 1, 1) * other).clamp(0, 1)
        )
        for part in moves.split(BATCH)
    ]
    return torch.cat(values).view(points, points).cpu()


def loss_of(subject: Subject, model: Model) -> Loss:
    """What the attack on the subject's first image maximises, on a model."""
    if subject.task == "features":
        with torch.no_grad():
            clean = model.features(subject.x[:1])
        return lambda x: 1 - F.cosine_similarity(model.features(x), clean, dim=-1).mean(1)
    assert subject.target is not None
    target = subject.target[:1]
    name = "cross_entropy" if subject.task == "classes" else "pixel_cross_entropy"
    return lambda x: LOSSES[name](model(x), target.expand(len(x), *target.shape[1:]))


@figure(
    title="The loss around the first image",
    caption="Compare how steeply the loss climbs along the attack and along a random step of that length.",
    order=70,
)
def landscape(subject: Subject) -> Figure:
    """The model, with tokens and the one beside it, each around its own attack; one scale for all."""
    kinds = {"features": "1 - cosine to the clean features"}
    loss_name = kinds.get(subject.task, "cross-entropy")
    losses = {}
    for name, model in _models(subject).items():
        adv = subject.attacked(model)[0] if model is subject.beside else subject.adv[0]
        other = random_like((adv - subject.x[0])[None], subject.seed)[0]
        losses[name] = loss_landscape(loss_of(subject, model), subject.x[0], adv, other, points=POINTS)
    reach = max(float(values.max()) for values in losses.values())
    surfaces = [
        Surface(
            name,
            "along the attack",
            "random direction",
            loss_name,
            POINTS,
            POINTS,
            reach,
            mesh=values.tolist(),
            x_ends=ATTACK,
            y_ends=RANDOM,
        )
        for name, values in losses.items()
    ]
    middle = POINTS // 2
    zero = round(-ATTACK[0] / (ATTACK[1] - ATTACK[0]) * (POINTS - 1))
    along = {name: _points(ATTACK, values[middle]) for name, values in losses.items()}
    across = {name: _points(RANDOM, values[:, zero]) for name, values in losses.items()}
    unit = "lengths of the attack from the image"
    return Figure(
        surfaces=surfaces,
        curves=[
            Curve("along the attack", unit, loss_name, along),
            Curve("along a random direction", unit, loss_name, across),
        ],
    )


def _models(subject: Subject) -> dict[str, Model]:
    models = subject.models()
    if subject.hardened is not None:
        models[f"{subject.model.name} with tokens"] = subject.hardened
    return models


def _points(ends: tuple[float, float], values: torch.Tensor) -> list[list[float]]:
    return [
        [round(a, 4), v]
        for a, v in zip(torch.linspace(*ends, len(values)).tolist(), values.tolist(), strict=True)
    ]
