"""What each step of a training learns from: clean and attacked images, clean features, labels.

Attacked images come from the cache, or, where the attacker sees the tokens, from an attack on the
model as it is hardened now. Everything follows from the secret, or from the recipe's seed where there is
none, so a resumed run sees the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from robvit.attacks.cost import Passes
from robvit.backbones.model import Model
from robvit.defenses.attack_cache import PER_SHARD, AttackCache, CacheShard, Images, label_tensor
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.secret import TokenSecret, permutation, stretched
from robvit.errors import InputError


class Batch(NamedTuple):
    """Clean and attacked images (B 3 H W), clean features (B T D), labels (B,) if they are needed."""

    clean: torch.Tensor
    adv: torch.Tensor
    target: torch.Tensor
    labels: torch.Tensor | None


class TokenBatches:
    """The batches of one training."""

    def __init__(
        self,
        model: Model,
        images: Images,
        recipe: TokenRecipe,
        folder: Path | None = None,
        secret: TokenSecret | None = None,
        precision: str = "fp32",
    ) -> None:
        if len(images) == 0:
            raise InputError("tokens need images to learn from, got none")
        self.model, self.images, self.recipe, self.secret = model, images, recipe, secret
        self.precision = precision  # of the attacks' search; tokens learn in fp32
        self.caches = [AttackCache(model, images, attack, folder, precision) for attack in recipe.attacks]
        self.order = order(len(images), recipe, secret)
        self.fresh = 0  # the first so many images of each step are attacked afresh
        if recipe.adaptive is not None:
            self.fresh = max(1, round(recipe.adaptive.share * recipe.batch))
        self.labelled = recipe.task > 0 or any(attack.needs_labels for attack in recipe.attacks)
        self.device = next(model.parameters()).device

    @property
    def key(self) -> list[str]:
        """Names weights, images and attacks."""
        return [cache.key for cache in self.caches]

    def missing(self) -> list[tuple[AttackCache, list[CacheShard]]]:
        """The shards that are still to be made before the training, by cache."""
        return [(cache, cache.missing(self._used(turn))) for turn, cache in enumerate(self.caches)]

    def search(self) -> Passes:
        """The passes of the attacks that are still to be run, before the training and inside of it."""
        found = Passes(0, 0)
        for cache, shards in self.missing():
            steps, count = cache.attack.steps, sum(len(shard.places) for shard in shards)
            found = found.plus(Passes(steps + 3, steps).times(count))  # the features of both, and a last look
        if self.recipe.adaptive is not None:
            inner = self.recipe.adaptive.steps
            found = found.plus(Passes(inner + 1, inner).times(self.fresh * self.recipe.steps))
        return found

    def batch(self, step: int, hardened: Model) -> Batch:
        """The images of a step; fresh ones are attacked on `hardened`."""
        places = self.order[step]
        rows = [self.images[place] for place in places]
        clean = torch.stack([x for x, _ in rows]).to(self.device)
        labels = label_tensor([y for _, y in rows]).to(self.device) if self.labelled else None
        adv, target = [], []
        if self.fresh:
            with torch.no_grad():
                target.append(self.model.features(clean[: self.fresh]))
            adv.append(self._attacked(step, hardened, clean[: self.fresh], target[0], labels))
        for position in range(self.fresh, len(places)):
            one, goal = self.caches[self._turn(step, position)].row(places[position])
            adv.append(one.to(self.device))
            target.append(goal.to(self.device))
        return Batch(clean, torch.cat(adv), torch.cat(target), labels)

    def baselines(self) -> list[float]:
        """The cosine between clean and attacked features of the token-free model, image by image.

        If nothing comes from a cache they are those of the first step's images under the inner attack.
        """
        used = [self._used(turn) for turn in range(len(self.caches))]
        if any(used):
            return [c for cache, places in zip(self.caches, used, strict=True) for c in cache.cosines(places)]
        batch = self.batch(0, self.model)
        with torch.no_grad():
            moved = self.model.features(batch.adv)
        found: list[float] = F.cosine_similarity(moved, batch.target, dim=-1).mean(1).tolist()
        return found

    def _attacked(
        self, step: int, hardened: Model, x: torch.Tensor, target: torch.Tensor, labels: torch.Tensor | None
    ) -> torch.Tensor:
        assert self.recipe.adaptive is not None
        turns = torch.tensor([self._turn(step, position) for position in range(len(x))], device=x.device)
        adv = x.clone()
        for turn, attack in enumerate(self.recipe.attacks):
            mine = (turns == turn).nonzero()[:, 0]
            if len(mine):
                goal = labels[mine] if attack.needs_labels and labels is not None else target[mine]
                how = {"seed": self._inner_seed(step), "steps": self.recipe.adaptive.steps}
                adv[mine] = attack.inner(hardened, x[mine], goal, **how, precision=self.precision)
        return adv

    def _inner_seed(self, step: int) -> int:
        """A start of its own in every step for the attack on the tokens as they are."""
        if self.secret is None:
            return self.recipe.seed + step
        return int.from_bytes(stretched(self.secret.order, f"inner attack {step}", 7), "big")

    def _turn(self, step: int, position: int) -> int:
        """Which attack's version of an image is taken: another one in each pass over the images.

        A whole shard takes the same turn, so that no attack is run on images that it is not needed for.
        """
        number = (step * self.recipe.batch + position) // len(self.images)
        return (self.order[step][position] // PER_SHARD + number) % len(self.caches)

    def _used(self, turn: int) -> list[int]:
        """The places that are taken from one of the caches."""
        return sorted(
            {
                place
                for step, places in enumerate(self.order)
                for position, place in enumerate(places)
                if position >= self.fresh and self._turn(step, position) == turn
            }
        )


def order(count: int, recipe: TokenRecipe, secret: TokenSecret | None = None) -> list[list[int]]:
    """Which images each step takes: passes over all of them, each in an order of its own."""
    seeded = torch.Generator().manual_seed(recipe.seed)
    need, places = recipe.steps * recipe.batch, list[int]()
    while len(places) < need:
        if secret is None:
            places += torch.randperm(count, generator=seeded).tolist()
        else:
            places += permutation(secret.order, f"pass {len(places) // count}", count)
    return [places[i * recipe.batch : (i + 1) * recipe.batch] for i in range(recipe.steps)]
