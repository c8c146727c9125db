"""Learning robustness tokens: label-free, on a frozen backbone (Pulfer et al., ECCV 2024).

The tokens r maximise cos(f([r, x]), f(x)) + cos(f([r, x_adv]), f(x)), where x_adv is attacked on the
token-free model. Attacked pictures and targets come from the store; the two passes of a step are one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

from robvit.attacks import frozen
from robvit.backbones.model import Model
from robvit.defenses.store import AttackSetting, AttackStore, Pictures, TensorPictures
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError, RobvitError, Unsupported
from robvit.files import written_whole
from robvit.threat import Threat

Report = Callable[..., None]


class Diverged(RobvitError):
    """The training left the numbers; the last good state is kept."""


@dataclass(frozen=True)
class Recipe:
    """How tokens are learned; the defaults are the paper's, with the published code's small start.

    `axis` is that of the cosine: features of each token (-1), or, as in the published code, tokens of
    each feature (1).
    """

    count: int = 10
    steps: int = 200
    batch: int = 8
    lr: float = 1e-3
    start: float = 0.01
    axis: int = -1
    seed: int = 0
    attack: AttackSetting = field(default_factory=AttackSetting)

    def __post_init__(self) -> None:
        for name in ("count", "steps", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")


# The published code's choices: its attack, its cosine axis, and the 50 steps its tokens were made with.
REFERENCE = Recipe(steps=50, axis=1, attack=AttackSetting("feature_reference", Threat("linf", 8 / 255)))


@dataclass
class Training:
    """Tokens on the way: the state that a resumed run needs, and what was seen so far.

    history holds, for each step, the cosine of hardened clean and of hardened attacked features.
    """

    tokens: RobustTokens
    baseline: float
    history: list[tuple[float, float]]
    attacked: int


def robustify(
    model: Model,
    images: Pictures | torch.Tensor,
    count: int = 10,
    *,
    recipe: Recipe | None = None,
    state: Path | None = None,
    store: Path | None = None,
    report: Report | None = None,
) -> RobustTokens:
    """Learn `count` secret tokens for a frozen model from pictures alone.

    `images` are pictures (N 3 H W) in [0,1] or a data set of them; `state` is a file from which an
    interrupted training goes on to the same tokens, bit for bit; `store` is where attacked pictures
    are kept (the user's cache if left out). `report(share, note=...)` is told each share of the work,
    one in all.
    """
    recipe = recipe or Recipe(count=count)
    pictures = TensorPictures(images) if isinstance(images, torch.Tensor) else images
    return train(model, pictures, recipe, state=state, store=store, report=report).tokens


def train(
    model: Model,
    pictures: Pictures,
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
    if len(pictures) == 0:
        raise InputError("tokens need pictures to learn from, got none")
    order = _order(len(pictures), recipe)
    used = sorted({place for batch in order for place in batch})
    kept = AttackStore(model, pictures, recipe.attack, store)
    missing = kept.missing(used)
    attacked = sum(len(shard.places) for shard in missing)
    # In forward passes, where a backward pass counts two: what a picture costs to attack, and in a step.
    attack_cost, step_cost = 3 * recipe.attack.steps, 6
    total = attacked * attack_cost + recipe.steps * recipe.batch * step_cost
    kept.fill(missing, lambda count, note: report(count * attack_cost / total, note=note))
    run = _Run(model, kept, recipe, state)
    run.resume()
    with frozen(model):  # no graph for the weights, no gradients for them
        for step in range(run.step, recipe.steps):
            run.advance(order[step])
            report(recipe.batch * step_cost / total, note=run.note())
    run.save()
    settings = asdict(recipe)
    tokens = RobustTokens(run.tokens.detach().cpu().clone(), model.fingerprint(), settings=settings)
    return Training(tokens, kept.baseline(used), run.history, attacked)


def _order(count: int, recipe: Recipe) -> list[list[int]]:
    """Which pictures each step takes: passes over all of them, each in an order of its own."""
    seeded = torch.Generator().manual_seed(recipe.seed)
    need, places = recipe.steps * recipe.batch, list[int]()
    while len(places) < need:
        places += torch.randperm(count, generator=seeded).tolist()
    return [places[i * recipe.batch : (i + 1) * recipe.batch] for i in range(recipe.steps)]


class _Run:
    """The loop's state: tokens, Adam's moments, the step, the history."""

    SAVE_EVERY = 20  # steps between two states on disk

    def __init__(self, model: Model, store: AttackStore, recipe: Recipe, path: Path | None) -> None:
        self.model, self.store, self.recipe, self.path = model, store, recipe, path
        self.device = next(model.parameters()).device
        seeded = torch.Generator().manual_seed(recipe.seed)
        start = recipe.start * torch.randn(1, recipe.count, model.width, generator=seeded)
        self.tokens = start.to(self.device).requires_grad_()
        self.adam = torch.optim.Adam([self.tokens], lr=recipe.lr, betas=(0.9, 0.999))
        self.step = 0
        self.history: list[tuple[float, float]] = []

    def advance(self, places: list[int]) -> None:
        """One step on clean and attacked pictures in a single pass."""
        clean, adv, target = (t.to(self.device) for t in self.store.batch(places))
        features = self.model.features(torch.cat((clean, adv)), extra=self.tokens)
        cosine = F.cosine_similarity(features, torch.cat((target, target)), dim=self.recipe.axis)
        kept, withstood = (part.mean() for part in cosine.chunk(2))
        (self.tokens.grad,) = torch.autograd.grad(-(kept + withstood), self.tokens)
        seen = (kept.item(), withstood.item())
        if not all(math.isfinite(v) for v in seen) or not bool(self.tokens.grad.isfinite().all()):
            raise Diverged(
                f"step {self.step}: the loss is {seen}; lower lr ({self.recipe.lr}) and run again, "
                f"the last good state is kept{f' in {self.path}' if self.path else ''}"
            )
        self.adam.step()
        self.history.append(seen)
        self.step += 1
        if self.step % self.SAVE_EVERY == 0:
            self.save()

    def note(self) -> str:
        kept, withstood = self.history[-1]
        return f"clean cosine {kept:.2f}, attacked {withstood:.2f}"

    def _key(self) -> str:
        return json.dumps([self.store.key, asdict(self.recipe)], sort_keys=True)

    def save(self) -> None:
        """Keep the state for the owner's eyes only: it holds the tokens."""
        if self.path is None or self.step == 0:
            return
        moments = self.adam.state[self.tokens]
        tensors = {
            "tokens": self.tokens.detach(),
            "first": moments["exp_avg"],
            "second": moments["exp_avg_sq"],
        }
        facts = {"key": self._key(), "history": json.dumps(self.history)}
        with written_whole(self.path, mode=0o600) as aside:
            save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, aside, facts)

    def resume(self) -> None:
        """Go on from a state of the same run; one of another run is refused."""
        if self.path is None or not self.path.exists():
            return
        with safe_open(self.path, "pt") as file:
            facts: dict[str, Any] = file.metadata() or {}
            if facts.get("key") != self._key():
                raise InputError(f"{self.path} is the state of another training; choose another folder")
            with torch.no_grad():
                self.tokens.copy_(file.get_tensor("tokens"))
            self.history = [(a, b) for a, b in json.loads(facts["history"])]
            self.step = len(self.history)
            self.adam.state[self.tokens] = {
                "step": torch.tensor(float(self.step)),
                "exp_avg": file.get_tensor("first").to(self.device),
                "exp_avg_sq": file.get_tensor("second").to(self.device),
            }
