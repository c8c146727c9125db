"""What a visitor requests, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from robvit.app.models import OFF, SECRET
from robvit.attacks import ATTACKS
from robvit.data.decode import fit, read_image
from robvit.drawing.images import Pixels
from robvit.report.gallery import GalleryItem


@dataclass(frozen=True)
class InputImage:
    """An image as a PNG file's bytes; `name` is its name in the bundled sample, empty for an upload."""

    png: bytes = field(repr=False)
    name: str = ""
    label: str = "your image"

    def tensor(self, size: int) -> torch.Tensor:
        """As a model of that input size sees it: (1 3 size size) in [0,1]."""
        return fit(read_image(self.png), size, "squash")[None] / 255


@dataclass(frozen=True)
class AttackRequest:
    """The attack that a visitor requests; `eps` is in grey levels of 255."""

    image: InputImage
    model: str
    tokens: str = OFF
    attack: str = "pgd"
    eps: int = 3
    steps: int = 10

    @property
    def settings(self) -> dict[str, Any]:
        """The attack's settings; a limit on PSNR would make the budget mean something else."""
        known = ATTACKS.info(self.attack).defaults
        wanted = {"steps": self.steps, "psnr": None}
        return {name: value for name, value in wanted.items() if name in known}

    @property
    def on_features(self) -> bool:
        """Whether the attack needs no classes."""
        return ATTACKS.info(self.attack).task == "features"

    @property
    def measure(self) -> str:
        """What is traced during the attack, on the attacked model, which need not be the judged one."""
        measure = "cosine of features" if self.on_features else "confidence in the class"
        if self.tokens == OFF:
            return measure
        return f"{measure}, model {'without' if self.tokens == SECRET else 'with'} tokens"


@dataclass(frozen=True)
class Step:
    """The state of an attack: passes so far, the point it just tried, and its measure at every pass."""

    passes: int
    expected: int
    point: Pixels
    trace: list[float]


@dataclass(frozen=True)
class Prediction:
    """One model's five likeliest classes for the clean and the attacked image, and how its features moved.

    The cosines are with the clean features of the model without tokens.
    """

    scenario: str
    clean: list[tuple[str, float]]
    attacked: list[tuple[str, float]]
    cosine: tuple[float, float]

    @property
    def success(self) -> bool:
        """Whether the attack changed the predicted class."""
        return self.clean[0][0] != self.attacked[0][0]


@dataclass(frozen=True)
class Result:
    """The result of an attack; the last prediction is the judged model's."""

    request: AttackRequest
    item: GalleryItem
    predictions: list[Prediction]
    psnr: float
    passes: tuple[int, int]
    seconds: float
    trace: list[float]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class PatchMap:
    """Where a patch of `side` pixels might change the label: the image with these places in red."""

    label: str
    side: int
    certified: bool
    note: str
    image: Pixels
    seconds: float


@dataclass(frozen=True)
class Sweep:
    """A measure at each budget: lines of (grey levels, value), and what the measure is."""

    measure: str
    lines: dict[str, list[tuple[float, float]]]
