"""The loop's state: tokens, the head that learns along, Adam's moments, the step, the history.

It is saved whole and read back to the same bits, for the owner's eyes only: it holds the secret.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.defenses.batches import Batch, TokenBatches
from robvit.defenses.recipe import TokenRecipe
from robvit.defenses.secret import TokenSecret, normal
from robvit.errors import Diverged, InputError
from robvit.files import parse_json, written_whole
from robvit.resuming import check_unchanged, versions
from robvit.tensor_files import read_tensors

LEAST_WINDOW = 20  # steps whose mean is told
MOST_WINDOWS = 3


def window_of(recipe: TokenRecipe, count: int) -> int:
    """Over how many steps the cosines that are told are means: whole passes over the images, and few of them.

    Each step's own cosines, or means over a part of the images, tell which images were taken when.
    """
    one_pass = math.ceil(count / recipe.batch)
    least = max(LEAST_WINDOW, math.ceil(recipe.steps / MOST_WINDOWS))
    return one_pass * math.ceil(least / one_pass)


def window_means(history: Sequence[tuple[float, float]], window: int) -> list[tuple[int, float, float]]:
    """The last step of each whole window and the means of both cosines over it, to two decimals."""
    found = []
    for end in range(window, len(history) + 1, window):
        clean, attacked = (sum(part) / window for part in zip(*history[end - window : end], strict=True))
        found.append((end, round(clean, 2), round(attacked, 2)))
    return found


class TokenTrainer:
    """Tokens on the way to being learned."""

    SAVE_EVERY = 20  # steps between two states on disk

    def __init__(
        self,
        model: Model,
        batches: TokenBatches,
        recipe: TokenRecipe,
        path: Path | None,
        secret: TokenSecret | None = None,
    ) -> None:
        self.model, self.batches, self.path, self.secret = model, batches, path, secret
        self.layers = model.chosen_layers(recipe.layers)
        self.recipe = replace(recipe, layers=self.layers)
        device = next(model.parameters()).device
        shape = len(self.layers), recipe.count, model.width
        if secret is None:
            start = torch.randn(shape, generator=torch.Generator().manual_seed(recipe.seed))
        else:
            start = normal(secret.start, "tokens", shape)
        self.tokens = (recipe.start * start).to(device).requires_grad_()
        self.learned: dict[str, torch.Tensor] = {"tokens": self.tokens}
        self.head: LinearHead | None = None
        if recipe.task > 0:
            if not isinstance(model.head, LinearHead):
                raise InputError(f"a linear head learns along; give {model.name} one (`robvit train head`)")
            self.head = copy.deepcopy(model.head).requires_grad_(True)
            self.learned |= {f"head.{name}": p for name, p in self.head.named_parameters()}
        self.adam = torch.optim.Adam(list(self.learned.values()), lr=recipe.lr, betas=(0.9, 0.999))
        self.step = 0
        self.history: list[tuple[float, float]] = []

    def advance(self) -> None:
        """One step on clean and attacked images in a single pass."""
        batch = self.batches.batch(self.step, self.hardened())
        kept, attacked, loss = self._objective(batch)
        gradients = torch.autograd.grad(loss, list(self.learned.values()))
        seen = (kept.item(), attacked.item())
        if not all(math.isfinite(v) for v in (*seen, loss.item())) or not all(
            bool(gradient.isfinite().all()) for gradient in gradients
        ):
            # No values: a step's own cosines tell which images it took.
            raise Diverged(
                f"step {self.step}: cosines and gradients must be finite, some are not any more; "
                f"lower lr ({self.recipe.lr}) and run again, "
                f"the last good state is kept{f' in {self.path}' if self.path else ''}"
            )
        for parameter, gradient in zip(self.learned.values(), gradients, strict=True):
            parameter.grad = gradient
        self.adam.step()
        self.history.append(seen)
        self.step += 1
        if self.step % self.SAVE_EVERY == 0:
            self.save()

    def hardened(self) -> Model:
        """The model with the tokens and the head as they are now, for whoever attacks it."""
        head = self.head or self.model.head
        return self.model.replace(tokens=self.tokens.detach(), layers=self.layers, head=head)

    def _objective(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The cosines of clean and of attacked features, and what is minimised."""
        x = torch.cat((batch.clean, batch.adv))
        tokens = self.model.tokens(x, self.tokens, self.layers)
        features = tokens.features()
        target = torch.cat((batch.target, batch.target))
        cosine = F.cosine_similarity(features, target, dim=self.recipe.axis)
        kept, attacked = (part.mean() for part in cosine.chunk(2))
        loss = -(kept + attacked)
        if self.head is not None and batch.labels is not None:
            labels = torch.cat((batch.labels, batch.labels))
            entropy = 2 * F.cross_entropy(self.head(tokens, self.model.input_size), labels)
            loss = (1 - self.recipe.task) * loss + self.recipe.task * entropy
        return kept, attacked, loss

    def means(self) -> list[tuple[int, float, float]]:
        """The course of the training as far as it may be told: steps and means of both cosines."""
        return window_means(self.history, window_of(self.recipe, len(self.batches.images)))

    def note(self, baseline: float) -> str:
        """How it goes, in means over so many steps that a log does not tell the order of the images."""
        if not (means := self.means()):
            return f"un-hardened cosine {baseline:.2f}"
        kept, attacked = means[-1][1:]
        return f"cosine: clean {kept:.2f}, attacked {attacked:.2f}, un-hardened {baseline:.2f}"

    def _key(self) -> dict[str, Any]:
        """All that decides the tokens, by name."""
        images: Any = self.batches.images
        pixels = getattr(images, "pixels", images.digest)  # the digest of images in memory names their values
        precision = self.batches.precision
        return ({} if precision == "fp32" else {"precision": precision}) | {
            "stored attacks": self.batches.key,
            "pixels": pixels(),
            "recipe": asdict(self.recipe),
            "secret": None if self.secret is None else self.secret.digest(),
            "versions": versions(),
        }

    def save(self) -> None:
        """Keep the state, where a file is named for it."""
        if self.path is None or self.step == 0:
            return
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self.learned.items():
            moments = self.adam.state[parameter]
            tensors |= {
                name: parameter.detach(),
                f"{name} first": moments["exp_avg"],
                f"{name} second": moments["exp_avg_sq"],
            }
        facts = {"key": json.dumps(self._key()), "history": json.dumps(self.history)}
        with written_whole(self.path, mode=0o600) as aside:
            save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, aside, facts)

    def resume(self) -> None:
        """Go on from a state of the same run; one of another run is refused."""
        if self.path is None or not self.path.exists():
            return
        held, facts = read_tensors(self.path, "the state of a training")
        check_unchanged(self.path, parse_json(facts.get("key", "null"), self.path, "a state"), self._key())
        try:
            self.history = [(a, b) for a, b in parse_json(facts["history"], self.path, "a state")]
            self.step = len(self.history)
            for name, parameter in self.learned.items():
                with torch.no_grad():
                    parameter.copy_(held[name])
                first, second = (held[f"{name} {which}"].to(parameter) for which in ("first", "second"))
                self.adam.state[parameter] = {
                    "step": torch.tensor(float(self.step)),
                    "exp_avg": first,
                    "exp_avg_sq": second,
                }
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{self.path} is damaged ({error}); remove it to start anew") from None
