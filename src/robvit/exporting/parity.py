"""Whether a file answers as the model it was made from does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from robvit.backbones.model import Model
from robvit.errors import RobvitError

# How far a token, or an image's logits, may be from the model's, as a share of their length. An absolute
# bound would be below what float32 can do: some values of DINOv2-small are off by 1e-3 in torch itself.
TOLERANCE = 1e-4

Answers = Sequence[torch.Tensor]  # features, and logits where there are classes
Runner = Callable[[torch.Tensor], Answers]


class BrokenExport(RobvitError):
    """A file that does not answer as the model does; it was not kept."""


@dataclass(frozen=True)
class Parity:
    """How far a file's answers are from the model's, at most, and how many predictions differ.

    Features and logits as a share of a token's or the logits' length, `absolute` as a single feature.
    """

    images: int
    features: float
    absolute: float
    logits: float | None = None  # none where there are no classes
    changed: int = 0
    exact: bool = False  # whether the model answered in double precision

    @property
    def close(self) -> bool:
        """Whether rounding explains the difference."""
        near = self.features <= TOLERANCE and (self.logits or 0.0) <= TOLERANCE  # false for NaN
        return near and not self.changed

    def __str__(self) -> str:
        text = (
            f"on {self.images} images{', in double precision,' * self.exact} features within "
            f"{self.features:.1e} of their length (no value off by more than {self.absolute:.1e})"
        )
        if self.logits is None:
            return text
        changed = f"{self.changed} predictions differ" if self.changed else "predictions identical"
        return f"{text}, logits within {self.logits:.1e}, {changed}"


def checked(model: Model, run: Runner, images: torch.Tensor, what: str) -> Parity:
    """The parity of `run`; refuses what rounding does not explain.

    Where the model's own rounding is the greater one, the model in double precision is the judge.
    """
    parity = compare(model, run, images)
    if parity.close:
        return parity
    exact = compare(copy.deepcopy(model).double(), run, images)
    if exact.close:
        return replace(exact, exact=True)
    raise BrokenExport(
        f"{what} does not answer as the model does: {parity}; expected features and logits within "
        f"{TOLERANCE:g} of their length and the same predictions. Nothing was kept; try another format"
    )


@torch.no_grad()
def compare(model: Model, run: Runner, images: torch.Tensor) -> Parity:
    """The answers of `run` beside the model's, on batches of several sizes."""
    gaps: list[list[float]] = []
    changed = 0
    for x in filter(len, (images[:1], images[1:4], images[4:])):
        wanted, given = model.features_and_logits(x.to(model.mean)), run(x)
        if [one.shape for one in wanted] != [one.shape for one in given]:
            shapes = " and ".join(" ".join(str(tuple(one.shape)) for one in each) for each in (wanted, given))
            raise BrokenExport(f"the model and the file answer in different shapes: {shapes}")
        features, logits = wanted[0] - given[0], [a - b for a, b in zip(wanted[1:], given[1:], strict=True)]
        shares = [_share(features, wanted[0], -1), *(_share(off, wanted[1], 1) for off in logits)]
        gaps.append([float(features.abs().max()), *shares])
        changed += sum(_changed(a, b) for a, b in zip(wanted[1:], given[1:], strict=True))
    absolute, *most = torch.tensor(gaps).amax(0).tolist()  # NaN stays NaN
    return Parity(len(images), most[0], absolute, most[1] if len(most) > 1 else None, changed)


def _share(off: torch.Tensor, wanted: torch.Tensor, axis: int) -> float:
    """The longest difference along an axis, as a share of what was wanted there."""
    return float((off.norm(dim=axis) / wanted.norm(dim=axis).clamp_min(1e-6)).max())


def _changed(wanted: torch.Tensor, given: torch.Tensor) -> int:
    """How many predictions differ between two logits (B K) or (B K H W)."""
    differs = wanted.argmax(1) != given.argmax(1)
    if wanted.ndim == 4:  # among a million pixels some lie on a border, where rounding decides
        best = wanted.topk(2, dim=1).values
        differs &= best[:, 0] - best[:, 1] > TOLERANCE
    return int(differs.sum())
