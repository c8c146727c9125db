"""A new key for an old one: do new tokens keep clean features, do attacks on the old ones carry over?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from robvit.backbones.heads import FeatureHead
from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.data import ImageDataset
from robvit.defenses.attack_cache import AttackSetting, Images
from robvit.defenses.lora import LoRA
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.robustify import LearnedTokens, open_images, open_model
from robvit.defenses.secret import TokenSecret
from robvit.defenses.token_training import train_tokens
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError, RobvitError
from robvit.locks import alone_in
from robvit.progress import Advance, silent
from robvit.record import Record, Table

BATCH = 16
OLD, NEW = "old tokens", "new tokens"


class NotInvariant(RobvitError):
    """New tokens that change clean features too much to take the place of the old ones."""


@dataclass(frozen=True)
class Measurement:
    """One model on one kind of images: the cosine with original clean features, each image's class."""

    images: str
    model: str
    cosine: float
    predicted: list[int]


def rotate(
    old: RobustTokens | str | Path,
    model: Model | str,
    data: ImageDataset | str | Path,
    *,
    out: str | Path | None = None,
    bound: float = 0.8,
    steps: int | None = None,
    judge: int = 32,
    head: FeatureHead | str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    img_size: int | None = None,
    arch: str | None = None,
    lora: LoRA | str | Path | None = None,
    progress: Advance = silent,
    command: str = "",
) -> LearnedTokens:
    """Issue new tokens by the old ones' recipe, and tell how far attacks on the old ones carry over.

    What they grow from is drawn in secret. New tokens that change clean features too much are refused.

    old: the tokens that are to be replaced, or their file
    model: the Model they are for, or its name
    data: an open dataset, its name, or a folder, whose last images judge and whose others are learned from
    out: the folder for the new tokens, the state and record.json
    bound: the least cosine of clean features, with the new tokens and without
    steps: the training's steps; as before if left out
    judge: how many images are kept from the training to judge on
    head: a head, to tell accuracy as well; needs labels
    split, resize, limit, img_size, arch, lora: as for `robustify`
    progress: told each share of the work, one in all, with a note
    command: what the record says it was started by
    """
    before = old if isinstance(old, RobustTokens) else RobustTokens.load(old)
    if img_size is None and isinstance(model, str) and before.trained_on.size is not None:
        img_size = before.trained_on.size[0]
    net = open_model(model, head=head, img_size=img_size, arch=arch, lora=lora)
    before.check(net)
    resize = fitting(net.replace(tokens=before), resize)
    images = open_images(data, net, split=split, resize=resize, limit=limit)
    if not isinstance(images, ImageDataset):
        raise InputError("rotating takes a dataset or its name, got a tensor; put the images in a folder")
    if len(images) <= judge:
        raise InputError(f"{judge} images are kept to judge on, but there are only {len(images)}")
    learn, held = images.take(range(len(images) - judge)), images.take(range(-judge, 0))
    recipe = TokenRecipe.from_settings(before.settings | {"layers": before.layers, "count": before.count})
    folder = None if out is None else Path(out)
    with nullcontext() if folder is None else alone_in(folder):
        recipe = replace(recipe, steps=steps or recipe.steps)
        secret = TokenSecret.kept_in(folder)
        state = None if folder is None else folder / "state.safetensors"
        half = _half(progress)
        tokens = train_tokens(net, learn, recipe, secret=secret, state=state, progress=half).tokens
        attack = recipe.attack
        if attack.needs_labels:  # the question is about features, whatever the tokens learned from
            attack = AttackSetting("feature", attack.threat)
        sets = {OLD: before, NEW: tokens}
        seen = compare(net, sets, held, attack, progress=half)
        check_invariance(seen, NEW, bound)
        rotation = LearnedTokens(tokens, _record(net, sets, seen, held, attack, bound, command))
        if folder is not None:
            rotation.save(folder)
    return rotation


def compare(
    model: Model,
    sets: dict[str, RobustTokens],
    images: Images,
    attack: AttackSetting,
    *,
    progress: Advance = silent,
) -> list[Measurement]:
    """Clean images and those attacked by someone who knows one of the sets, on every model there is.

    `sets` names token sets, and the token-free model stands beside them. Predictions are empty without
    a head. `progress` is told each share of the images, one in all.
    """
    models = {"no tokens": model, **{name: model.replace(tokens=one) for name, one in sets.items()}}
    kinds = ["clean", *(f"attacked with {name}" for name in sets)]
    cosines: dict[tuple[str, str], list[float]] = {(k, m): [] for k in kinds for m in models}
    predicted: dict[tuple[str, str], list[int]] = {(k, m): [] for k in kinds for m in models}
    for first in range(0, len(images), BATCH):
        places = range(first, min(first + BATCH, len(images)))
        x = torch.stack([images[place][0] for place in places]).to(next(model.parameters()).device)
        with torch.no_grad():
            original = model.features(x)
        variants = [x, *(attack.run(models[name], x) for name in sets)]
        for kind, variant in zip(kinds, variants, strict=True):
            for name, one in models.items():
                cosine, classes = _look(one, variant, original)
                cosines[kind, name] += cosine
                predicted[kind, name] += classes
        progress(len(x) / len(images), note="attacks on both sets")
    return [Measurement(k, m, sum(c) / len(c), predicted[k, m]) for (k, m), c in cosines.items()]


@torch.no_grad()
def _look(model: Model, x: torch.Tensor, original: torch.Tensor) -> tuple[list[float], list[int]]:
    tokens = model.tokens(x)
    features = tokens.features()
    cosine: list[float] = F.cosine_similarity(features, original, dim=-1).mean(1).tolist()
    classes: list[int] = model.logits(tokens).argmax(1).tolist() if model.head is not None else []
    return cosine, classes


def check_invariance(seen: Sequence[Measurement], name: str, bound: float) -> float:
    """The mean clean cosine of the set `name`; refuses one below `bound`."""
    clean = next(one.cosine for one in seen if one.images == "clean" and one.model == name)
    if clean < bound:
        raise NotInvariant(
            f"the clean features of the {name} have a cosine of {clean:.3f} with the original ones, "
            f"below the bound of {bound}: keep the old ones, or learn with more steps or a smaller lr"
        )
    return clean


def _half(progress: Advance) -> Advance:
    def advance(amount: float = 1, note: str = "") -> None:
        progress(amount / 2, note=note)

    return advance


def _record(
    model: Model,
    sets: dict[str, RobustTokens],
    seen: list[Measurement],
    held: ImageDataset,
    attack: AttackSetting,
    bound: float,
    command: str,
) -> Record:
    """What was seen, as a table: images, model, cosine, accuracy where there is a head."""
    rows: list[list[Any]] = []
    for one in seen:
        correct = [p == y for p, y in zip(one.predicted, held.labels, strict=False)]
        accuracy = sum(correct) / len(correct) if correct else None
        rows.append([one.images, one.model, round(one.cosine, 2), accuracy])
    # To two decimals: sixteen digits would tell a right guess of the tokens from any other.
    cosine = {(one.images, one.model): round(one.cosine, 2) for one in seen}
    own, carried = (cosine[f"attacked with {OLD}", name] for name in (OLD, NEW))
    note = f"Feature attacks within {attack.threat}, each by someone who knows the named tokens."
    return Record(
        kind="rotation",
        model={**model.facts(), **{name: tokens.key_id for name, tokens in sets.items()}},
        data=held.facts(),
        trials=[],
        protocol={"threat": asdict(attack.threat.budget), "attack": attack.name, **attack.settings},
        tables=[Table("Rotation", ["images", "model", "cosine", "accuracy"], rows, note)],
        metrics={
            "cosine, clean, new tokens": cosine["clean", NEW],
            "cosine, clean, bound": bound,
            "cosine, old attack, old tokens": own,
            "cosine, old attack, new tokens": carried,
        },
        notes=[
            f"Images attacked with the old tokens keep a cosine of {carried:.2f} under the new ones; "
            f"under the old ones it was {own:.2f}."
        ],
        command=command,
    )
