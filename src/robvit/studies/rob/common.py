"""What the studies of robustness tokens share: a backbone, its tokens, its controls, and its images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.attack_cache import AttackCache, AttackSetting
from robvit.defenses.robustify import Recipe, Training, train
from robvit.defenses.tokens import RobustTokens, import_published
from robvit.errors import DataError, InputError
from robvit.evaluation.attackers import random_tokens
from robvit.progress import progress
from robvit.studies.common import Request
from robvit.threat import Threat

BACKBONE, SIZE = "dinov2-small", 112  # small images: a sixth of the cost of 224, and the effect shows
PAPER = "Pulfer et al., Robustness Tokens, ECCV 2024"


@dataclass(frozen=True)
class Effort:
    """How much is spent on learning tokens; the defaults take a few minutes on two processor cores."""

    learn: int = 192
    steps: int = 60
    batch: int = 16
    attack_steps: int = 8
    eps: float = 3 / 255

    def recipe(self, *, count: int = 10, seed: int = 0) -> Recipe:
        attack = AttackSetting(
            "feature", Threat("linf", self.eps), {"steps": self.attack_steps, "psnr": None}
        )
        return Recipe(count=count, steps=self.steps, batch=self.batch, seed=seed, attack=attack)


def backbone(request: Request, default: str = BACKBONE) -> Model:
    """The wanted backbone, without a classifier of its own; the default at a size that is quick."""
    usual = SIZE if request.model in (None, BACKBONE) else None
    return request.load(default, img_size=request.img_size or usual)


def parts(request: Request, size: int, learn: int, images: int) -> tuple[ImageDataset, ImageDataset]:
    """Images to learn from and others to judge on: the data's own parts, or two shares of one folder."""
    spec = request.data or "sample"
    try:
        return (request.dataset(spec, "train", size, learn), request.dataset(spec, "test", size, images))
    except (DataError, InputError):  # no such parts
        together = request.dataset(spec, None, size, learn + images)
        if len(together) <= learn:
            raise InputError(
                f"{spec} has {len(together)} images; learning takes {learn}, none is left"
            ) from None
        return together.take(range(images, len(together))), together.take(range(images))


def learned(
    request: Request, model: Model, images: ImageDataset, recipe: Recipe, name: str = "tokens"
) -> Training:
    """Tokens by the recipe, kept in the request's folder, so that asking again is quick."""
    with progress(f"learning {recipe.count} tokens", total=1) as advance:
        training = train(model, images, recipe, state=request.out / f"{name}.state", report=advance)
    training.tokens.save(request.out / f"{name}.safetensors")
    return training


def given(path: str, model: Model) -> RobustTokens:
    """Tokens from a file: our own, or the published `.pt`."""
    file = Path(path)
    return import_published(file, model) if file.suffix == ".pt" else RobustTokens.load(file)


def random_like(tokens: RobustTokens) -> RobustTokens:
    """The control: random tokens with the mean length of these, in the same layers."""
    return RobustTokens(random_tokens(tokens.values), tokens.fingerprint, layers=tokens.layers)


def attacked(
    model: Model, images: ImageDataset, attack: AttackSetting, label: str, *, batch: int = 16
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Clean and attacked images (B 3 H W), from the store; only what is missing is made."""
    store = AttackCache(model, images, attack)
    places = range(len(images))
    missing = store.missing(places)
    with progress(label, total=sum(len(shard.places) for shard in missing)) as advance:
        store.fill(missing, advance)
    for first in range(0, len(places), batch):
        some = places[first : first + batch]
        yield torch.stack([images[i][0] for i in some]), torch.cat([store.row(i)[0] for i in some])


@torch.no_grad()
def cosines(
    original: Model, victim: Model, pairs: list[tuple[torch.Tensor, torch.Tensor]], axis: int = -1
) -> dict[str, list[float]]:
    """For each image the cosine of the victim's attacked features with clean ones.

    "original": with the token-free model's; "own": with the victim's; "clean": of the victim's clean
    features with the token-free model's. Over the features of each token (axis -1), or over the tokens
    of each feature (axis 1).
    """
    found: dict[str, list[float]] = {"original": [], "own": [], "clean": []}
    for clean, adv in pairs:
        public, own, moved = original.features(clean), victim.features(clean), victim.features(adv)
        for name, a, b in (("original", moved, public), ("own", moved, own), ("clean", own, public)):
            found[name] += F.cosine_similarity(a, b, dim=axis).mean(1).tolist()
    return found


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
