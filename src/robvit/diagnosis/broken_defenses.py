"""Deliberately broken defences, each with the checks that must catch it: the doctor's own test.

None of them makes a model harder to attack; each only makes gradients, or numbers, look as if it did.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks.core import Model
from robvit.attention import attention_layers, scaled
from robvit.registry import Registry


@dataclass(frozen=True)
class DefenseInfo:
    """What is known about a broken defence: the checks that must turn red."""

    caught_by: tuple[str, ...]


# A defence takes a sound model to a broken one.
BROKEN_DEFENSES: Registry[Callable[[nn.Module], Model], DefenseInfo] = Registry("broken defence", DefenseInfo)


class _Wrapped(nn.Module):
    """A model with a function applied to the image before and to the logits after."""

    def __init__(self, model: nn.Module, before: Model | None = None, after: Model | None = None) -> None:
        super().__init__()
        self.model, self.before, self.after = model, before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.model(self.before(x) if self.before else x)
        return self.after(output) if self.after else output


@BROKEN_DEFENSES.add(caught_by=("gradients", "finite_differences", "black_box", "transfer", "binarisation"))
def quantised(model: nn.Module) -> Model:
    """Sixteen grey levels: rounding has no slope."""
    return _Wrapped(model, before=lambda x: (x * 15).round() / 15)


@BROKEN_DEFENSES.add(caught_by=("gradients", "random_noise"))
def signs(model: nn.Module) -> Model:
    """The image rebuilt from the signs of its differences to a few thresholds."""
    steps = torch.linspace(0.05, 0.95, 10)
    return _Wrapped(model, before=lambda x: torch.stack([(x - s).sign() for s in steps]).sum(0) / 20 + 0.5)


def _dct(size: int) -> torch.Tensor:
    k, n = torch.arange(size)[:, None], torch.arange(size)[None, :]
    rows = torch.cos(math.pi * (n + 0.5) * k / size) * math.sqrt(2 / size)
    rows[0] /= math.sqrt(2)
    return rows


@BROKEN_DEFENSES.add(caught_by=("gradients",))
def jpeg(model: nn.Module) -> Model:
    """What JPEG does: blocks of 8x8 to frequencies, rounded, and back."""
    basis = _dct(8)

    def compress(x: torch.Tensor) -> torch.Tensor:
        blocks = x.unfold(2, 8, 8).unfold(3, 8, 8)  # (B 3 h w 8 8)
        rounded = ((basis @ blocks @ basis.T) / 0.1).round() * 0.1
        back = basis.T @ rounded @ basis
        return back.permute(0, 1, 2, 4, 3, 5).reshape_as(x).clamp(0, 1)

    return _Wrapped(model, before=compress)


@BROKEN_DEFENSES.add(caught_by=("saturation", "losses"))
def hot_logits(model: nn.Module) -> Model:
    """Logits a thousand times too large: cross-entropy is flat wherever the model is correct."""
    return _Wrapped(model, after=lambda z: 1000 * z)


@BROKEN_DEFENSES.add(caught_by=("softmax_output",))
def probabilities(model: nn.Module) -> Model:
    """Sharp probabilities instead of logits."""
    return _Wrapped(model, after=lambda z: (8 * z).softmax(1))


@BROKEN_DEFENSES.add(caught_by=("randomness",))
def random_resizing(model: nn.Module) -> Model:
    """The image shrunk to a random size and placed at random on a black background."""

    def resize(x: torch.Tensor) -> torch.Tensor:
        side = int(torch.randint(x.shape[-1] * 3 // 4, x.shape[-1] + 1, ()))
        room = x.shape[-1] - side
        left, top = (int(torch.randint(room + 1, ())) for _ in range(2))
        small = F.interpolate(x, (side, side), mode="bilinear", antialias=True)
        return F.pad(small, (left, room - left, top, room - top))

    return _Wrapped(model, before=resize)


@BROKEN_DEFENSES.add(caught_by=("randomness",))
def random_noise(model: nn.Module) -> Model:
    """Fresh noise on every image at every pass."""
    return _Wrapped(model, before=lambda x: (x + 0.05 * torch.randn_like(x)).clamp(0, 1))


@BROKEN_DEFENSES.add(caught_by=("gradients", "large_budget"))
def no_gradient(model: nn.Module) -> Model:
    """A step outside autograd, as a call of another library would be."""
    return _Wrapped(model, before=lambda x: torch.from_numpy(x.detach().cpu().numpy().copy()).to(x.device))


@BROKEN_DEFENSES.add(caught_by=("finite_differences",))
def detached(model: nn.Module) -> Model:
    """Nearly all of the output comes through a branch that is detached from the gradient."""

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mirrored: torch.Tensor = self.model(x.flip(-1).flip(-2))
            return self.model(x.detach()) + 0.01 * mirrored  # type: ignore[no-any-return]

    return Cut()


@BROKEN_DEFENSES.add(caught_by=("finite_differences", "more_steps", "monotone_budget"))
def shattered(model: nn.Module) -> Model:
    """Oscillations too fine to see, and so steep that they dominate the gradient."""
    frequency = 2 * math.pi * 255 * 5.3
    return _Wrapped(model, before=lambda x: x + (2 / 255) * torch.sin(frequency * x))


@BROKEN_DEFENSES.add(caught_by=("single_step",))
def traps_off_the_grid(model: nn.Module) -> Model:
    """Oscillations that vanish on whole grey levels: only the first gradient is correct."""
    frequency = 2 * math.pi * 255
    return _Wrapped(model, before=lambda x: x + (2 / 255) * torch.sin(frequency * x))


@BROKEN_DEFENSES.add(caught_by=("attention_underflow",))
def hot_attention(model: nn.Module) -> Model:
    """Query-key products so large that every softmax is one-hot."""
    layers = len(attention_layers(model))

    class Hot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with scaled(self.model, [150.0] * layers):
                return self.model(x)  # type: ignore[no-any-return]

    return Hot()
