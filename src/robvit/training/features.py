"""Features that stay where they were under attack: the label-free objective, and what learns by it.

The tuned network's attacked features are drawn to the original's clean ones, class and patch tokens alike
(FARE, 2402.12336, which did so with an embedding). Heads that were learned on the original can stay.

Legend for shapes: B batch, T tokens, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from robvit.attacks import losses as objectives
from robvit.attacks.core import per_image_uniform
from robvit.attacks.losses import Loss as AttackLoss
from robvit.backbones.families import grid_of
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.errors import InputError, Unsupported
from robvit.processes import mean_of_all
from robvit.training.embedding_losses import Fare
from robvit.training.hiding import Hiding
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import LOSSES
from robvit.training.recipe import Inner

if TYPE_CHECKING:
    from robvit.training.validation import Scores

DISTANCES = {"squared": "embedding_l2", "cosine": "cosine"}
STILL = 0.01  # features that move less than this, in 1 - cosine, stay where they are
RATE, WEIGHTS = 0.1, (1e-3, 1e3)  # of the clean term's weight: its change a step, and its bounds
JUDGED = 0  # the seed of what is hidden while held-out images are judged
MOST_ADDED = 8  # inner steps; whoever needs more should lower eps


class FeatureLearner(nn.Module):
    """A model whose output is its features: (B 3 H W) in [0,1] to (B T D), class token first.

    Only `trained`, a part of its network or factors beside it, is a submodule, and so is learned and saved.
    The network stays in eval mode, because what is compared is the network as it will be used. `original`
    is the network whose features it is drawn to, if the model is not that at its start.
    """

    def __init__(self, model: Model, trained: nn.Module, original: Model | None = None) -> None:
        super().__init__()
        self._original = (original or model,)
        self.trained = trained
        self.model = (model,)  # in a tuple, so that it is no submodule
        self.input_size = model.input_size
        self.train()

    @property
    def original(self) -> FeatureLearner:
        """A copy of the network whose features are the aim, as one that learns nothing."""
        place = next(self.model[0].parameters()).device
        return type(self)(copy.deepcopy(self._original[0]), nn.Module()).to(place)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model[0].features(x).float()  # distances are taken in full precision

    @contextmanager
    def keeping(self, places: torch.Tensor) -> Iterator[None]:
        """Only the patch tokens at `places` (B N) enter the first block; all others are dropped before."""
        net: Any = self.model[0].net
        prefix: int = net.num_prefix_tokens

        def drop(_: nn.Module, __: Any, tokens: torch.Tensor) -> torch.Tensor:
            width = tokens.shape[-1]
            patches = tokens[:, prefix:].gather(1, places[..., None].expand(-1, -1, width))
            return torch.cat((tokens[:, :prefix], patches), dim=1)

        with net.patch_drop.register_forward_hook(drop):
            yield

    def train(self, mode: bool = True) -> FeatureLearner:
        self.model[0].eval()
        return super().train(False)

    def _apply(self, fn: Any, recurse: bool = True) -> FeatureLearner:
        self.model[0]._apply(fn, recurse)
        super()._apply(fn, recurse)
        return self


class TaskLearner(FeatureLearner):
    """The same with labels: its output is the logits (B K) of the network's classifier or head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model[0](x)
        return logits


def _keeping(model: nn.Module, places: torch.Tensor | None) -> AbstractContextManager[None]:
    """Only the patch tokens at `places` (B N), if any are given, enter a learner's first block."""
    if places is None:
        return nullcontext()
    assert isinstance(model, FeatureLearner)
    return model.keeping(places)


@LOSSES.add("features")
class Features(Fare):
    """The distance of attacked features from the original's clean ones, plus `clean_weight` times the clean
    features' own; no labels are needed. The model's output must be its features (B T D).

    `distance` is "squared", the mean over tokens of the squared L2 distance, which is not normalised since
    AdamW's steps do not depend on the scale of a loss; or "cosine", one minus the mean cosine. The attack
    climbs the same distance. With `clean_cosine`, the cosine that clean features are to keep, the weight
    starts at `clean_weight` (or one) and rises and falls until they do; weights that keep it on held-out
    images are preferred to others.

    Where the training's own attack moves held-out features (in 1 - cosine) less than `reach` times as far as
    one of many steps, gradients may be masked: that is a doubt, and with `add_steps` the training's attack
    has one step more from then on, and shorter ones. (An untuned DINOv2-small gives 0.6 for two steps at
    1/255.)

    Every token counts alike; with `class_weight` the class token has this share of the distance, and all
    patch tokens together the rest.

    With `keep` below one a step sees only this share of the patch tokens, drawn anew for every image and the
    same for both networks, at about that share of the blocks' cost; held-out images are always judged whole.

    With `hide`, the side of a patch in pixels, the tuned network sees images without two windows of tokens,
    of `hide_windows` along each side that cover such patches, and is drawn to what the original sees of the
    whole image, in training and when it is judged: what can be certified against patches rests on answers
    without two windows.
    """

    added: torch.Tensor
    weight: torch.Tensor
    attack_loss: str | AttackLoss

    def __init__(
        self,
        model: nn.Module,
        images: ImageDataset,
        *,
        distance: str = "squared",
        clean_weight: float = 0.0,
        clean_cosine: float | None = None,
        reach: float = 0.5,
        add_steps: bool = True,
        keep: float = 1.0,
        hide: int = 0,
        hide_windows: int = 4,
        class_weight: float | None = None,
    ) -> None:
        super().__init__(model, images)
        if distance not in DISTANCES:
            raise InputError(f"distance must be {' or '.join(DISTANCES)}, got {distance!r}")
        if clean_weight < 0:
            raise InputError(f"clean_weight must be 0 or more, got {clean_weight:g}")
        if clean_cosine is not None and not 0 < clean_cosine < 1:
            raise InputError(f"clean_cosine must lie between 0 and 1, such as 0.97, got {clean_cosine:g}")
        if not 0 < keep <= 1:
            raise InputError(f"keep must be above 0 and at most 1, such as 0.5, got {keep:g}")
        plain = isinstance(model, FeatureLearner) and model.model[0].family.plain_walk
        if (keep < 1 or hide) and not plain:
            raise Unsupported(
                "keep and hide drop patch tokens of plain ViTs, and this is none; leave them out"
            )
        self.keep = keep
        if hide < 0 or (hide and keep < 1):
            raise InputError(f"hide must be the side of a patch in pixels, and keep left out, got {hide}")
        self.hiding = None
        if hide and isinstance(model, FeatureLearner):
            self.hiding = Hiding(model.model[0], hide, hide_windows)
        if class_weight is not None and not 0 <= class_weight <= 1:
            raise InputError(f"class_weight must lie in 0..1, such as 0.5, got {class_weight:g}")
        if class_weight and isinstance(model, FeatureLearner) and not model.model[0].has_class_token:
            raise Unsupported(f"{model.model[0].name} has no class token to weigh; leave class_weight out")
        self.class_weight = class_weight
        self.cosine = distance == "cosine"
        self.attack_loss = DISTANCES[distance] if class_weight is None else self._weighted
        self.clean_cosine, self.reach, self.add_steps = clean_cosine, reach, add_steps
        start = clean_weight if clean_cosine is None else clean_weight or 1.0
        self.register_buffer("weight", torch.tensor(start, dtype=torch.float64))
        self.register_buffer("added", torch.zeros((), dtype=torch.int64))

    def target(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.original(x) if self.hiding is None else self._aim(x, self.hiding.places(x, JUDGED))

    def seeing(self, model: nn.Module, x: torch.Tensor) -> AbstractContextManager[None]:
        return _keeping(model, None if self.hiding is None else self.hiding.places(x, JUDGED))

    def judge(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return -objectives.cosine(output, target)

    def short_attack(self, inner: Inner) -> tuple[int, float]:
        steps = inner.steps + int(self.added)
        return steps, inner.relative_step * inner.steps / steps

    def apart(self, seen: Scores) -> str:
        """How far short and long attacks part, in words, or nothing if they stay together."""
        short, long = 1 - seen.one_step, 1 - seen.robust
        if long < STILL or short >= self.reach * long:
            return ""
        return (
            f"gradients may be masked: the training's attack moves features by {short:.3f} (1 - cosine), "
            f"a longer one by {long:.3f}, and {self.reach:.0%} of that are expected"
        )

    def doubt(self, seen: Scores, classes: int) -> str:
        if not (apart := self.apart(seen)):
            return ""
        answer = "use more inner steps or a smaller eps"
        if self.add_steps and self.added < MOST_ADDED:
            self.added += 1
            answer = "from here on the inner attack has one step more, and shorter ones"
        return f"{apart}; {answer}"

    def keeps(self, seen: Scores) -> bool:
        return self.clean_cosine is None or round(seen.clean, 3) >= self.clean_cosine  # as it is told

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        attack.more = int(self.added)
        places = self._places(model, x, attack)
        target = self._aim(x, places)
        with _keeping(model, places):
            value = self._distance(model(attack(model, x, target, self.attack_loss)), target)
            if self.weight:
                clean = model(x)
                value = value + float(self.weight) * self._distance(clean, target)
                self._adjust(clean.detach(), target)
        return value

    def _places(self, model: nn.Module, x: torch.Tensor, attack: InnerAttack) -> torch.Tensor | None:
        """The patch tokens (B N) of each image that a step sees; None if it sees them all."""
        if self.hiding is not None:
            return self.hiding.places(x, attack.seed)
        if self.keep == 1:
            return None
        assert isinstance(model, FeatureLearner)
        rows, columns = grid_of(model.model[0].net, x)
        count = max(1, round(self.keep * rows * columns))
        return per_image_uniform(x, attack.seed, "keep", rows * columns).argsort(1)[:, :count]

    def _aim(self, x: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
        """The original's features of what a step sees; it sees the whole image where some of it is hidden."""
        if self.hiding is not None and places is not None:
            return self.hiding.seen(self.original(x), places)
        with _keeping(self.original.args[0], places):
            return self.original(x)

    @torch.no_grad()
    def _adjust(self, clean: torch.Tensor, target: torch.Tensor) -> None:
        """Raise the weight of the clean term where clean features fall short of what they are to keep."""
        if self.clean_cosine is None:
            return
        cosine = mean_of_all(self.judge(clean, target).mean())
        short = (self.clean_cosine - cosine) / (1 - self.clean_cosine)
        self.weight.mul_(torch.exp(RATE * short.clamp(-5, 5))).clamp_(*WEIGHTS)

    def _distance(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean over the batch (B T D) of what the attack climbs; 0 where nothing moved."""
        each = self._plain if self.class_weight is None else self._weighted
        value = each(output, target).mean()
        return 1 + value if self.cosine else value

    def _plain(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (objectives.cosine if self.cosine else objectives.embedding_l2)(output, target)

    def _weighted(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert self.class_weight is not None
        of_class = self._plain(output[:, :1], target[:, :1])
        return self.class_weight * of_class + (1 - self.class_weight) * self._plain(
            output[:, 1:], target[:, 1:]
        )
