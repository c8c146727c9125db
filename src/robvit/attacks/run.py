"""The public runner: checks what goes in, counts the passes, certifies and judges what comes out.

It never repairs: an attack that leaves its budget raises BrokenAttack, and success is decided by a
fresh pass of the judged model over the returned images, never by what the attack believes.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch

from robvit.attacks import losses
from robvit.attacks.compiled import Compiled
from robvit.attacks.core import ATTACKS, Attack, Model, frozen, gradient, misclassified
from robvit.attacks.eot import eot
from robvit.attacks.pixels import eight_bit as whole_levels
from robvit.errors import BrokenAttack, InputError, check_images, check_labels
from robvit.registry import unknown
from robvit.threat import Threat


class AttackWarning(UserWarning):
    """Something that makes an attack's result doubtful; the class's name stands in the outcome."""


class SoftmaxOutput(AttackWarning):
    """The model returns probabilities: its gradients vanish where it is sure of itself."""


class RandomisedOutput(AttackWarning):
    """The model answers differently when asked again, and one answer decides: use eot and `samples`."""


class ZeroGradient(AttackWarning):
    """The gradient of the margin is zero everywhere for some images."""


class Count:
    """A model that counts: `forward` and `backward` are passes summed over images.

    >>> with Count(model) as counted:
    ...     adv = pgd(counted, x, y, threat, steps=10)
    >>> counted.forward / len(x)
    """

    def __init__(self, model: Model) -> None:
        self.__wrapped__ = model
        self.forward = 0
        self.backward = 0
        self._nan: torch.Tensor | None = None

    def __enter__(self) -> Count:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    @property
    def nan_seen(self) -> bool:
        """Whether any output so far held a NaN."""
        return self._nan is not None and bool(self._nan)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        output = self.__wrapped__(x)
        self.forward += len(x)
        bad = output.detach().isnan().any()
        self._nan = bad if self._nan is None else self._nan | bad  # read at the end: no wait for the device
        if output.requires_grad:
            output.register_hook(self._note)
        return output

    def _note(self, grad: torch.Tensor) -> None:
        self.backward += len(grad)


@dataclass(frozen=True)
class Outcome:
    """What an attack did: images (B 3 H W), and for each whether the judged model errs on it (B,).

    `clean` says which images it got right before. Passes are sums over images and include the
    clean pass and the final judgement; `warnings` holds the names of warning classes.
    """

    adv: torch.Tensor
    success: torch.Tensor
    clean: torch.Tensor
    distance: torch.Tensor
    forward: int
    backward: int
    warnings: tuple[str, ...]

    @property
    def robust_accuracy(self) -> float:
        """The share of images that are still classified rightly."""
        return float((~self.success).float().mean())


def certify(x: torch.Tensor, adv: torch.Tensor, threat: Threat, eight_bit: bool = False) -> None:
    """Raise BrokenAttack unless every adversarial image (B 3 H W) is an image inside its budget.

    With `eight_bit` every value must also be a whole number of grey levels, so that saving as PNG
    changes nothing. Tolerances cover rounding: two units in the last place of 1 for each value.
    """
    if adv.shape != x.shape or adv.dtype != x.dtype:
        raise BrokenAttack(
            f"an attack must return {x.dtype} {tuple(x.shape)}, got {adv.dtype} {tuple(adv.shape)}"
        )
    if not bool(adv.isfinite().all()):
        raise BrokenAttack("an attack must return finite values, got NaN or infinity")
    low, high = (float(v) for v in adv.aminmax())
    if low < 0 or high > 1:
        raise BrokenAttack(f"an attack must stay in [0,1], got [{low:.6g}, {high:.6g}]")
    unit = 2 * torch.finfo(x.dtype).eps
    delta = adv.double() - x.double()
    size = threat.size(delta)
    slack = unit * float(threat.size(torch.ones_like(delta[:1]))) + 1e-6 * threat.eps
    if bool((size > threat.eps + slack).any()):
        worst = int(size.argmax())
        raise BrokenAttack(
            f"image {worst} must stay within {threat}, got {threat.norm} {float(size[worst]):.8g}"
        )
    rms = delta.flatten(1).norm(dim=1)
    if bool((rms > threat.radius(x) * (1 + 1e-6) + unit * delta[0].numel() ** 0.5).any()):
        raise BrokenAttack(
            f"every image must keep a PSNR of {threat.psnr} dB, image {int(rms.argmax())} does not"
        )
    if eight_bit and bool(((adv.double() * 255).frac().sub(0.5).abs() < 0.5 - 255 * unit).any()):
        raise BrokenAttack("values must be whole grey levels n/255, got others; round inside the ball first")


def run(
    attack: str | Attack,
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    victim: Model | None = None,
    batch: int = 128,
    eight_bit: bool = False,
    samples: int = 1,
    compiler: str | None = None,
    **settings: Any,
) -> Outcome:
    """Attack images x (B 3 H W) in [0,1] with labels y (B,), and tell what came of it.

    Images that are wrong from the start are left as they are. With a `victim`, images are made
    on `model` and judged on the victim: every image is attacked to the attack's full objective,
    whatever `model` thinks of it. A randomised model is judged by its mean over `samples` fresh
    passes. With `eight_bit` images are rounded to whole grey levels inside the budget before they
    are judged, so that saving them changes nothing. y may be None, or a target that is no label, for
    attacks whose objective needs none; then nothing counts as a success. A `compiler`, such as
    "inductor", compiles the attacked model first; the victim judges as it is.
    """
    check_images(x)
    if y is not None and len(y) != len(x):
        raise InputError(f"there must be one label an image, {len(x)}, got {len(y)}")
    function, gradients = _known(attack, settings)
    counted = Count(model if compiler is None else Compiled(model, compiler))
    judged = counted if victim is None else Count(victim)
    judge = eot(judged, samples)
    if victim is not None:
        settings = {"early_stop": False, **settings}
        if isinstance(attack, str) and "judge" in ATTACKS.entry(attack).facts["defaults"]:
            settings = {"judge": judge, **settings}
    names: set[str] = set()
    parts = []
    with torch.no_grad(), frozen(model), frozen(victim):
        for first in range(0, len(x), batch):
            some, labels = x[first : first + batch], y if y is None else y[first : first + batch].to(x.device)
            clean = judge(some)
            _check_output(clean, labels, len(some))
            if first == 0:
                names |= _doubts(counted, some, labels, clean, gradients, victim is None and samples == 1)
            wrong = misclassified(clean, labels)
            todo = torch.arange(len(some)) if victim is not None else (~wrong).nonzero()[:, 0]
            adv = some.detach().clone()
            if len(todo):
                made = function(
                    counted, some[todo], labels if labels is None else labels[todo], threat, **settings
                )
                certify(some[todo], made, threat)
                if eight_bit:
                    made = whole_levels(some[todo], made, threat)
                    certify(some[todo], made, threat, eight_bit)
                adv[todo] = made
            verdict = misclassified(judge(adv), labels)
            parts.append((adv, verdict, ~wrong, threat.size(adv - some)))
    for watched in {counted, judged}:
        if watched.nan_seen:
            raise InputError("the model must return numbers, got NaN on attacked images; check its precision")
    adv, success, clean_right, distance = (torch.cat(part) for part in zip(*parts, strict=True))
    forward, backward = (sum(getattr(c, n) for c in {counted, judged}) for n in ("forward", "backward"))
    return Outcome(adv, success, clean_right, distance, forward, backward, tuple(sorted(names)))


def _known(attack: str | Attack, settings: dict[str, Any]) -> tuple[Attack, bool]:
    """The attack's function and whether it uses gradients; settings it does not have are refused."""
    if not isinstance(attack, str):
        return attack, True
    entry = ATTACKS.entry(attack)
    for name in settings:
        if name not in entry.facts["defaults"]:
            raise unknown(f"setting of {attack}", name, list(entry.facts["defaults"]))
    return entry.value, bool(entry.facts["gradients"])


def _check_output(output: torch.Tensor, y: torch.Tensor | None, count: int) -> None:
    if len(output) != count:
        raise InputError(f"the model must return one row an image, {count}, got {tuple(output.shape)}")
    if bool(output.isnan().any()):
        raise InputError(
            "the model must return numbers, got NaN on clean images; check weights and precision"
        )
    if y is None or y.ndim != 1 or y.is_floating_point():
        return
    if output.ndim != 2 or output.shape[1] < 2:
        raise InputError(f"the model must return logits ({count}, K) with K >= 2, got {tuple(output.shape)}")
    check_labels(y, count, output.shape[1])


def _doubts(
    model: Model, x: torch.Tensor, y: torch.Tensor | None, clean: torch.Tensor, gradients: bool, steady: bool
) -> set[str]:
    """Warn of what makes results doubtful, judged on the first images; the names of the warnings.

    `steady` says that `clean` is the answer of the same model to the same images.
    """
    if y is None or y.ndim != 1 or y.is_floating_point():
        return set()
    found: list[tuple[type[AttackWarning], str]] = []
    few = min(len(x), 16)  # enough to notice, and cheap
    if not gradients:
        again = model(x[:few])
    else:
        again, _, grad = gradient(model, x[:few], lambda output: losses.margin(output, y[:few]))
        dead = int((grad.flatten(1).abs().amax(1) == 0).sum())
        if dead:
            text = f"the gradient is zero for {dead} of {few} images; use square or bpda as well"
            found.append((ZeroGradient, text))
    if bool((again >= 0).all() and ((again.sum(1) - 1).abs() < 1e-3).all()):
        found.append((SoftmaxOutput, "the model's outputs look like probabilities; pass logits"))
    if steady and not torch.allclose(again, clean[:few], rtol=1e-2, atol=1e-3 * float(clean.abs().max())):
        found.append(
            (RandomisedOutput, "two answers to the same images differ; attack eot(model), set samples")
        )
    for category, text in found:
        warnings.warn(text, category, stacklevel=3)
    return {category.__name__ for category, _ in found}
