"""What attackers know, from nothing but answers to everything: the scenarios of the threat ladder.

Each attacker is a function from the case to what they craft on. Whoever does not have the judged model
crafts on a surrogate to the attack's full objective; the judged model decides. The method is public, only
the tokens are secret, so an attacker may learn tokens as the defender did, or ask for features and
recover them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

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
from robvit.evaluation.protocol import AttackerBudget
from robvit.progress import Advance
from robvit.registry import Registry
from robvit.threat import Threat

# Away from the small numbers that a defender is likely to take: trained tokens stay near their start, so
# whoever draws it with the same seed has a good part of the secret.
FIRST_SEED = 7001
NOISE_SEED = 6007
LEAK_RATE = 5e-3  # Adam's, for recovering tokens


@dataclass(frozen=True)
class Source:
    """What an attacker crafts on; without a network it is the judged model itself."""

    label: str = ""
    net: nn.Module | None = None
    identity: str = ""


@dataclass
class AttackerContext:
    """What attackers find: the judged model, images of their own, a budget, and a folder for their work.

    `metrics` takes what they found out; `watch(label, total)` shows their progress.
    """

    judged: nn.Module
    public: Callable[[int], ImageDataset]
    threat: Threat
    means: AttackerBudget
    folder: Path
    watch: Callable[[str, float], AbstractContextManager[Advance]]
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


Knowledge = Callable[[AttackerContext], list[Source]]


@dataclass(frozen=True)
class AttackerInfo:
    """What is known about an attacker: the scenario's title."""

    scenario: str


ATTACKERS: Registry[Knowledge, AttackerInfo] = Registry("attacker", AttackerInfo)


@ATTACKERS.add("white-box", scenario="attacker knows everything")
def white_box(case: AttackerContext) -> list[Source]:
    """Weights, head and tokens: the judged model itself."""
    return [Source()]


@ATTACKERS.add("black-box", scenario="attacker asks for answers")
def black_box(case: AttackerContext) -> list[Source]:
    """Only answers of the judged model; the protocol allows attacks without gradients alone."""
    return [Source()]


@ATTACKERS.add("no-tokens", scenario="attacker has no tokens")
def no_tokens(case: AttackerContext) -> list[Source]:
    """The public weights and the head, without tokens."""
    bare = case.hardened.replace(tokens=None)
    return [Source("the public model", bare, bare.identity())]


@ATTACKERS.add("own-tokens", scenario="attacker trains tokens")
def own_tokens(case: AttackerContext) -> list[Source]:
    """Several token sets learned as the defender learned: each alone, and all together."""
    sets = [_train(case, number) for number in range(case.means.sets)]
    models = [case.hardened.replace(tokens=tokens) for tokens in sets]
    alone = [Source(f"own tokens {i + 1}", m, m.identity()) for i, m in enumerate(models)]
    if len(models) == 1:
        return alone
    together = "+".join(source.identity for source in alone)
    return [*alone, Source("own tokens together", LogitEnsemble(models), together)]


@ATTACKERS.add("leak", scenario="attacker saw features")
def leak(case: AttackerContext) -> list[Source]:
    """Tokens recovered from features the judged model gave away: descent on the squared difference."""
    place = case.folder / "recovered.safetensors"
    if place.exists():
        tokens = RobustTokens.load(place)
    else:
        layers = case.hardened.layers
        tokens = RobustTokens(_recover(case), case.hardened.fingerprint(), "recovered", layers=layers)
        tokens.save(place)
    model = case.hardened.replace(tokens=tokens).to(case.secret.device)
    _measure_leak(case, model)
    return [Source("recovered tokens", model, model.identity())]


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


def _train(case: AttackerContext, number: int) -> RobustTokens:
    """One token set of the attacker's; attacked images are shared by all sets, and kept."""
    means, hardened = case.means, case.hardened
    # Tokens do not depend on the head, and so neither do the attacked images.
    headless = hardened.replace(tokens=None, head=None)
    recipe = TokenRecipe(
        count=case.secret.shape[1],
        steps=means.steps,
        batch=means.batch,
        seed=FIRST_SEED + number,
        layers=hardened.layers,
        attack=AttackSetting("feature", case.threat, {"steps": means.attack_steps, "psnr": None}),
    )
    state = case.folder / f"own-{number + 1}.safetensors"
    with case.watch(f"attacker's tokens {number + 1} of {means.sets}", 1) as advance:
        images = case.public(means.images)
        return train_tokens(headless, images, recipe, state=state, progress=advance).tokens


def _recover(case: AttackerContext) -> torch.Tensor:
    """Tokens (L R D) under which the public model's features come near those that were seen."""
    means, hardened = case.means, case.hardened
    seeded = torch.Generator().manual_seed(FIRST_SEED)
    guess = (0.01 * torch.randn(case.secret.shape, generator=seeded)).to(case.secret).requires_grad_()
    adam = torch.optim.Adam([guess], lr=LEAK_RATE)
    images = case.public(means.images)
    with frozen(hardened), case.watch("recovering tokens from features", means.leak_steps) as advance:
        for _ in range(means.leak_steps):
            some = torch.randperm(len(images), generator=seeded)[: means.batch].tolist()
            x = images.take(some).tensors()[0].to(guess.device)
            with torch.no_grad():
                seen = hardened.features(x)
            gap = F.mse_loss(hardened.features(x, guess, hardened.layers), seen)
            (guess.grad,) = torch.autograd.grad(gap, guess)
            adam.step()
            advance(note=f"gap {gap.item():.3g}")
    return guess.detach()


@torch.no_grad()
def _measure_leak(case: AttackerContext, recovered: Model) -> None:
    """How near the recovered model's features come to the hardened one's, beside the public model's."""
    hardened, images = case.hardened, case.public(case.means.images)
    x = images.take(range(min(len(images), case.means.batch))).tensors()[0].to(case.secret.device)
    seen = hardened.features(x)
    guesses = {"recovered": recovered, "public": hardened.replace(tokens=None)}
    for name, model in guesses.items():
        cosine = F.cosine_similarity(model.features(x), seen, dim=-1).mean()
        case.metrics[f"leak: cosine of {name} with hardened features"] = float(cosine)
