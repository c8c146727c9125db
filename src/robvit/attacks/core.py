"""What every attack shares: the contract, the frozen model, the draws, and the best image so far."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import nn

from robvit.errors import InputError, check_images
from robvit.registry import Registry
from robvit.threat import Threat

Model = Callable[[torch.Tensor], torch.Tensor]
Attack = Callable[..., torch.Tensor]
F = TypeVar("F", bound=Attack)
S = TypeVar("S")

ATTACKS: Registry[Attack] = Registry("attack")


class Objective(Protocol):
    """What a loop maximises: the outputs, the rows of the batch they belong to, and the step -> (b,)."""

    def __call__(self, output: torch.Tensor, rows: torch.Tensor, step: int, /) -> torch.Tensor: ...


def attack(
    *,
    kind: str,
    norms: tuple[str, ...],
    paper: str,
    gradients: bool = True,
    like: str = "",
    tolerance: float | dict[str, float] = 0.05,
    quick: dict[str, Any] | None = None,
    oracle: dict[str, Any] | None = None,
    task: str = "classes",
    needs: str = "",
    batch_coupled: bool = False,
) -> Callable[[F], F]:
    """Decorator that files an attack and holds its promises to the caller.

    The body sees checked images on which it may not write by accident, a model in eval mode whose
    parameters need no gradients, and no autograd but where it asks for it; afterwards every
    submodule's mode and every parameter are as they were. kind is "budget" or "minimum"; `like`
    names the attack to which it passes on the settings it does not name itself. On a linear model it
    comes within `tolerance`, one number or one a norm, of the best there is, with the settings `oracle`
    if there are any; `quick` are settings for a first try.
    `task` says what the model returns: "classes", "features" (then there are no labels) or "pixels";
    `needs` what it must have inside, such as "attention"; `batch_coupled` that results depend on the batch.
    """

    def decorate(body: F) -> F:
        @functools.wraps(body)
        def guarded(
            model: Model, x: torch.Tensor, y: torch.Tensor | None, threat: Threat, **settings: Any
        ) -> torch.Tensor:
            check_images(x)
            if threat.norm not in norms:
                raise InputError(f"{body.__name__} works in {', '.join(norms)}, got {threat.norm}")
            if kind == "budget" and not math.isfinite(threat.eps):
                raise InputError(
                    f"{body.__name__} needs a finite eps, got {threat.eps}; fab and cw_l2 search without one"
                )
            # Tensors made in inference mode can't take part in autograd; a clone made outside can.
            with torch.inference_mode(False), torch.no_grad(), frozen(model):
                labels = None if y is None else y.detach().to(x.device).clone()
                return body(model, x.detach().clone(), labels, threat, **settings).detach()

        keywords = inspect.signature(body).parameters.values()
        passed_on = ATTACKS.entry(like).facts["defaults"] if like else {}
        defaults = passed_on | {p.name: p.default for p in keywords if p.kind is p.KEYWORD_ONLY}
        ATTACKS.add(
            kind=kind,
            norms=norms,
            paper=paper,
            gradients=gradients,
            defaults=defaults,
            tolerance=tolerance,
            quick=quick or {},
            oracle=oracle or {},
            task=task,
            needs=needs,
            batch_coupled=batch_coupled,
        )(guarded)
        return cast(F, guarded)

    return decorate


def modules_of(model: object) -> list[nn.Module]:
    """The networks behind a callable: itself, a bound method's owner, a wrapper's or a closure's content."""
    if isinstance(model, nn.Module):
        return [model]
    if isinstance(model, functools.partial):
        return [m for part in (model.func, *model.args, *model.keywords.values()) for m in modules_of(part)]
    inner = [getattr(model, name, None) for name in ("__self__", "__wrapped__")]
    cells = getattr(model, "__closure__", None) or ()
    inner += [c.cell_contents for c in cells if isinstance(c.cell_contents, nn.Module)]
    return [m for part in inner if part is not None for m in modules_of(part)]


@contextmanager
def frozen(model: object) -> Iterator[None]:
    """Eval mode and no parameter gradients inside; every submodule and parameter as before afterwards."""
    parts = [part for network in modules_of(model) for part in network.modules()]
    modes = [(part, part.training) for part in parts]
    wanted = [p for part in parts for p in part.parameters(recurse=False) if p.requires_grad]
    try:
        for part, _ in modes:
            part.training = False
        for parameter in wanted:
            parameter.requires_grad_(False)
        yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter in wanted:
            parameter.requires_grad_(True)


def draw(x: torch.Tensor, seed: int, purpose: str, *shape: int) -> torch.Tensor:
    """Uniform numbers in [0,1) for each image: (B *shape), by default of the images' own shape.

    They depend on the seed, the purpose and the image alone, so batches of any make-up draw alike.
    """
    size = shape or x.shape[1:]
    rows = []
    for image in x.detach().float().cpu().contiguous():
        key = hashlib.blake2b(memoryview(image.numpy()), digest_size=7, key=f"{seed} {purpose}".encode()[:64])
        generator = torch.Generator().manual_seed(int.from_bytes(key.digest(), "big"))
        rows.append(torch.rand(size, generator=generator))
    return torch.stack(rows).to(x.device, x.dtype)


def gradient(
    model: Model, point: torch.Tensor, objective: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One forward and one backward pass: the output, the objective (B,) and its gradient (B 3 H W)."""
    with torch.enable_grad():
        leaf = point.detach().requires_grad_()
        output = model(leaf)
        value = objective(output)
        total = value.sum()
    return output.detach(), value.detach(), slope(total, leaf)


def slope(total: torch.Tensor, leaf: torch.Tensor, again: bool = False) -> torch.Tensor:
    """The gradient of one number for the images `leaf` and nothing else; `again` keeps the graph."""
    grad = None
    if total.requires_grad:
        (grad,) = torch.autograd.grad(total, leaf, retain_graph=again, allow_unused=True)
    if grad is None:
        raise InputError(
            "the model's output must follow from its input through autograd, got no gradient at all; "
            "wrap what is not differentiable in bpda(), or use the attack square"
        )
    # A single NaN would spread over the image and stay; a zero leaves that pixel alone.
    return torch.nan_to_num(grad, 0.0, 0.0, 0.0)


def misclassified(output: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
    """Which images are misclassified: logits (B K), labels (B,) -> (B,); none where there are no labels.

    An output with a NaN is no success: its largest class means nothing.
    """
    if y is None or y.ndim != 1 or output.ndim != 2 or y.is_floating_point():
        return torch.zeros(len(output), dtype=torch.bool, device=output.device)
    return (output.argmax(1) != y) & ~output.isnan().any(1)


def needed(y: torch.Tensor | None, name: str) -> torch.Tensor:
    """The labels (B,) of an attack that can't do without them."""
    if y is None or y.ndim != 1 or y.is_floating_point():
        got = "none" if y is None else f"{y.dtype} {tuple(y.shape)}"
        raise InputError(f"{name} needs labels, one whole number an image, got {got}")
    return y


def take(state: S, keep: torch.Tensor) -> S:
    """The same dataclass with the rows `keep` of all its tensors."""
    record = cast(Any, state)
    return cast(S, replace(record, **{f.name: getattr(record, f.name)[keep] for f in fields(record)}))


class Best:
    """The best image found so far for each row: a fooling one before others, then the higher value."""

    def __init__(self, x: torch.Tensor, early_stop: bool = True) -> None:
        self.adv = x.clone()
        self.value = torch.full((len(x),), -math.inf, device=x.device, dtype=x.dtype)
        self.broken = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        self.early_stop = early_stop

    def offer(
        self, rows: torch.Tensor, point: torch.Tensor, value: torch.Tensor, broken: torch.Tensor
    ) -> torch.Tensor | None:
        """Keep what is better; then the positions still to be attacked, or None if that is all of them."""
        was = self.broken[rows]
        better = (broken & ~was) | ((broken == was) & (value > self.value[rows]))
        self.adv[rows] = torch.where(better.view(-1, 1, 1, 1), point, self.adv[rows])
        self.value[rows] = torch.where(better, value.to(self.value), self.value[rows])
        self.broken[rows] = was | broken
        if not self.early_stop or not bool(broken.any()):
            return None
        return (~broken).nonzero()[:, 0]

    def survivors(self) -> torch.Tensor:
        """The rows that are still to be attacked."""
        return (~self.broken | (not self.early_stop)).nonzero()[:, 0]


class Nearest:
    """The nearest fooling image found so far for each row, for attacks that look for the smallest change.

    With `early_stop` and a finite budget a row is done as soon as it is misclassified inside the budget.
    """

    def __init__(self, x: torch.Tensor, threat: Threat, early_stop: bool = True) -> None:
        self.x, self.threat, self.early_stop = x, threat, early_stop
        self.adv = x.clone()
        self.size = torch.full((len(x),), math.inf, device=x.device, dtype=x.dtype)

    @property
    def _endless(self) -> bool:
        return not self.early_stop or not math.isfinite(self.threat.eps)

    def offer(self, rows: torch.Tensor, point: torch.Tensor, broken: torch.Tensor) -> torch.Tensor | None:
        """Keep what is nearer; then the positions still to be attacked, or None if that is all of them."""
        size = self.threat.size(point - self.x[rows])
        better = broken & (size < self.size[rows])
        self.adv[rows] = torch.where(better.view(-1, 1, 1, 1), point, self.adv[rows])
        self.size[rows] = torch.where(better, size, self.size[rows])
        if self._endless:
            return None
        inside = self.size[rows] <= self.threat.eps
        return (~inside).nonzero()[:, 0] if bool(inside.any()) else None

    def survivors(self) -> torch.Tensor:
        """The rows that are still to be attacked."""
        return ((self.size > self.threat.eps) | self._endless).nonzero()[:, 0]

    def halfway(self, rows: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        """Random points (b 3 H W) half as far as the nearest so far, or as the budget if that is less."""
        grey = torch.full_like(self.x[rows], 0.5)
        unit = (replace(self.threat, eps=0.5, psnr=None).random(grey, uniform) - grey) / 0.5
        far = self.size[rows].clamp_max(min(self.threat.eps, 1e3)) / 2
        return (self.x[rows] + far.view(-1, 1, 1, 1) * unit).clamp(0, 1)

    def finish(
        self, judge: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], halvings: int
    ) -> torch.Tensor:
        """The result: nearer still by halving the way from the original, `judge(rows, point)` deciding.

        An image whose nearest lies outside the budget is projected into it. Without `early_stop` and a
        finite budget the direction is followed to the edge of the budget: what lies just across
        one model's boundary says little about another model.
        """
        if not math.isfinite(self.threat.eps):
            rows = self.size.isfinite().nonzero()[:, 0]
            x, good, bad = self.x[rows], self.adv[rows], self.x[rows]
            for _ in range(halvings if len(rows) else 0):
                middle = (good + bad) / 2
                broken = judge(rows, middle).view(-1, 1, 1, 1)
                good, bad = torch.where(broken, middle, good), torch.where(broken, bad, middle)
            shorter = (self.threat.size(good - x) <= self.size[rows]).view(-1, 1, 1, 1)
            self.adv[rows] = torch.where(shorter, good, self.adv[rows])
        elif not self.early_stop:
            stretch = (self.threat.eps / self.threat.size(self.adv - self.x).clamp_min(1e-30)).clamp_min(1)
            self.adv = self.x + (self.adv - self.x) * stretch.view(-1, 1, 1, 1)
        return self.threat.project(self.x, self.adv)
