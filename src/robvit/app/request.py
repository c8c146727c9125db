"""What a visitor asks for, and what comes back."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from robvit.app.subjects import OFF
from robvit.attacks import ATTACKS
from robvit.data.decode import fit, read_image
from robvit.report.contact_sheet import Pixels
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
class Order:
    """What a visitor asks for; `eps` is in grey levels of 255."""

    image: InputImage
    subject: str
    tokens: str = OFF
    attack: str = "pgd"
    eps: int = 3
    steps: int = 10

    @property
    def settings(self) -> dict[str, Any]:
        """The attack's settings; a limit on PSNR would make the budget mean something else."""
        known = ATTACKS.entry(self.attack).facts["defaults"]
        wanted = {"steps": self.steps, "psnr": None}
        return {name: value for name, value in wanted.items() if name in known}

    @property
    def on_features(self) -> bool:
        """Whether the attack needs no classes."""
        return bool(ATTACKS.entry(self.attack).facts["task"] == "features")


@dataclass(frozen=True)
class Step:
    """Where an attack stands: passes so far, the point it just tried, and the course of its measure."""

    passes: int
    expected: int
    point: Pixels
    splits: list[float]


@dataclass(frozen=True)
class Answer:
    """What one model says to the clean and to the attacked image: five classes each, and features.

    The cosine is that with the clean features of the model without tokens.
    """

    scenario: str
    clean: list[tuple[str, float]]
    attacked: list[tuple[str, float]]
    cosine: tuple[float, float]

    @property
    def withstood(self) -> bool:
        """Whether it names the same class as before."""
        return self.clean[0][0] == self.attacked[0][0]


@dataclass(frozen=True)
class Result:
    """What came of an attack; the last answer is the judged model's."""

    order: Order
    exhibit: GalleryItem
    answers: list[Answer]
    psnr: float
    passes: tuple[int, int]
    seconds: float
    splits: list[float]
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """How much is left at each budget: lines of (grey levels, measure), and what the measure is."""

    measure: str
    lines: dict[str, list[tuple[float, float]]]


def png(pixels: Pixels) -> bytes:
    """An image (H W 3) as a PNG file."""
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


def pixels_of(x: torch.Tensor) -> Pixels:
    """The first image of a batch, rounded to grey levels: (1 3 H W) in [0,1] to uint8 (H W 3)."""
    levels: Pixels = (x[0] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return levels
