"""A label-free fine-tuning before it starts: its numbers, the part of a model that learns, and the images."""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import nn

from robvit.backbones.model import Model
from robvit.budget import parse_number
from robvit.data import ImageDataset, from_arrays
from robvit.defenses import low_rank
from robvit.defenses.lora import LoRA
from robvit.errors import InputError
from robvit.training.features import FeatureLearner, TaskLearner
from robvit.training.recipe import Recipe, changed, changes_of, make_recipe
from robvit.training.splits import Splits

METHODS = {"lora": "lora.safetensors", "full": "model.safetensors"}  # and the file each one leaves
LEARNING_RATES = {"lora": 1e-3, "full": 1e-4}
SUPERVISED = {"task": "pgd_at", "trades": "trades"}  # the loss with labels, as the recipes call it
ONLY_FEATURES = {
    "clean_weight": 0.0,
    "clean_cosine": None,
    "keep": 1.0,
    "hide": 0,
    "class_weight": None,
    "extra_share": 0.0,
}
OF_THE_LOSS = (
    *("distance", "clean_weight", "clean_cosine", "reach", "add_steps", "keep", "hide", "hide_windows"),
    "class_weight",
)
AUTO = "auto"  # a class weight that follows from the network
FEW_STEPS = 2
FEW_STEPS_DO = 2 / 255  # L-inf; beyond it an attack of two large steps teaches a network to hide from such
LONG_ATTACK = {False: (10, 1), True: (20, 2)}  # steps and starts that judge, up to that and beyond
CLASS_WEIGHT = 0.5  # where it has a class token; what the recorded tunings were made with


@dataclass(frozen=True)
class Tuning:
    """How a model is made robust: by which method, against what, for how long.

    "lora" trains factors of a `rank` beside every linear layer, "full" the weights themselves; `blocks` keeps
    either to the first blocks. The inner attack takes `inner_steps` of `step` times eps from a random start,
    left out 2 of them, and beyond 2/255 one more for each 2/255. Times are in steps of `batch` images: the
    learning rate and eps grow from zero over the shares `warmup` and `eps_warmup` of them. At most `held_out`
    images, a tenth of all, are judged `validations` times by an attack of `judge_steps` from `judge_starts`,
    left out 10 from one and beyond 2/255 20 from two; the weights that did best are kept. `distance`,
    `clean_weight`, `clean_cosine`, `reach`, `add_steps`, `keep`, `hide`, `hide_windows` and `class_weight`
    are those of `Features`; left at "auto", `class_weight` is 0.5 where the network has a class token. With
    `loss` "task" or "trades" labels and the model's own classifier or head take the features' place: its loss
    on attacked images, or TRADES with `beta`. With `norms` the normalisations and layer scales learn along
    with LoRA's factors (FullLoRA-AT, 2401.01752). `extra_share` of each batch comes from a second set of
    images. `changes` reach any key of the recipe ("ema", "augment.flip").
    """

    method: str = "lora"
    rank: int = 16
    alpha: float = 16.0  # of alpha / rank, so that a learning rate serves every rank
    blocks: int | None = None
    norms: bool = False
    eps: float = 2 / 255
    norm: str = "linf"
    inner_steps: int | None = None
    step: float = 0.75
    steps: int = 150
    batch: int = 32
    lr: float | None = None
    warmup: float = 0.05
    eps_warmup: float = 0.1
    loss: str = "features"
    beta: float = 6.0
    distance: str = "squared"
    clean_weight: float = 0.0
    clean_cosine: float | None = None
    held_out: int = 32
    validations: int = 5
    judge_steps: int | None = None
    judge_starts: int | None = None
    reach: float = 0.5
    add_steps: bool = True
    keep: float = 1.0
    hide: int = 0
    hide_windows: int = 4
    class_weight: float | str | None = AUTO
    extra_share: float = 0.0
    seed: int = 0
    changes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any], settings: list[str]) -> Tuning:
        """The tuning of values, None aside, and of text such as keep=0.5; other keys are the recipe's."""
        own = {name: value for name, value in given.items() if value is not None}
        if "eps" in own:
            own["eps"] = parse_number(own["eps"])
        changes = changes_of(settings)
        own |= {f.name: changes.pop(f.name) for f in fields(cls) if f.name in changes}
        return cls(**own, changes=changes)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method must be {' or '.join(METHODS)}, got {self.method!r}")
        if self.loss != "features" and self.loss not in SUPERVISED:
            raise InputError(f"loss must be features, {' or '.join(SUPERVISED)}, got {self.loss!r}")
        if self.norms and self.method == "full":
            raise InputError("norms is for the method lora: full tunes normalisations anyway; leave it out")
        wrong = [name for name, none in ONLY_FEATURES.items() if getattr(self, name) not in (none, AUTO)]
        if self.supervised and wrong:
            raise InputError(f"{wrong[0]} is for the loss features, the loss is {self.loss}; leave it out")
        if isinstance(self.class_weight, str) and self.class_weight != AUTO:
            got = f"got {self.class_weight!r}"
            raise InputError(f"class_weight must be a share such as 0.5, {AUTO}, or null for none, {got}")
        if not 0 <= self.extra_share < 1:
            raise InputError(
                f"extra_share must be a share of each batch, such as 0.5, got {self.extra_share:g}"
            )
        if not self.eps > 0:
            raise InputError(f"eps must be above 0, such as 1/255, got {self.eps:g}; nothing is attacked")
        counts = ("steps", "batch", "inner_steps", "judge_steps", "judge_starts", "held_out", "validations")
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be 1 or more, got {getattr(self, name)}")

    @property
    def supervised(self) -> bool:
        """Whether labels and a classifier say what is right, rather than the original's features."""
        return self.loss in SUPERVISED

    def settled(self, model: Model) -> Tuning:
        """The same with all decided that was left to the network and to eps."""
        weight = self.class_weight
        if weight == AUTO:
            weight = CLASS_WEIGHT if model.has_class_token and not self.supervised else None
        steps, starts = self.long_attack
        return replace(
            self,
            class_weight=weight,
            inner_steps=self.attack_steps,
            judge_steps=steps,
            judge_starts=starts,
        )

    @property
    def few_steps_do(self) -> bool:
        """Whether eps is so small that an inner attack of two steps does not teach a network to hide."""
        return self.norm != "linf" or self.eps <= FEW_STEPS_DO

    @property
    def attack_steps(self) -> int:
        """Steps of the inner attack: those asked for, or two, and more where so few teach to hide."""
        usual = FEW_STEPS if self.few_steps_do else 1 + math.ceil(self.eps / FEW_STEPS_DO)
        return self.inner_steps or usual

    @property
    def long_attack(self) -> tuple[int, int]:
        """Steps and starts of the attack that judges."""
        steps, starts = LONG_ATTACK[not self.few_steps_do]
        return self.judge_steps or steps, self.judge_starts or starts

    def _loss(self) -> dict[str, Any]:
        if self.supervised:
            return {
                "loss": SUPERVISED[self.loss],
                "loss_settings": {"beta": self.beta} if self.loss == "trades" else {},
            }
        return {"loss": "features", "loss_settings": {name: getattr(self, name) for name in OF_THE_LOSS}}

    def recipe(self, count: int) -> Recipe:
        """The recipe of the common loop for so many images; its times are in epochs of them."""
        judge_steps, judge_starts = self.long_attack
        epoch = (self.batch - round(self.extra_share * self.batch)) / count  # what one step is
        content = {
            **self._loss(),
            "inner": {"norm": self.norm, "eps": self.eps, "steps": self.attack_steps, "step": self.step},
            "eps_warmup": self.eps_warmup * self.steps * epoch,
            "batch": self.batch,
            "extra_share": self.extra_share,
            "epochs": (self.steps - 0.5) * epoch,  # the loop rounds up
            "lr": self.lr or LEARNING_RATES[self.method],
            "warmup": self.warmup * self.steps * epoch,
            "weight_decay": 1e-4,
            "validation": self.held_out,
            "validate_every": max(1, self.steps // self.validations) * epoch * (1 - 1e-9),
            "judge_steps": judge_steps,
            "judge_starts": judge_starts,
            "seed": self.seed,
            "track": [],
        }
        return changed(make_recipe(content, "robustify"), self.changes)


def learner_parts(model: Model, tuning: Tuning, start: LoRA | None = None) -> tuple[Model, nn.Module]:
    """A copy of the model that learns, and the part of it that is trained."""
    if tuning.method == "lora":
        return low_rank.trainable(
            model,
            tuning.rank,
            tuning.alpha,
            blocks=tuning.blocks,
            norms=tuning.norms,
            seed=tuning.seed,
            start=start,
        )
    if start is not None:
        raise InputError("only the method lora goes on from factors; leave lora out, or take that method")
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    chosen: list[nn.Module] = [twin.net]
    if tuning.blocks is not None:
        chosen = list(low_rank.first_blocks(twin, tuning.blocks).values())
    wanted = [p.requires_grad_() for part in chosen for p in part.parameters()]
    # A classifier has no part in the features; several processes would wait for its gradient for ever.
    x = torch.zeros(1, 3, *model.input_size, device=wanted[0].device)
    output = twin(x) if tuning.supervised else twin.features(x)
    for p, grad in zip(wanted, torch.autograd.grad(output.sum(), wanted, allow_unused=True), strict=True):
        p.requires_grad_(grad is not None)
    return twin, twin.net


def make_learner(model: Model, tuning: Tuning, start: LoRA | None = None) -> FeatureLearner:
    """What learns: a copy of the model whose output is its features or, with labels, its logits."""
    kind = TaskLearner if tuning.supervised else FeatureLearner
    return kind(*learner_parts(model, tuning, start), original=model)


def chosen_images(data: ImageDataset | torch.Tensor, model: Model, tuning: Tuning) -> ImageDataset:
    """Images of the model's size: without labels or, for a supervised loss, with those it needs."""
    size = model.input_size[0]
    if not tuning.supervised:
        return without_labels(data, size)
    if not isinstance(data, ImageDataset) or data.kind != "labels":
        got = data.kind if isinstance(data, ImageDataset) else "a tensor"
        raise InputError(f"the loss {tuning.loss} needs a dataset with labels, got {got}; or take features")
    if model.classes != len(data.classes):
        raise InputError(
            f"the loss {tuning.loss} needs a classifier for the data's {len(data.classes)} classes, "
            f"{model.name} has {model.classes}; give a head of theirs (`robvit train head`)"
        )
    return data.resized(size, data.resize)


def without_labels(data: ImageDataset | torch.Tensor, size: int) -> ImageDataset:
    """Images of this size and nothing else; a tensor (N 3 H W) in [0,1] is kept at 8 bits.

    What a tensor's images are called follows from their content.
    """
    if isinstance(data, ImageDataset):
        bare = replace(data.listing, labels=None, masks=None, mask_values=None, classes=[], class_map=None)
        return replace(data, listing=bare).resized(size, data.resize)
    return from_arrays(data).resized(size)


def chosen_extra(
    extra: ImageDataset | torch.Tensor | None, model: Model, tuning: Tuning
) -> ImageDataset | None:
    """A second set of images to learn from, which goes with its share of each batch."""
    if (extra is None) != (tuning.extra_share == 0):
        got = f"got {'no' if extra is None else 'some'} extra images and extra_share {tuning.extra_share:g}"
        raise InputError(f"extra images and extra_share=0.5, say, go together; {got}")
    return None if extra is None else without_labels(extra, model.input_size[0])


def split(images: ImageDataset, tuning: Tuning, extra: ImageDataset | None = None) -> Splits:
    """Images to learn from and a few to judge on; drawn by name and seed alone."""
    if len(images) < 2:
        raise InputError(
            f"tuning needs two images or more, one of them to judge on, got {len(images)}; give more of them"
        )
    count = max(1, min(tuning.held_out, len(images) // 10))
    keys = [hashlib.sha256(f"{tuning.seed}/{name}".encode()).digest() for name in images.names]
    apart = set(sorted(range(len(images)), key=keys.__getitem__)[:count])
    learned = images.take(i for i in range(len(images)) if i not in apart)
    return Splits(learned, images.take(sorted(apart)), extra)
