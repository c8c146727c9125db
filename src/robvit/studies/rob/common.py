"""What the studies of robustness tokens share: a backbone, its tokens, controls, and attacked features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.attack_cache import AttackCache, AttackSetting
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.token_training import TrainedTokens, train_tokens
from robvit.defenses.tokens import RobustTokens, import_published
from robvit.evaluation.attackers import random_tokens
from robvit.progress import progress
from robvit.studies.common import Effort, StudyContext
from robvit.studies.published import read_published
from robvit.threat import Threat

PUBLISHED = read_published("rob")
PAPER = PUBLISHED.paper
BACKBONE, SIZE = "dinov2-small", 112  # small images: a sixth of the cost of 224, and the effect shows
CONTROLS = ("no tokens", "random tokens")

Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # clean and attacked images (B 3 H W), batch by batch


@dataclass(frozen=True)
class TokenEffort(Effort):
    """What is spent on learning tokens; the defaults take a few minutes on two processor cores.

    Tokens learn from images attacked in `inner_steps` within `eps`.
    """

    learn: int = 192
    steps: int = 60
    batch: int = 16
    inner_steps: int = 8
    eps: float = 3 / 255

    def recipe(self, *, count: int = 10, seed: int = 0) -> TokenRecipe:
        attack = feature_attack(self.eps, self.inner_steps)
        return TokenRecipe(count=count, steps=self.steps, batch=self.batch, seed=seed, attack=attack)


def feature_attack(eps: float, steps: int) -> AttackSetting:
    """The attack on features within a pixel budget alone."""
    return AttackSetting("feature", Threat("linf", eps), {"steps": steps, "psnr": None})


def backbone(context: StudyContext) -> Model:
    """The given backbone, without a classifier of its own; the default at a size that is quick."""
    usual = SIZE if context.model in (None, BACKBONE) else None
    return context.load(BACKBONE, img_size=context.img_size or usual)


def learn_tokens(
    context: StudyContext, model: Model, images: ImageDataset, recipe: TokenRecipe, name: str = "tokens"
) -> TrainedTokens:
    """Tokens by the recipe, kept in the study's folder, so that a second run is quick."""
    with progress(f"learning {recipe.count} tokens", total=1) as advance:
        state = context.out / f"{name}.state"
        training = train_tokens(model, images, recipe, state=state, progress=advance)
    training.tokens.save(context.out / f"{name}.safetensors")
    return training


def open_tokens(path: str, model: Model) -> RobustTokens:
    """Tokens from a file: our own, or the published `.pt`."""
    file = Path(path)
    return import_published(file, model) if file.suffix == ".pt" else RobustTokens.load(file)


def random_like(tokens: RobustTokens) -> RobustTokens:
    """The control: random tokens with the mean length of these, in the same layers."""
    return RobustTokens(random_tokens(tokens.values), tokens.fingerprint, layers=tokens.layers)


def attack_features(
    model: Model, images: ImageDataset, attack: AttackSetting, label: str, *, batch: int = 16
) -> Pairs:
    """Clean images and the same attacked on the token-free model; what the cache holds is not made again."""
    return list(_attacked(AttackCache(model, images, attack), images, label, batch))


def _attacked(
    cache: AttackCache, images: ImageDataset, label: str, batch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    places = range(len(images))
    missing = cache.missing(places)
    with progress(label, total=sum(len(shard.places) for shard in missing)) as advance:
        cache.fill(missing, advance)
    for first in range(0, len(places), batch):
        some = places[first : first + batch]
        yield torch.stack([images[i][0] for i in some]), torch.cat([cache.row(i)[0] for i in some])


@torch.no_grad()
def cosines(original: Model, judged: Model, pairs: Pairs, axis: int = -1) -> dict[str, list[float]]:
    """For each image the cosine of the judged model's attacked features with clean ones.

    "original": with the token-free model's; "own": with its own; "clean": of its clean features with the
    token-free model's. Over the features of each token (axis -1), or the tokens of each feature (axis 1).
    """
    values: dict[str, list[float]] = {"original": [], "own": [], "clean": []}
    for clean, adv in pairs:
        public, own, moved = original.features(clean), judged.features(clean), judged.features(adv)
        for name, a, b in (("original", moved, public), ("own", moved, own), ("clean", own, public)):
            values[name] += F.cosine_similarity(a, b, dim=axis).mean(1).tolist()
    return values
