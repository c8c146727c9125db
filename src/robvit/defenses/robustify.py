"""Learning robustness tokens: label-free, on a frozen backbone (Pulfer et al., ECCV 2024).

The tokens r maximise cos(f([r, x]), f(x)) + cos(f([r, x_adv]), f(x)), where x_adv is attacked on the
token-free model. Attacked images and targets come from the store; the two passes of a step are one.
Beyond the paper: tokens in deeper layers, several attacks in turns, an attacker who sees the tokens, a
head that learns along, and pools.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from robvit.attacks import frozen
from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.defenses.attack_cache import Images, TensorImages
from robvit.defenses.batches import Examples
from robvit.defenses.pool import TokenPool
from robvit.defenses.recipe import REFERENCE as REFERENCE
from robvit.defenses.recipe import Adaptive as Adaptive
from robvit.defenses.recipe import Recipe as Recipe
from robvit.defenses.token_trainer import Learner
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError, Unsupported
from robvit.files import tensors_sha256

Report = Callable[..., None]


@dataclass
class Training:
    """Learned tokens and what was seen on the way.

    history holds, for each step, the cosine of hardened clean and of hardened attacked features;
    `attacked` is how many images were not in the store; `head` learned along, if one did.
    """

    tokens: RobustTokens
    baseline: float
    history: list[tuple[float, float]]
    attacked: int
    head: LinearHead | None = None


def robustify(
    model: Model,
    images: Images | torch.Tensor,
    count: int = 10,
    *,
    recipe: Recipe | None = None,
    state: Path | None = None,
    store: Path | None = None,
    report: Report | None = None,
) -> RobustTokens:
    """Learn `count` secret tokens for a frozen model from dataset alone.

    `images` are dataset (N 3 H W) in [0,1] or a data set of them; `state` is a file from which an
    interrupted training goes on to the same tokens, bit for bit; `store` is where attacked images
    are kept (the user's cache if left out). `report(share, note=...)` is told each share of the work,
    one in all. Whoever has the dataset, the recipe and its seed can make the same tokens: keep the
    seed secret too.
    """
    recipe = recipe or Recipe(count=count)
    dataset = TensorImages(images) if isinstance(images, torch.Tensor) else images
    return train(model, dataset, recipe, state=state, store=store, report=report).tokens


def train(
    model: Model,
    images: Images,
    recipe: Recipe,
    *,
    state: Path | None = None,
    store: Path | None = None,
    report: Report | None = None,
) -> Training:
    """`robustify` with the whole story: the un-hardened baseline and the course of the training."""
    report = report or (lambda *_, **__: None)
    if not model.family.takes_extra:
        raise Unsupported(f"{model.name} cannot take extra tokens: {model.family.why_not}")
    examples = Examples(model, images, recipe, store)
    learner = Learner(model, examples, recipe, state)
    learner.resume()
    missing = examples.missing()
    attacked = sum(len(shard.places) for _, shards in missing for shard in shards)
    # In forward passes, where a backward pass counts two: what an image costs to attack, and in a step.
    step_cost = 6 * recipe.batch + 3 * examples.fresh * (recipe.adaptive.steps if recipe.adaptive else 0)
    total = (recipe.steps - learner.step) * step_cost
    total += sum(len(s.places) * 3 * kept.attack.steps for kept, shards in missing for s in shards)
    for kept, shards in missing:
        cost = 3 * kept.attack.steps / max(total, 1)
        kept.fill(shards, lambda count, note, cost=cost: report(count * cost, note=note))
    baseline = examples.baseline()
    with frozen(model):  # no graph for the weights, no gradients for them
        while learner.step < recipe.steps:
            learner.advance()
            report(step_cost / total, note=learner.note(baseline))
    learner.save()
    values = learner.tokens.detach().cpu().clone()
    tokens = RobustTokens(
        values,
        model.fingerprint(),
        tensors_sha256({"tokens": values})[:12],  # the same tokens again have the same name
        settings=asdict(learner.recipe),
        layers=learner.layers,
    )
    head = None if learner.head is None else learner.head.requires_grad_(False)
    return Training(tokens, baseline, learner.history, attacked, head)


def train_pool(
    model: Model,
    images: Images,
    recipe: Recipe,
    size: int,
    *,
    state: Path | None = None,
    store: Path | None = None,
    report: Report | None = None,
) -> tuple[TokenPool, list[Training]]:
    """Learn `size` independent sets from one store of attacked images.

    `state` is a folder with a file for each set. A single set has the recipe's seed; those of several
    follow from it, but neither it nor one of them from another.
    """
    if size < 1:
        raise InputError(f"a pool needs at least one set, got {size}")
    report = report or (lambda *_, **__: None)
    trainings = []
    for number in range(size):
        digest = hashlib.sha256(f"{recipe.seed} {number}".encode()).digest()
        seed = int.from_bytes(digest[:7], "big") if size > 1 else recipe.seed
        trainings.append(
            train(
                model,
                images,
                replace(recipe, seed=seed),
                state=None if state is None else state / f"state-{number}.safetensors",
                store=store,
                report=lambda share, note="", n=number: report(share / size, note=_of(n, size) + note),
            )
        )
    return TokenPool(tuple(training.tokens for training in trainings)), trainings


def _of(number: int, size: int) -> str:
    return f"set {number + 1} of {size}, " if size > 1 else ""
