"""Who attacks a test-time defence, and what each of them works with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from robvit import plugins
from robvit.attacks.core import Model, frozen
from robvit.attacks.eot import bpda, bpda_moved, eot, moves
from robvit.errors import InputError

Defence = Callable[..., Model]  # a model to a defended one; see `challenge`
DRAWS = 4  # further looks at a defence after the first: it may draw seldom


@dataclass(frozen=True)
class Field:
    """What attackers work with: the model without its defence, with it, and a twin to differentiate."""

    plain: nn.Module
    defended: Model
    open: Model
    randomised: bool
    moves: bool  # the defence hands its model another image of the same shape
    samples: int

    def averaged(self, model: Model) -> Model:
        """The mean over draws where there are any."""
        return eot(model, self.samples) if self.randomised else model


@dataclass(frozen=True)
class Attacker:
    """One way to attack a defence: on which model images are made, and by which attack."""

    about: str
    source: Callable[[Field], Model]
    attack: str = "pgd_margin"
    why_not: Callable[[Field], str] = lambda field: ""  # what it lacks to attack this defence, in words


ATTACKERS = {
    "transfer": Attacker("images made on the model without its defence", lambda field: field.plain),
    "gradient": Attacker(
        "gradients through the defence as it runs, and through every step that it takes inside",
        lambda field: field.open,
    ),
    "gradient, EOT": Attacker(
        "the same, averaged over draws in every step",
        lambda field: field.averaged(field.open),
        why_not=lambda field: "" if field.randomised else "the defence is not randomised",
    ),
    "BPDA": Attacker(
        "the defence as it runs, with the gradient of the model behind it at the image",
        lambda field: field.averaged(bpda(field.defended, field.plain)),
    ),
    "BPDA, moved": Attacker(
        "the same, with that gradient at the image that the defence hands to the model",
        lambda field: field.averaged(bpda_moved(field.defended, field.plain)),
        why_not=lambda field: "" if field.moves else "the defence hands on no other image of this shape",
    ),
    "square": Attacker(
        "answers only, averaged over draws", lambda field: field.averaged(field.defended), attack="square"
    ),
}


def field_of(plain: nn.Module, defence: str | Defence, x: torch.Tensor, samples: int) -> Field:
    """What attackers get of a model and a defence; x (B 3 H W) are images to try the defence on."""
    make: Defence = plugins.imported(defence) if isinstance(defence, str) else defence
    if not callable(make):
        raise InputError(f"a defence is a function from a model to a defended one, got {type(make).__name__}")
    defended = make(plain)
    if not callable(defended):
        raise InputError(
            f"a defence must return a callable from images to logits, got {type(defended).__name__}"
        )
    follows = "differentiable" in inspect.signature(make).parameters
    with torch.no_grad(), frozen(plain):
        first = _first_answer(defended, x, plain(x).shape)
        randomised = any(not torch.equal(first, defended(x)) for _ in range(DRAWS))
        moving = any(moves(defended, plain, x) for _ in range(DRAWS))
    defended = _detached_if_needed(defended, x)
    twin = make(plain, differentiable=True) if follows else defended
    return Field(plain, defended, twin, randomised, moving, samples)


def _first_answer(defended: Model, x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """What the defence answers, or words about what is wrong with it."""
    try:
        output = defended(x)
    except Exception as error:  # whatever somebody's function may raise
        raise InputError(
            f"the defence must take images {tuple(x.shape)}, got {type(error).__name__}: {error}"
        ) from error
    if not isinstance(output, torch.Tensor) or output.shape != shape:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(f"the defence must return logits {tuple(shape)} as its model does, got {got}")
    return output


def _detached_if_needed(defended: Model, x: torch.Tensor) -> Model:
    """A defence that refuses images with a gradient, as NumPy does, gets them without: it then has none."""
    try:
        with torch.enable_grad():
            defended(x[:1].detach().requires_grad_())
    except RuntimeError:
        return lambda images: defended(images.detach())
    return defended
