"""What is explained, the registry of figures, and the decorator that files one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robvit.attacks import ATTACKS, run
from robvit.attacks.core import refuse_targets
from robvit.backbones.model import Model
from robvit.errors import InputError, check_images, check_labels
from robvit.registry import Registry
from robvit.report.figure import Figure
from robvit.threat import Threat

ATTACK_FOR = {"classes": "pgd", "features": "feature", "pixels": "segpgd"}
STEPS = 20
SHOWN = 3  # images in a figure with several tiles for each


def task_of(model: Model) -> str:
    """What a model returns: "classes", "pixels" (a mask) or "features", if it has no head."""
    if getattr(model.head, "kind", "") == "segmentation":
        return "pixels"
    return "classes" if model.classes else "features"


def attack_for(model: Model) -> str:
    """The attack for what a model returns."""
    return ATTACK_FOR[task_of(model)]


class View(NamedTuple):
    """A model that looks at images (B 3 H W), clean or attacked, under a name."""

    name: str
    model: Model
    x: torch.Tensor


@dataclass
class Subject:
    """A model and images (B 3 H W) in [0,1], and everything that a figure may compare.

    `truth` are labels (B,) or masks (B H W); where they are missing, the model's prediction on the clean
    image stands for them. `hardened` is the same model with tokens; the attack does not know them.
    `beside` is another model for figures that put two side by side. The attack is run when it is first
    needed; left open, it is the one for what the model returns.
    """

    model: Model
    x: torch.Tensor
    threat: Threat = field(default_factory=lambda: Threat("linf", 8 / 255))
    names: list[str] = field(default_factory=list)
    truth: torch.Tensor | None = None
    classes: list[str] = field(default_factory=list)
    hardened: Model | None = None
    beside: Model | None = None
    attack: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        check_images(self.x)
        if self.truth is not None and self.task == "classes":
            check_labels(self.truth, len(self.x), self.model.classes)
        self.names = self.names or [f"image {i + 1}" for i in range(len(self.x))]
        if len(self.names) != len(self.x):
            raise InputError(f"expected a name for each of {len(self.x)} images, got {len(self.names)}")
        self.attack = self.attack or attack_for(self.model)
        task = ATTACKS.info(self.attack).task
        if task != self.task:
            raise InputError(
                f"{self.attack} attacks {task}, {self.model.name} returns {self.task}; "
                f"choose another attack, {attack_for(self.model)} say, or another head"
            )
        if self.beside is not None and self.beside.classes != self.model.classes:
            raise InputError(
                f"both models must tell the same classes apart, {self.model.name} has {self.model.classes}, "
                f"{self.beside.name} {self.beside.classes}"
            )
        refuse_targets(self.settings)
        known = ATTACKS.info(self.attack).defaults
        usual = {"steps": STEPS, "seed": self.seed}
        self.settings = {name: usual[name] for name in usual if name in known} | self.settings

    @property
    def task(self) -> str:
        """What the model returns."""
        return task_of(self.model)

    @cached_property
    def adv(self) -> torch.Tensor:
        """The images, attacked on the model without tokens."""
        return self.attacked(self.model)

    def attacked(self, model: Model) -> torch.Tensor:
        """The images (B 3 H W), attacked on a model: whole grey levels within the threat."""
        attacked = self.output(model)
        return run(
            self.attack,
            attacked,
            self.x,
            self.target,
            self.threat,
            victim=attacked,
            eight_bit=True,
            **self.settings,
        ).adv

    def output(self, model: Model) -> Callable[[torch.Tensor], torch.Tensor]:
        """What of a model is attacked: its output, or its features where it has no head."""
        return model.features if self.task == "features" else model

    @cached_property
    def target(self) -> torch.Tensor | None:
        """What the attack leads away from: truth, or the clean prediction; nothing for features."""
        if self.task == "features":
            return None
        return self.predict(self.model, self.x) if self.truth is None else self.truth

    @torch.no_grad()
    def predict(self, model: Model, x: torch.Tensor) -> torch.Tensor:
        """The predicted labels (B,) or masks (B H W)."""
        pred: torch.Tensor = model(x).argmax(1)
        return pred

    def views(self) -> Iterator[View]:
        """The model on clean and on attacked images, and the same with tokens, if there are any."""
        yield View("clean", self.model, self.x)
        yield View("attacked", self.model, self.adv)
        if self.hardened is not None:
            yield View("clean, tokens", self.hardened, self.x)
            yield View("attacked, tokens", self.hardened, self.adv)

    def models(self) -> dict[str, Model]:
        """The model, and the one beside it, by name."""
        name = shown_name(self.model)
        if self.beside is None:
            return {name: self.model}
        other = shown_name(self.beside)
        return {name: self.model, other if other != name else f"{other}, the other": self.beside}

    def class_name(self, label: int) -> str:
        return self.classes[label] if 0 <= label < len(self.classes) else f"class {label}"


def shown_name(model: Model) -> str:
    """What a model is called in a figure: a checkpoint by its file, wherever it lies."""
    return Path(model.name).name


FigureFunction = Callable[[Subject], Figure]


@dataclass(frozen=True)
class FigureInfo:
    """What is known about a figure: its title, what it shows, and its place in a report."""

    title: str
    caption: str
    order: int


FIGURES: Registry[FigureFunction, FigureInfo] = Registry("figure", FigureInfo)


def figure(*, title: str, caption: str, order: int) -> Callable[[FigureFunction], FigureFunction]:
    """Decorator that files a figure under its file's name; a report shows figures by rising `order`."""

    def decorate(body: FigureFunction) -> FigureFunction:
        name = body.__module__.rpartition(".")[2]

        def draw(subject: Subject) -> Figure:
            return replace(body(subject), name=name, title=title, caption=caption)

        draw.__doc__ = body.__doc__
        return FIGURES.add(name, title=title, caption=caption, order=order)(draw)

    return decorate
