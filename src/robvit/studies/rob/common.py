"""What the studies of robustness tokens share: a backbone, its tokens, controls, and attacked features."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F

from robvit.backbones.heads import FeatureHead, load_head
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.attack_cache import AttackCache, AttackSetting
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.token_training import TrainedTokens, train_tokens
from robvit.defenses.tokens import RobustTokens, import_published
from robvit.errors import InputError
from robvit.evaluation.token_surrogates import random_tokens
from robvit.files import parse_json, read_text, write_json
from robvit.progress import progress
from robvit.resuming import key_of, versions
from robvit.studies.common import StudyContext
from robvit.studies.published import read_published
from robvit.studies.rob.effort import TokenEffort
from robvit.verdict import Claim, claim_of_means

PUBLISHED = read_published("rob")
PAPER = PUBLISHED.paper
BACKBONE = "dinov2-small"

Head = TypeVar("Head", bound=FeatureHead)
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


def fit_head(
    context: StudyContext, kind: type[Head], model: Model, images: ImageDataset, name: str, *, batch: int
) -> Head:
    """A head that learned from these images, kept in the study's folder, so that it is fitted once."""
    file, mark = context.out / f"{name}.safetensors", context.out / f"{name}.key.json"
    facts = [kind.kind, model.identity(), images.digest(), images.pixels(), images.resize, batch, versions()]
    if (
        file.exists()
        and mark.exists()
        and parse_json(read_text(mark, "a key"), mark, "a key") == key_of(facts)
    ):
        kept = load_head(file)
        assert isinstance(kept, kind)
        return kept
    with progress(f"a {name.replace('-', ' ')}", total=len(images)) as advance:
        head = kind.fit(
            model, images.batches(batch), len(images.classes), names=images.classes, progress=advance
        )
    assert isinstance(head, kind)
    head.save(file)
    write_json(mark, key_of(facts))  # last: a head without it is fitted again
    return head


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


def cosine_claim(
    text: str, first: Sequence[float], second: Sequence[float], paper: float | None = None
) -> Claim:
    """That the first cosines are above the second in the mean, image by image; a cosine has 100 points."""
    one, other = ([100 * value for value in side] for side in (first, second))
    return claim_of_means(f"cosine x 100: {text}", one, other, None if paper is None else 100 * paper)
