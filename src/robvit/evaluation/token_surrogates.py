"""What attackers of secret tokens make images on: their own tokens, models together, recovered tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks import frozen
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.attack_cache import AttackSetting
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.token_training import train_tokens
from robvit.errors import InputError
from robvit.progress import Advance, part_of, silent
from robvit.threat import Threat

if TYPE_CHECKING:
    from robvit.evaluation.protocol import AttackerBudget  # protocols are checked against the attackers

# Away from the small numbers that a defender is likely to take: trained tokens stay near their start, so
# whoever draws it with the same seed has a good part of the secret.
FIRST_SEED = 7001
NOISE_SEED = 6007
LEAK_RATE = 5e-3  # Adam's, for recovering tokens


@dataclass(frozen=True)
class Surrogate:
    """What an attacker makes images on; without a network it is the judged model itself."""

    label: str = ""
    net: nn.Module | None = None
    identity: str = ""


@dataclass
class AttackerContext:
    """What attackers find: the judged model, images of their own, a budget, and a folder for their work.

    `metrics` takes what they found out; `progress` the shares of their work, one in all.
    """

    judged: nn.Module
    public: Callable[[int], ImageDataset]
    threat: Threat
    budget: AttackerBudget
    folder: Path
    progress: Advance = silent
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def hardened(self) -> Model:
        if not isinstance(self.judged, Model) or self.judged.extra is None:
            raise InputError("this attacker is after secret tokens, the model has none; give --tokens")
        return self.judged

    @property
    def secret(self) -> torch.Tensor:
        """The real tokens (L R D); attackers look at nothing but their shape."""
        assert self.hardened.extra is not None
        return self.hardened.extra


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


def random_tokens(tokens: torch.Tensor, seed: int = NOISE_SEED) -> torch.Tensor:
    """Noise with the mean length of these tokens (L R D): the control for what any tokens would do."""
    noise = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(seed)).to(tokens)
    return F.normalize(noise, dim=-1) * float(tokens.norm(dim=-1).mean())


def defenders_recipe(context: AttackerContext) -> TokenRecipe:
    """The defender's own choices of number, layers and attack, with the attacker's effort and seed."""
    budget = context.budget
    return TokenRecipe(
        count=context.secret.shape[1],
        steps=budget.steps,
        batch=budget.batch,
        seed=FIRST_SEED,
        layers=context.hardened.layers,
        attack=AttackSetting("feature", context.threat, {"steps": budget.attack_steps, "psnr": None}),
    )


def other_recipe(recipe: TokenRecipe) -> TokenRecipe:
    """The same with another rate and another attack."""
    weaker = replace(recipe.attack, threat=replace(recipe.attack.threat, eps=recipe.attack.threat.eps / 2))
    return replace(recipe, lr=5 * recipe.lr, attack=weaker)


def learned_surrogates(
    context: AttackerContext, guesses: Mapping[str, TokenRecipe], together: str
) -> list[Surrogate]:
    """A surrogate with tokens by each recipe, and where there are several the mean of all their logits."""
    hardened = context.hardened
    # Tokens do not depend on the head, and so neither do the attacked images, which all sets share.
    headless = hardened.replace(tokens=None, head=None)
    images, models = context.public(context.budget.images), list[Model]()
    for number, (label, recipe) in enumerate(guesses.items(), start=1):
        advance = part_of(context.progress, 1 / len(guesses), f"{label}, {number} of {len(guesses)}")
        state = context.folder / f"{label.replace(' ', '-')}.safetensors"
        tokens = train_tokens(headless, images, recipe, state=state, progress=advance).tokens
        models.append(hardened.replace(tokens=tokens))
    alone = [Surrogate(label, m, m.identity()) for label, m in zip(guesses, models, strict=True)]
    if len(models) == 1:
        return alone
    identity = "+".join(surrogate.identity for surrogate in alone)
    return [*alone, Surrogate(together, LogitEnsemble(models), identity)]


@torch.no_grad()
def measure_leak(context: AttackerContext, recovered: Model) -> None:
    """How near the recovered model's features come to the hardened one's, beside the public model's."""
    hardened, images = context.hardened, context.public(context.budget.images)
    x = images.take(range(min(len(images), context.budget.batch))).tensors()[0].to(context.secret.device)
    seen = hardened.features(x)
    guesses = {"recovered": recovered, "public": hardened.replace(tokens=None)}
    for name, model in guesses.items():
        cosine = F.cosine_similarity(model.features(x), seen, dim=-1).mean()
        context.metrics[f"leak: cosine of {name} with hardened features"] = float(cosine)
