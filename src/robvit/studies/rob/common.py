"""What the studies of robustness tokens share: a backbone, its tokens, controls, and attacked features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.attack_cache import AttackCache, AttackSetting
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.token_training import TrainedTokens, train_tokens
from robvit.defenses.tokens import RobustTokens, import_published
from robvit.errors import InputError
from robvit.evaluation.token_surrogates import random_tokens
from robvit.progress import progress
from robvit.studies.common import StudyContext
from robvit.studies.published import read_published
from robvit.studies.rob.effort import TokenEffort

PUBLISHED = read_published("rob")
PAPER = PUBLISHED.paper
BACKBONE = "dinov2-small"

Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # clean and attacked images (B 3 H W), batch by batch


def backbone(context: StudyContext, effort: TokenEffort) -> Model:
    """The given backbone, without a classifier of its own; the default at the size of the scale.

    Published tokens of DINOv2 were learned with the positions of its own code.
    """
    name = BACKBONE if context.model is None else context.model
    usual = effort.side if name == BACKBONE else None
    hub = effort.published and isinstance(name, str) and "dinov2" in name
    positions = {"pos_embed": "hub"} if hub else {}
    return context.load(BACKBONE, img_size=context.img_size or usual, **positions)


def images_for(
    context: StudyContext, effort: TokenEffort, model: Model, *, learn: int, judged: int
) -> tuple[ImageDataset, ImageDataset]:
    """Images to learn from and others to judge on, of one set or, with `learn_data`, of two."""
    size = model.input_size[0]
    if not effort.learn_data:
        return context.splits("sample", size, learn=learn, judged=judged)
    source = StudyContext(data=effort.learn_data, resize=context.resize)
    first, second = source.part("sample", "train", size, learn), context.part("sample", "test", size, judged)
    if common := set(first.names) & set(second.names):
        raise InputError(
            f"learning and judging share {len(common)} images, such as {min(common)}; give other learn_data"
        )
    return first, second


def tokens_for(
    context: StudyContext, effort: TokenEffort, model: Model, images: ImageDataset, path: str
) -> RobustTokens:
    """The tokens of a file, or else those learned from the first images."""
    if path:
        return open_tokens(path, model)
    mine = images.take(range(min(effort.learn, len(images))))
    return learn_tokens(context, model, mine, effort.recipe(seed=context.seed)).tokens


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
