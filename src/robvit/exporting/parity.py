"""Whether a file answers as the model it was made from does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from robvit.backbones.model import Model
from robvit.errors import RobvitError

# How far a token, or an image's logits, may be from the model's, as a share of their length. An absolute
# bound would be below what float32 can do: some values of DINOv2-small are off by 1e-3 in torch itself.
TOLERANCE = 1e-4
SAME_NETWORK = 1e-5  # of a checkpoint, which the same operations read

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
    features: float | None  # none where a file answers with logits alone
    absolute: float | None
    logits: float | None = None  # none where there are no classes
    changed: int = 0
    exact: bool = False  # whether the model answered in double precision
    tolerance: float = TOLERANCE  # the share that rounding explains

    @property
    def close(self) -> bool:
        """Whether rounding explains the difference."""
        near = all(
            (share or 0.0) <= self.tolerance for share in (self.features, self.logits)
        )  # false for NaN
        return near and not self.changed

    def __str__(self) -> str:
        parts = []
        if self.features is not None:
            parts.append(
                f"features within {self.features:.1e} of their length "
                f"(no value off by more than {self.absolute:.1e})"
            )
        if self.logits is not None:
            changed = f"{self.changed} predictions differ" if self.changed else "predictions identical"
            parts.append(f"logits within {self.logits:.1e}, {changed}")
        return f"on {self.images} images{', in double precision,' * self.exact} {', '.join(parts)}"


def answers(network: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a network answers, by name: a model with features and logits, a defended one with logits alone."""
    if isinstance(network, Model):
        return dict(zip(("features", "logits"), network.features_and_logits(x), strict=False))
    return {"logits": network(x)}


def checked(
    model: nn.Module, run: Runner, images: torch.Tensor, what: str, tolerance: float = TOLERANCE
) -> Parity:
    """The parity of `run`; refuses what rounding does not explain.

    Where the model's own rounding is the greater one, the model in double precision is the judge.
    """
    parity = replace(compare(model, run, images), tolerance=tolerance)
    if parity.close:
        return parity
    exact = compare(copy.deepcopy(model).double(), run, images)
    exact = replace(exact, exact=True, tolerance=tolerance)
    if exact.close:
        return exact
    raise BrokenExport(
        f"{what} does not answer as the model does: {parity}; expected features and logits within "
        f"{tolerance:g} of their length and the same predictions. Nothing was kept; try another format"
    )


@torch.no_grad()
def compare(model: nn.Module, run: Runner, images: torch.Tensor) -> Parity:
    """The answers of `run` beside the model's, on batches of several sizes."""
    gaps: list[dict[str, float]] = []
    changed = 0
    number = next(tensor for tensor in model.parameters() if tensor.is_floating_point())
    for x in filter(len, (images[:1], images[1:4], images[4:])):
        wanted = answers(model, x.to(number))
        given = dict(zip(wanted, answered, strict=True)) if len(answered := run(x)) == len(wanted) else {}
        if {k: v.shape for k, v in wanted.items()} != {k: v.shape for k, v in given.items()}:
            shapes = [" ".join(str(tuple(one.shape)) for one in each) for each in (wanted.values(), answered)]
            raise BrokenExport(f"the model and the file answer in different shapes: {' and '.join(shapes)}")
        off = {name: wanted[name] - given[name] for name in wanted}
        gap = {n: _share(off[n], wanted[n], -1 if n == "features" else 1) for n in wanted}
        if "features" in off:
            gap["absolute"] = float(off["features"].abs().max())
        if "logits" in off:
            changed += _changed(wanted["logits"], given["logits"])
        gaps.append(gap)
    most = {n: torch.tensor([gap[n] for gap in gaps]).max().item() for n in gaps[0]}  # NaN stays NaN
    return Parity(len(images), most.get("features"), most.get("absolute"), most.get("logits"), changed)


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
