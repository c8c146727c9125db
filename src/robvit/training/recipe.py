"""Recipes: a loss plus numbers, as YAML in the package or in a file of the user's.

Every key can be set on the command line (`--set inner.eps=4/255`); one that nobody knows is refused.
"""

from __future__ import annotations

import hashlib
import json
import reprlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from robvit.augmentation import Augment
from robvit.budget import check_budget, parse_number
from robvit.errors import InputError
from robvit.files import YAML_BYTES, given_path, parse_yaml, read_text
from robvit.registry import unknown
from robvit.settings import check_trades

Number = Annotated[float, BeforeValidator(lambda v: parse_number(v) if isinstance(v, str) else v)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Share = Annotated[Number, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
ASCENT = "ascent"  # the inner attack that is none of the library's
# What was called no is fp32; YAML reads a bare no as false.
_Precision = Literal["auto", "no", "fp32", "bf16", "fp16", "fp32/plain", "bf16/plain", "fp16/plain"]
Precision = Annotated[_Precision, BeforeValidator(lambda v: "no" if v is False else v)]
Trades = Annotated[tuple[Number, ...], BeforeValidator(lambda v: v if isinstance(v, list | tuple) else (v,))]

# What may change without making a run another run: where and how fast it runs, what is told of it.
_INCIDENTAL = ("about", "takes", "expects", "data", "model", "workers", "save_seconds", "track", "stop_after")
# Nor do adapters: each of their phases is a run of its own, with a recipe and a name of its own.
_OUTSIDE = (*_INCIDENTAL, "adapters")


class Inner(BaseModel):
    """The attack inside a training step.

    `attack` is "ascent" (n passes, the last point counts and nothing is judged: what the papers call PGD
    or FGSM in training) or any attack of the library, with `settings` of its own. `step` is in units of
    eps; left out, it is 1.5 / steps. `start` is a point of the ball ("uniform"), "none", "tiny" (normal
    noise of 0.001, as TRADES) or "wide" (uniform in twice the ball, as N-FGSM). Without `project` the
    result may leave the ball, as N-FGSM's does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    attack: str = ASCENT
    norm: Literal["linf", "l2", "l1"] = "linf"
    eps: NotNegative = 8 / 255
    steps: Count = 10
    step: Positive | None = None
    start: Literal["uniform", "none", "tiny", "wide"] = "uniform"
    project: bool = True
    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _in_pixels(self) -> Inner:
        check_budget(self.norm, self.eps)
        return self

    @property
    def relative_step(self) -> float:
        return self.step if self.step is not None else 1.5 / self.steps


class AdapterSettings(BaseModel):
    """Adapters that learn in place of the network (TORA): the tuning, and for which trade-offs.

    `tuning` is "tora" or one of what it is compared with, `fusion` where its softmax is taken, `wiring` what
    a block sees in the place of the class token. In phase 1 each adapter has a fusion of its own, or one is
    "shared": then accuracy comes first, and robustness goes on with its fusion, as does phase 2.

    `trades` are rising numbers from accuracy (0) to robustness (1); with several of them the model has a
    knob. It is a "path", two fusions for the ends that are trained together on trade-offs drawn between
    them, unless "states" asks for a fusion each.
    `fusion_epochs` is the length of phase 2 for one trade-off, that of phase 1 if left out; without fusion
    both are trained. Phase 2 starts at the weighted mean of phase 1's fusions ("mixed"), or "fresh".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tuning: Literal["tora", "adapterfusion", "single", "heads"] = "tora"
    fusion: Literal["adapters", "tokens", "both", "own"] = "adapters"
    wiring: Literal["mean", "slides"] = "mean"
    phase1: Literal["separate", "shared"] = "separate"
    trades: Trades = (0.5,)
    knob: Literal["states", "path"] | None = None
    fusion_epochs: Positive | None = None
    start: Literal["mixed", "fresh"] = "mixed"

    @model_validator(mode="after")
    def _fits_together(self) -> AdapterSettings:
        check_trades(self.trades)
        if self.knob == "path" and len(self.trades) < 2:
            raise ValueError("the knob path leads from one trade-off to another; give two trades or more")
        if not self.fused and len(self.trades) > 1:
            raise ValueError(f"the tuning {self.tuning} has no fusion: it takes one trade-off at a time")
        return self

    @property
    def fused(self) -> bool:
        """Whether two adapters are trained apart and then fused."""
        return self.tuning in ("tora", "adapterfusion")

    @property
    def path(self) -> bool:
        """Whether one training serves all trade-offs (the study tora-knob compares it with one each)."""
        return self.knob == "path" or (self.knob is None and len(self.trades) > 1)


class Recipe(BaseModel):
    """A training in full; times are in epochs of the real images, sizes of steps in `batch` images.

    The learning rate is `lr` at a batch of `lr_batch`, scaled to the real one. `eps_warmup` raises the
    budget, and the step with it, from zero; with `published_warmup` it rises once an epoch and the step
    stays what it will be, as in the published code of the XCiT recipe. `validation` is a share or a number
    of training images on which an attack of `judge_steps` from `judge_starts` chooses the checkpoint;
    `extra_share` of each batch comes from the extra data. `replays` trains on each batch so many times (free
    training). With `repeats` every image is so many times in its batch, once as it is and then augmented.
    With `adapters` the network stays as it is, and adapters learn on it by a loss of their own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    about: str = ""
    takes: str = ""
    expects: str = ""

    model: str | None = None
    data: str | None = None
    pretrained: bool = True
    img_size: Count | None = None
    patch_size: Count | None = None
    normalise: Literal["model", "imagenet", "none"] = "model"
    drop_path: Share = 0.0

    adapters: AdapterSettings | None = None
    loss: str = "pgd_at"
    loss_settings: dict[str, Any] = {}
    inner: Inner = Inner()
    eps_warmup: NotNegative = 0.0
    published_warmup: bool = False
    awp: NotNegative = 0.0
    awp_warmup: NotNegative = 0.0
    replays: Count = 1

    batch: Count = 128
    accumulation: Count = 1
    epochs: Positive = 10
    cooldown: NotNegative = 0.0
    stop_after: Positive | None = None
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: Positive = 5e-4
    lr_batch: Count | None = None
    lr_scaling: Literal["linear", "sqrt"] = "linear"
    momentum: Share = 0.9
    weight_decay: NotNegative = 0.05
    schedule: Literal["cosine", "linear", "constant", "drops"] = "cosine"
    drops: list[tuple[NotNegative, Positive]] = []
    warmup: NotNegative = 0.0
    warmup_lr: NotNegative = 0.0
    min_lr: NotNegative = 0.0
    clip: Positive | None = None
    ema: Share = 0.0
    precision: Precision = "auto"

    augment: Augment = Augment()
    extra_share: Share = 0.0
    repeats: Count = 1

    validation: Positive = 0.02
    validate_every: Positive = 1.0
    judge_steps: Count = 10
    judge_starts: Count = 1
    patience: Count | None = None

    seed: int = 0
    workers: Annotated[int, Field(ge=0)] = 0
    save_seconds: NotNegative = 120.0
    track: list[str] | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        if self.schedule == "drops" and not self.drops:
            raise ValueError("the schedule drops needs drops: a list of [epoch, factor]")
        if self.adapters is not None and self.model_fields_set & {"loss", "loss_settings"}:
            raise ValueError("adapters learn by a loss of their own; leave out loss, or adapters")
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup must end before the {self.epochs:g} epochs do, got {self.warmup:g}")
        return self

    @property
    def peak_lr(self) -> float:
        """The learning rate at this batch."""
        share = self.batch / (self.lr_batch or self.batch)
        return self.lr * (share if self.lr_scaling == "linear" else share**0.5)

    def digest(self) -> str:
        """Names what decides the weights that come out."""
        outside = {*_OUTSIDE, *(["judge_starts"] if self.judge_starts == 1 else [])}  # left out, it is one
        facts = self.model_dump(mode="json", exclude=outside)
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def names() -> list[str]:
    """The recipes of the package."""
    folder = resources.files("robvit.training").joinpath("recipes")
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))


def load_recipe(name: str | Path, **changes: Any) -> Recipe:
    """A recipe by its name, or from a YAML file; `changes` win, a dot reaches inside (`inner.eps`)."""
    return make_recipe(_nested(_content(name), changes), str(name))


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """A recipe with other values for some keys, checked anew; a dot reaches inside (`inner.eps`)."""
    return make_recipe(_nested(recipe.model_dump(exclude_unset=True), changes)) if changes else recipe


def make_recipe(content: dict[str, Any], name: str = "recipe") -> Recipe:
    """A checked recipe from keys and values."""
    try:
        return Recipe(**content)
    except ValidationError as error:
        problem = error.errors()[0]
        place = [str(part) for part in problem["loc"]]
        if problem["type"] == "extra_forbidden":
            kind = f"key of {'.'.join([name, *place[:-1]])}"
            raise unknown(kind, place[-1], list(_room(place[:-1]).model_fields)) from None
        key = ".".join(place) or "the whole"
        got = reprlib.repr(problem.get("input"))
        raise InputError(f"{name}: {key}: {problem['msg']}, got {got}") from None


def changes_of(items: list[str]) -> dict[str, Any]:
    """Changes from text such as "lr=1e-3", "inner.eps=8/255" or "augment.flip=true"."""
    changes: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals:
            raise InputError(f"a change looks like lr=1e-3 or inner.eps=4/255, got {item!r}")
        value = yaml.safe_load(text)
        try:  # YAML takes 1e-3 and 8/255 for words
            changes[key] = parse_number(value) if isinstance(value, str) else value
        except InputError:
            changes[key] = value
    return changes


def _room(place: list[str]) -> type[BaseModel]:
    """The part of a recipe at a place: the recipe itself, its attack, its augmentation or its adapters."""
    rooms: dict[str, type[BaseModel]] = {"inner": Inner, "augment": Augment, "adapters": AdapterSettings}
    return rooms.get(place[0], Recipe) if place else Recipe


def _content(name: str | Path, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The keys of a recipe, laid over those of its `base`; `above` are the recipes that asked for it."""
    if str(name) in above:
        raise InputError(f"{' is based on '.join([*above, str(name)])}, which has no end")
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not given_path(path).is_file():
            raise InputError(f"no recipe at {path}; give a YAML file, or a name of `robvit train recipes`")
        text = read_text(path, "a recipe", YAML_BYTES)
    elif str(name) in names():
        text = resources.files("robvit.training").joinpath(f"recipes/{name}.yaml").read_text("utf-8")
    else:
        raise unknown("recipe", str(name), names(), "Or give a YAML file.")
    content = parse_yaml(text, name)
    base = content.pop("base", None)
    if not isinstance(base, str | None):
        raise InputError(f"{name}: base must be a recipe's name or a YAML file, got {reprlib.repr(base)}")
    return _laid_over(_content(base, (*above, str(name))), content) if base else content


def _laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both, key by key: what is above wins, and parts are joined rather than replaced."""
    joined = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(joined.get(key), dict)
        joined[key] = _laid_over(joined[key], value) if both else value
    return joined


def _nested(content: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        content = _laid_over(content, value)
    return content
