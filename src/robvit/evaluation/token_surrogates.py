"""Parts that attackers of secret tokens build surrogates from: models together, and recovered tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks import frozen
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.progress import Advance, part_of, silent

# Away from the small numbers that a defender is likely to take: trained tokens stay near their start, so
# whoever draws it with the same seed has a good part of the secret.
FIRST_SEED = 7001
LEAK_RATE = 5e-3  # Adam's, for recovering tokens


class LogitEnsemble(nn.Module):
    """The mean of several models' logits."""

    def __init__(self, models: list[Model]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([model(x) for model in self.models]).mean(0)


def recover_tokens(
    hardened: Model, images: ImageDataset, *, steps: int, batch: int, progress: Advance = silent
) -> torch.Tensor:
    """Tokens (L R D) under which the public model's features of these images come near the hardened one's."""
    assert hardened.extra is not None
    seeded = torch.Generator().manual_seed(FIRST_SEED)
    guess = (0.01 * torch.randn(hardened.extra.shape, generator=seeded)).to(hardened.extra).requires_grad_()
    adam = torch.optim.Adam([guess], lr=LEAK_RATE)
    advance = part_of(progress, 1 / steps, "recovering tokens from features")
    with frozen(hardened):
        for _ in range(steps):
            some = torch.randperm(len(images), generator=seeded)[:batch].tolist()
            x = images.take(some).tensors()[0].to(guess.device)
            with torch.no_grad():
                seen = hardened.features(x)
            gap = F.mse_loss(hardened.features(x, guess, hardened.layers), seen)
            (guess.grad,) = torch.autograd.grad(gap, guess)
            adam.step()
            advance(note=f"gap {gap.item():.3g}")
    return guess.detach()
