"""The attackers of protocols, from one who only asks for answers to one who knows everything.

An attacker is one entry here: what they know and need, the surrogates they make their images on, what
their work costs, and what may be claimed against them. Whoever does not have the judged model attacks a
surrogate to the attack's full objective; the judged model decides. The method is public, only the tokens
are secret, so an attacker may learn tokens as the defender did, or ask for features and recover them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError
from robvit.progress import Advance, part_of, silent
from robvit.registry import Registry
from robvit.threat import Threat

if TYPE_CHECKING:
    from robvit.evaluation.protocol import AttackerBudget  # protocols are checked against the entries here

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


@dataclass(frozen=True)
class AttackerInfo:
    """What protocols, forecasts and claims need to know of an attacker.

    scenario: what tables call the situation.
    knows: what they know, in words.
    claim: how the sentence "Accuracy under attack 12.5 % ..." goes on, if nobody is stronger.
    gradients: whether they have the gradients of what they attack.
    knows_all: whether nothing is hidden from them.
    needs_tokens: whether they only make sense where tokens are secret.
    learns: whether they need images of their own.
    controls: whether the protocol's controls see the same images.
    models: through how many models one attack passes, all surrogates together.
    learning: passes, forward and as many backward, before the first attack.
    """

    scenario: str
    knows: str
    claim: str
    gradients: bool = True
    knows_all: bool = False
    needs_tokens: bool = False
    learns: bool = False
    controls: bool = False
    models: Callable[[AttackerBudget], int] = lambda budget: 1
    learning: Callable[[AttackerBudget], int] = lambda budget: 0


Attacker = Callable[[AttackerContext], list[Surrogate]]
ATTACKERS: Registry[Attacker, AttackerInfo] = Registry("attacker", AttackerInfo)


@ATTACKERS.add(
    "white-box",
    scenario="attacker knows everything",
    knows="weights, head and tokens: the judged model itself",
    claim="once the attacker knows everything: only this may be claimed without a word about secrets",
    knows_all=True,
)
def white_box(context: AttackerContext) -> list[Surrogate]:
    return [Surrogate()]


@ATTACKERS.add(
    "black-box",
    scenario="attacker asks for answers",
    knows="only the judged model's answers, so no gradients",
    claim="if attackers see nothing but answers, and few of them",
    gradients=False,
)
def black_box(context: AttackerContext) -> list[Surrogate]:
    return [Surrogate()]


@ATTACKERS.add(
    "no-tokens",
    scenario="attacker has no tokens",
    knows="the public weights and the head, not the tokens",
    claim="if the tokens stay secret and nobody trains tokens of their own",
    needs_tokens=True,
    controls=True,
)
def no_tokens(context: AttackerContext) -> list[Surrogate]:
    bare = context.hardened.replace(tokens=None)
    return [Surrogate("the public model", bare, bare.identity())]


@ATTACKERS.add(
    "own-tokens",
    scenario="attacker trains tokens",
    knows="the same, and how tokens are learned: several sets of their own, each alone and all together",
    claim="if attackers train tokens as the defender did, but never see the real ones",
    needs_tokens=True,
    learns=True,
    # An ensemble of k passes through k models; so the sets together cost as much as all alone.
    models=lambda budget: budget.sets if budget.sets == 1 else 2 * budget.sets,
    learning=lambda budget: (
        budget.images * budget.attack_steps + budget.sets * budget.steps * budget.batch * 2
    ),
)
def own_tokens(context: AttackerContext) -> list[Surrogate]:
    sets = [_train(context, number) for number in range(context.budget.sets)]
    models = [context.hardened.replace(tokens=tokens) for tokens in sets]
    alone = [Surrogate(f"own tokens {i + 1}", m, m.identity()) for i, m in enumerate(models)]
    if len(models) == 1:
        return alone
    together = "+".join(surrogate.identity for surrogate in alone)
    return [*alone, Surrogate("own tokens together", LogitEnsemble(models), together)]


@ATTACKERS.add(
    "leak",
    scenario="attacker saw features",
    knows="the public weights, the head and features that the judged model gave away",
    claim="if features were given away, from which attackers recovered tokens",
    needs_tokens=True,
    learns=True,
    learning=lambda budget: budget.leak_steps * budget.batch,
)
def leak(context: AttackerContext) -> list[Surrogate]:
    """Tokens recovered from features by descent on the squared difference."""
    place = context.folder / "recovered.safetensors"
    if place.exists():
        tokens = RobustTokens.load(place)
    else:
        layers = context.hardened.layers
        budget = context.budget
        values = recover_tokens(
            context.hardened,
            context.public(budget.images),
            steps=budget.leak_steps,
            batch=budget.batch,
            progress=context.progress,
        )
        tokens = RobustTokens(values, context.hardened.fingerprint(), "recovered", layers=layers)
        tokens.save(place)
    model = context.hardened.replace(tokens=tokens).to(context.secret.device)
    _measure_leak(context, model)
    return [Surrogate("recovered tokens", model, model.identity())]


class LogitEnsemble(nn.Module):
    """The mean of several models' logits."""

    def __init__(self, models: list[Model]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([model(x) for model in self.models]).mean(0)


def random_tokens(tokens: torch.Tensor, seed: int = NOISE_SEED) -> torch.Tensor:
    """Noise with the mean length of these tokens (L R D): the control for what any tokens would do."""
    noise = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(seed)).to(tokens)
    return F.normalize(noise, dim=-1) * float(tokens.norm(dim=-1).mean())


def _train(context: AttackerContext, number: int) -> RobustTokens:
    """One token set of the attacker's; attacked images are shared by all sets, and kept."""
    budget, hardened = context.budget, context.hardened
    # Tokens do not depend on the head, and so neither do the attacked images.
    headless = hardened.replace(tokens=None, head=None)
    recipe = TokenRecipe(
        count=context.secret.shape[1],
        steps=budget.steps,
        batch=budget.batch,
        seed=FIRST_SEED + number,
        layers=hardened.layers,
        attack=AttackSetting("feature", context.threat, {"steps": budget.attack_steps, "psnr": None}),
    )
    state = context.folder / f"own-{number + 1}.safetensors"
    label = f"attacker's tokens {number + 1} of {budget.sets}"
    advance = part_of(context.progress, 1 / budget.sets, label)
    images = context.public(budget.images)
    return train_tokens(headless, images, recipe, state=state, progress=advance).tokens


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


@torch.no_grad()
def _measure_leak(context: AttackerContext, recovered: Model) -> None:
    """How near the recovered model's features come to the hardened one's, beside the public model's."""
    hardened, images = context.hardened, context.public(context.budget.images)
    x = images.take(range(min(len(images), context.budget.batch))).tensors()[0].to(context.secret.device)
    seen = hardened.features(x)
    guesses = {"recovered": recovered, "public": hardened.replace(tokens=None)}
    for name, model in guesses.items():
        cosine = F.cosine_similarity(model.features(x), seen, dim=-1).mean()
        context.metrics[f"leak: cosine of {name} with hardened features"] = float(cosine)
