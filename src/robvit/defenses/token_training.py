"""Learning robustness tokens: label-free, on a frozen backbone (Pulfer et al., ECCV 2024).

The tokens r maximise cos(f([r, x]), f(x)) + cos(f([r, x_adv]), f(x)), where x_adv is attacked on the
token-free model. Attacked images and targets come from the cache; the two passes of a step are one.
Beyond the paper: tokens in deeper layers, several attacks in turns, an attacker who sees the tokens, a
head that learns along, and pools.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from robvit.attacks import frozen
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.defenses.attack_cache import Images
from robvit.defenses.batches import TokenBatches
from robvit.defenses.pool import TokenPool
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.secret import TokenSecret
from robvit.defenses.token_trainer import TokenTrainer
from robvit.defenses.tokens import SECRET, SEED, RobustTokens
from robvit.errors import InputError, Unsupported
from robvit.progress import Advance, silent
from robvit.tensor_files import tensors_sha256


@dataclass
class TrainedTokens:
    """Learned tokens and what was seen on the way.

    `baselines` are the cosines of un-hardened attacked features, image by image. history holds, for each
    step, the cosine of hardened clean and of hardened attacked features; `means` is what may be told of it
    where the tokens are secret. `attacked` is how many images were not in the cache;
    `head` learned along, if one did.
    """

    tokens: RobustTokens
    baselines: list[float]
    history: list[tuple[float, float]]
    means: list[tuple[int, float, float]]
    attacked: int
    head: LinearHead | None = None

    @property
    def baseline(self) -> float:
        """The mean of the baselines."""
        return sum(self.baselines) / len(self.baselines)


def train_tokens(
    model: Model,
    images: Images,
    recipe: TokenRecipe,
    *,
    secret: TokenSecret | None = None,
    state: Path | None = None,
    cache: Path | None = None,
    precision: str = "fp32",
    progress: Advance = silent,
) -> TrainedTokens:
    """Learn one set of tokens for a frozen model, with the un-hardened baseline and the course of it.

    Start and order follow from `secret`; without one from the recipe's seed, and then the tokens are none.
    `state` is a file from which an interrupted training resumes to the same tokens, bit for bit; `cache` is
    where attacked images are kept (the user's own if left out). `precision` is that of the attacks' search;
    tokens learn in fp32. `progress` is told each share of the work.
    """
    if not model.family.takes_extra:
        raise Unsupported(f"{model.name} cannot take extra tokens: {model.family.why_not}")
    batches = TokenBatches(model, images, recipe, cache, secret, precision)
    trainer = TokenTrainer(model, batches, recipe, state, secret)
    trainer.resume()
    missing = batches.missing()
    attacked = sum(len(shard.places) for _, shards in missing for shard in shards)
    # In forward passes, where a backward pass counts two: what an image costs to attack, and in a step.
    step_cost = 6 * recipe.batch + 3 * batches.fresh * (recipe.adaptive.steps if recipe.adaptive else 0)
    total = (recipe.steps - trainer.step) * step_cost
    total += sum(len(s.places) * 3 * kept.attack.steps for kept, shards in missing for s in shards)
    for kept, shards in missing:
        cost = 3 * kept.attack.steps / max(total, 1)
        kept.fill(shards, _scaled(progress, cost))
    baselines = batches.baselines()
    baseline = sum(baselines) / len(baselines)
    with frozen(model):  # no graph for the weights, no gradients for them
        while trainer.step < recipe.steps:
            trainer.advance()
            progress(step_cost / total, note=trainer.note(baseline))
    trainer.save()
    values = trainer.tokens.detach().cpu().clone()
    settings, salt = asdict(trainer.recipe), ""
    settings |= TrainedOn(model.input_size, getattr(images, "resize", "")).settings()
    if secret is not None:
        del settings["seed"]  # nothing grew from it
        salt = secret.salt
    tokens = RobustTokens(
        values,
        model.fingerprint(),
        tensors_sha256({"tokens": values}, salt)[:12],  # the same tokens again have the same name
        settings=settings,
        layers=trainer.layers,
        origin=SEED if secret is None else SECRET,
        salt=salt,
        learned_from=tuple(getattr(images, "names", ())),
    )
    head = None if trainer.head is None else trainer.head.requires_grad_(False)
    return TrainedTokens(tokens, baselines, trainer.history, trainer.means(), attacked, head)


def train_pool(
    model: Model,
    images: Images,
    recipe: TokenRecipe,
    size: int,
    *,
    secret: TokenSecret | None = None,
    state: Path | None = None,
    cache: Path | None = None,
    precision: str = "fp32",
    progress: Advance = silent,
) -> tuple[TokenPool, list[TrainedTokens]]:
    """Learn `size` independent sets from one cache of attacked images.

    `state` is a folder with a file for each set. A single set has the secret, or the recipe's seed; those of
    several follow from it, but neither it nor one of them from another.
    """
    if size < 1:
        raise InputError(f"a pool needs at least one set, got {size}")
    trainings = []
    for number in range(size):
        digest = hashlib.sha256(f"{recipe.seed} {number}".encode()).digest()
        seed = int.from_bytes(digest[:7], "big") if size > 1 else recipe.seed
        trainings.append(
            train_tokens(
                model,
                images,
                replace(recipe, seed=seed),
                secret=secret.member(number) if secret and size > 1 else secret,
                state=None if state is None else state / f"state-{number}.safetensors",
                cache=cache,
                precision=precision,
                progress=_scaled(progress, 1 / size, f"set {number + 1} of {size}, " if size > 1 else ""),
            )
        )
    return TokenPool(tuple(training.tokens for training in trainings)), trainings


def _scaled(progress: Advance, share: float, label: str = "") -> Advance:
    """The progress of a part of the work, which is so large a share of it."""

    def advance(amount: float = 1, note: str = "") -> None:
        progress(amount * share, note=label + note)

    return advance
