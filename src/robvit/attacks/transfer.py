"""Attacks that are to fool other models than the one they are made on: `pgd` with what papers add to it.

Momentum (MI, 1710.06081), input diversity (DI, 1803.06978), translation invariance (TI, 1904.02884), and for
transformers attention without gradients (PNA, 2109.04176) and levelled token gradients (TGR, 2303.15754).
Each is a setting; with all of them off it is `pgd` bit for bit.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
import torch.nn.functional as F

from robvit.attacks.core import AttackCheck, Model, attack, per_image_uniform
from robvit.attacks.losses import Loss, objective_of
from robvit.attacks.pgd import search
from robvit.attacks.scales import network_of
from robvit.attention import attention_cut, token_gradients_levelled
from robvit.errors import InputError
from robvit.threat import NORMS, Threat


@attack(kind="budget", norms=NORMS, paper="1710.06081", check=AttackCheck({"steps": 3}, {"steps": 20}))
def transfer(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    steps: int = 10,
    step_size: float | None = None,
    restarts: int = 1,
    random_start: bool = False,
    momentum: float = 1.0,
    diversity: float = 0.0,
    smallest: float = 0.8,
    translation: int = 1,
    pna: bool = False,
    tgr: bool = False,
    loss: str | Loss = "cross_entropy",
    targeted: bool = False,
    early_stop: bool = True,
    seed: int = 0,
) -> torch.Tensor:
    """`pgd` on a surrogate, made to transfer. x (B 3 H W) in [0,1]; loss(model(x), y) -> (B,).

    steps: gradient steps a restart.
    step_size: in pixels; 2.5 eps / steps if left out, eps / steps in the papers.
    restarts: starts, each for the images that are still classified correctly.
    random_start: begin the first restart at a random point of the ball, not at x.
    momentum: MI, the weight of earlier gradients, each brought to the same length; 0 is off.
    diversity: DI, the chance that a step sees an image shrunk and moved; 0 is off. No image leaves early
        then, and the last point that fooled the view it was seen in is returned, or else the last one, since
        losses of different views do not compare.
    smallest: DI, the side of the smallest view as a share of the image's.
    translation: TI, the side in pixels, odd, of the Gaussian that every gradient is blurred with; 1 is off.
    pna: no gradients through attention maps; the surrogate must be a transformer.
    tgr: tokens of extreme gradients left out and the rest weakened; the surrogate must be a transformer.
    loss: a name from `LOSSES` or a callable.
    targeted: y are the classes wanted: the loss falls, and success is to be classified so.
    early_stop: an image leaves the batch as soon as the attack succeeds on it.
    seed: decides the starts and the views, together with each image.
    """
    _check(diversity, smallest, translation)
    size = 2.5 * threat.eps / max(steps, 1) if step_size is None else step_size
    with ExitStack() as stack:
        if pna:
            stack.enter_context(attention_cut(network_of(model)))
        if tgr:
            stack.enter_context(token_gradients_levelled(network_of(model)))
        return search(
            DiverseViews(model, x, diversity, smallest, seed) if diversity else model,
            x,
            y,
            threat,
            objective=objective_of(loss, y, targeted),
            steps=steps,
            size=lambda _: size,
            restarts=restarts,
            random_start=random_start,
            momentum=momentum,
            smooth=None if translation == 1 else lambda grad: blurred(grad, translation),
            rank=_later if diversity else None,
            early_stop=early_stop and not diversity,
            seed=seed,
            targeted=targeted,
        )


def _check(diversity: float, smallest: float, translation: int) -> None:
    if not 0 <= diversity <= 1:
        raise InputError(f"diversity must be a chance in [0,1], got {diversity}")
    if not 0 < smallest <= 1:
        raise InputError(f"smallest must be a share of the side in (0,1], got {smallest}")
    if translation < 1 or translation % 2 == 0:
        raise InputError(f"translation must be an odd number of pixels, such as 7, got {translation}")


def _later(output: torch.Tensor, rows: torch.Tensor, step: int, /) -> torch.Tensor:
    """Ranks points by when they were reached."""
    return torch.full((len(rows),), float(step), device=output.device, dtype=output.dtype)


class DiverseViews:
    """A model that at every call sees each of the images x (B 3 H W) shrunk and moved, by a chance."""

    def __init__(self, model: Model, x: torch.Tensor, chance: float, smallest: float, seed: int) -> None:
        self.__wrapped__ = model
        self.x, self.chance, self.smallest, self.seed = x, chance, smallest, seed
        self.calls = 0

    def __call__(self, point: torch.Tensor) -> torch.Tensor:
        drawn = per_image_uniform(self.x, self.seed, f"view {self.calls}", 4)
        self.calls += 1
        side = self.smallest + (1 - self.smallest) * drawn[:, 1]
        view = shrunk(point, side, 2 * drawn[:, 2:] - 1)
        return self.__wrapped__(torch.where((drawn[:, 0] < self.chance).view(-1, 1, 1, 1), view, point))


def shrunk(x: torch.Tensor, side: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """Images (B 3 H W) resized to a share `side` (B,) of their size, black around; gradients pass.

    `place` (B 2) says where each stands, across and down: -1 and 1 are the edges.
    """
    room = (1 - side)[:, None] * place
    turn = torch.zeros(len(x), 2, 3, device=x.device, dtype=x.dtype)
    turn[:, 0, 0] = turn[:, 1, 1] = 1 / side
    turn[:, :, 2] = -room / side[:, None]
    grid = F.affine_grid(turn, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def blurred(grad: torch.Tensor, side: int) -> torch.Tensor:
    """A gradient (B 3 H W) under a Gaussian of so many pixels, whose edges lie at three deviations."""
    line = torch.exp(-0.5 * torch.linspace(-3, 3, side, device=grad.device, dtype=grad.dtype).square())
    kernel = torch.outer(line, line) / line.sum().square()
    channels = grad.shape[1]
    return F.conv2d(grad, kernel.expand(channels, 1, side, side), padding=side // 2, groups=channels)
