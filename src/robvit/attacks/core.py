"""What every attack shares: the contract, the registry, the frozen model, draws and gradients."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import nn

from robvit.attacks.projection import quick_projections
from robvit.errors import InputError, check_images
from robvit.registry import Registry, unknown
from robvit.threat import NORMS, Threat

Model = Callable[[torch.Tensor], torch.Tensor]
Attack = Callable[..., torch.Tensor]
F = TypeVar("F", bound=Attack)


class Objective(Protocol):
    """What a loop maximises: the outputs, the rows of the batch they belong to, and the step -> (b,)."""

    def __call__(self, output: torch.Tensor, rows: torch.Tensor, step: int, /) -> torch.Tensor: ...


@dataclass(frozen=True)
class AttackCheck:
    """How the tests try an attack: settings of a quick run, and settings against a linear model.

    There it must come within `tolerance`, one number or one a norm, of the best there is.
    """

    quick: dict[str, Any] = field(default_factory=dict)
    oracle: dict[str, Any] = field(default_factory=dict)
    tolerance: float | dict[str, float] = 0.05


# Training images, so many in batches of so many: (B 3 H W) with labels (B,) or None.
Train = Callable[[int, int], Iterable[tuple[torch.Tensor, torch.Tensor | None]]]


class Prepared(NamedTuple):
    """The settings of an attack with what it learned beforehand, and what there is to tell of that."""

    settings: dict[str, Any]
    metrics: dict[str, float]


@dataclass(frozen=True)
class AttackInfo:
    """What is known about an attack.

    kind: "budget" (inside a given budget) or "minimum" (the smallest perturbation).
    norms: those it works in.
    paper: where it comes from.
    defaults: its settings and their defaults.
    task: what the model returns: "classes", "features" (then there are no labels) or "pixels".
    gradients: whether it needs them.
    needs: what the model must have inside, such as "attention".
    batch_coupled: whether results depend on the batch.
    keeps_budget: whether its images keep every budget in pixels; published code may not.
    prepare: what it learns beforehand, on training images, as settings (`prepared`).
    check: how the tests try it.
    """

    kind: str
    norms: tuple[str, ...]
    paper: str
    defaults: dict[str, Any]
    task: str = "classes"
    gradients: bool = True
    needs: str = ""
    batch_coupled: bool = False
    keeps_budget: bool = True
    prepare: Callable[[Model, Train, dict[str, Any]], Prepared] | None = None
    check: AttackCheck = field(default_factory=AttackCheck)


ATTACKS: Registry[Attack, AttackInfo] = Registry("attack", AttackInfo, ("model", "x", "y", "threat"))


def attack(
    *,
    kind: str,
    norms: tuple[str, ...],
    paper: str,
    like: str = "",
    without: tuple[str, ...] = (),
    **info: Any,
) -> Callable[[F], F]:
    """Decorator that files an attack and holds its promises to the caller.

    The body sees checked images on which it may not write by accident, a model in eval mode whose
    parameters need no gradients, and no autograd but where it asks for it; afterwards every
    submodule's mode and every parameter are as they were.

    kind, norms, paper, info: fields of `AttackInfo`; its defaults are those of the body's keywords.
    like: the attack to which the body passes on the settings it does not name itself,
    without: but for these.
    """

    def decorate(body: F) -> F:
        keywords = inspect.signature(body).parameters.values()
        passed_on = {k: v for k, v in ATTACKS.info(like).defaults.items() if k not in without} if like else {}
        defaults = passed_on | {p.name: p.default for p in keywords if p.kind is p.KEYWORD_ONLY}
        guarded = _guarded(body, kind, norms)
        ATTACKS.add(kind=kind, norms=norms, paper=paper, defaults=defaults, **info)(guarded)
        return cast(F, guarded)

    return decorate


def _guarded(body: Attack, kind: str, norms: tuple[str, ...]) -> Attack:
    """The body behind the checks and the frozen model that `attack` promises."""

    @functools.wraps(body)
    def guarded(
        model: Model, x: torch.Tensor, y: torch.Tensor | None, threat: Threat, **settings: Any
    ) -> torch.Tensor:
        check_images(x)
        name = body.__name__
        if threat.norm not in norms:
            raise InputError(f"{name} works in {', '.join(norms)}, got {threat.norm}")
        if kind == "budget" and not math.isfinite(threat.eps):
            raise InputError(f"{name} needs a finite eps, got {threat.eps}; fab and cw_l2 search without one")
        # Tensors made in inference mode can't take part in autograd; a clone made outside can.
        with torch.inference_mode(False), torch.no_grad(), frozen(model):
            labels = None if y is None else y.detach().to(x.device).clone()
            return body(model, x.detach().clone(), labels, threat, **settings).detach()

    return guarded


def _adopt(name: str, body: Attack) -> None:
    """File a plain function of somebody's as an attack within a budget; its images are checked in every norm.

    Unlike ours it has autograd from the start, as people write attacks.
    """
    parameters = inspect.signature(body).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    guarded = _guarded(torch.enable_grad()(body), "budget", NORMS)
    ATTACKS.add(name, kind="budget", norms=NORMS, paper="", defaults=defaults)(guarded)


ATTACKS.adopt = _adopt


def variant(base: str, name: str, about: str, *, paper: str, **defaults: Any) -> Attack:
    """File the attack `base` a second time, under another name and with other defaults."""
    info = ATTACKS.info(base)

    def body(
        model: Model, x: torch.Tensor, y: torch.Tensor | None, threat: Threat, **settings: Any
    ) -> torch.Tensor:
        return ATTACKS[base](model, x, y, threat, **{**defaults, **settings})

    parameters = inspect.signature(ATTACKS[base]).parameters.values()
    own = [p.replace(default=defaults.get(p.name, p.default)) for p in parameters]
    body.__name__ = body.__qualname__ = name
    body.__doc__ = f"`{base}` on {about}. x (B 3 H W) in [0,1], y (B,)."
    body.__dict__["__signature__"] = inspect.Signature(own, return_annotation=torch.Tensor)
    guarded = _guarded(body, info.kind, info.norms)
    ATTACKS.add(**{**vars(info), "paper": paper, "defaults": info.defaults | defaults})(guarded)
    return guarded


def check_settings(name: str, settings: dict[str, Any]) -> None:
    """Refuse settings that the attack of that name does not have."""
    known = list(ATTACKS.info(name).defaults)
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {name}", setting, known)


def prepared(name: str, model: Model, settings: dict[str, Any], train: Train) -> Prepared:
    """An attack's settings with what it learns on training images first, if it learns anything."""
    prepare = ATTACKS.info(name).prepare
    return Prepared(settings, {}) if prepare is None else prepare(model, train, settings)


def refuse_targets(settings: dict[str, Any]) -> None:
    """Refuse a targeted attack where all there is are the true labels of a dataset."""
    if settings.get("targeted"):
        raise InputError(
            "a targeted attack needs the class wanted for each image, got true labels; say how it is chosen "
            "with target= (--target), or call robvit.attacks.run(..., targeted=True) with the targets as y"
        )


def supported(attack: str | Attack, **settings: Any) -> dict[str, Any]:
    """Those of the settings that an attack has, given by its name or as a function."""
    known = ATTACKS.info(attack).defaults if isinstance(attack, str) else inspect.signature(attack).parameters
    return {setting: value for setting, value in settings.items() if setting in known}


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
    """Eval mode, no parameter gradients and quick patch projections inside; all as before afterwards."""
    parts = [part for network in modules_of(model) for part in network.modules()]
    modes = [(part, part.training) for part in parts]
    wanted = [p for part in parts for p in part.parameters(recurse=False) if p.requires_grad]
    try:
        for part, _ in modes:
            part.training = False
        for parameter in wanted:
            parameter.requires_grad_(False)
        with quick_projections(parts):
            yield
    finally:
        for part, mode in modes:
            part.training = mode
        for parameter in wanted:
            parameter.requires_grad_(True)


def per_image_uniform(x: torch.Tensor, seed: int, purpose: str | Sequence[str], *shape: int) -> torch.Tensor:
    """Uniform numbers in [0,1) for each image: (B *shape), by default of the images' own shape.

    They depend on the seed, the purpose, one for all or one an image, and the image alone, so batches of
    any make-up draw alike.
    """
    size = shape or x.shape[1:]
    purposes = [purpose] * len(x) if isinstance(purpose, str) else purpose
    rows = []
    for image, own in zip(x.detach().float().cpu().contiguous(), purposes, strict=True):
        key = hashlib.blake2b(memoryview(image.numpy()), digest_size=7, key=f"{seed} {own}".encode()[:64])
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
    return output.detach(), value.detach(), input_gradient(total, leaf)


def input_gradient(total: torch.Tensor, leaf: torch.Tensor, keep_graph: bool = False) -> torch.Tensor:
    """The gradient of one number for the images `leaf` and nothing else."""
    grad = None
    if total.requires_grad:
        (grad,) = torch.autograd.grad(total, leaf, retain_graph=keep_graph, allow_unused=True)
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


def succeeded(output: torch.Tensor, y: torch.Tensor | None, targeted: bool = False) -> torch.Tensor:
    """Which images an attack brought where it wanted (B,): misclassified, or if targeted classified as y."""
    if not targeted or y is None:
        return misclassified(output, y)
    return (output.argmax(1) == y) & ~output.isnan().any(1)


def require_labels(y: torch.Tensor | None, name: str) -> torch.Tensor:
    """The labels (B,) of an attack that can't do without them."""
    if y is None or y.ndim != 1 or y.is_floating_point():
        got = "none" if y is None else f"{y.dtype} {tuple(y.shape)}"
        raise InputError(f"{name} needs labels, one whole number an image, got {got}")
    return y
