"""A new key for an old one: do new tokens keep clean features, do attacks on the old ones carry over?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from robvit.backbones.model import Model
from robvit.defenses.attack_cache import AttackSetting, Images
from robvit.defenses.tokens import RobustTokens
from robvit.errors import RobvitError

Report = Callable[..., None]
BATCH = 16


class NotInvariant(RobvitError):
    """New tokens that change clean features too much to take the place of the old ones."""


@dataclass(frozen=True)
class Seen:
    """One model on one kind of images: the cosine with original clean features, each image's class."""

    images: str
    model: str
    cosine: float
    predicted: list[int]


def compare(
    model: Model,
    sets: dict[str, RobustTokens],
    images: Images,
    attack: AttackSetting,
    *,
    report: Report | None = None,
) -> list[Seen]:
    """Clean images and those attacked by someone who knows one of the sets, on every model there is.

    `sets` names token sets, and the token-free model stands beside them. Predictions are empty without
    a head.
    """
    report = report or (lambda *_, **__: None)
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
        for kind, seen in zip(kinds, variants, strict=True):
            for name, one in models.items():
                cosine, classes = _look(one, seen, original)
                cosines[kind, name] += cosine
                predicted[kind, name] += classes
        report(len(x))
    return [Seen(k, m, sum(c) / len(c), predicted[k, m]) for (k, m), c in cosines.items()]


@torch.no_grad()
def _look(model: Model, x: torch.Tensor, original: torch.Tensor) -> tuple[list[float], list[int]]:
    tokens = model.tokens(x)
    features = torch.cat((tokens.prefix[:, :1], tokens.patch), dim=1)
    cosine: list[float] = F.cosine_similarity(features, original, dim=-1).mean(1).tolist()
    classes: list[int] = model.logits(tokens).argmax(1).tolist() if model.head is not None else []
    return cosine, classes


def check_invariance(seen: Sequence[Seen], name: str, bound: float) -> float:
    """The mean clean cosine of the set `name`; refuses one below `bound`."""
    clean = next(one.cosine for one in seen if one.images == "clean" and one.model == name)
    if clean < bound:
        raise NotInvariant(
            f"the clean features of the {name} have a cosine of {clean:.3f} with the original ones, "
            f"below the bound of {bound}: keep the old ones, or learn with more steps or a smaller lr"
        )
    return clean
