"""The public runner: checks what goes in, counts the passes, certifies and judges what comes out.

It never repairs: an attack that leaves its budget raises BrokenAttack, and success is decided by a
fresh pass of the judged model over the returned images, never by what the attack believes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from robvit.attacks.compiled import Compiled
from robvit.attacks.core import ATTACKS, Attack, Model, check_settings, frozen, succeeded, supported
from robvit.attacks.eot import eot
from robvit.attacks.pixels import eight_bit as whole_levels
from robvit.attacks.precision import Autocast, check_precision
from robvit.attacks.sanity import PrecisionDisagreement, doubts
from robvit.errors import BrokenAttack, InputError, check_images, check_labels
from robvit.threat import Threat


class Count:
    """A model that counts: `forward` and `backward` are passes summed over images.

    >>> counted = Count(model)
    >>> adv = pgd(counted, x, y, threat, steps=10)
    >>> counted.forward / len(x)
    """

    def __init__(self, model: Model) -> None:
        self.__wrapped__ = model
        self.forward = 0
        self.backward = 0
        self._nan: torch.Tensor | None = None

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
    """What an attack did: images `adv` (B 3 H W), and for each what the judged model makes of it.

    `predicted` and `clean_predicted` are its classes (B,) after and before, or masks (B H W), or -1 where
    it returns features; `success` (B,) says that it errs on `adv`, `clean_correct` (B,) that it was right
    before. `distance` (B,) is in the threat's norm. Passes are sums over images and include the clean pass
    and the final judgement; `warnings` holds the names of warning classes.
    """

    adv: torch.Tensor
    success: torch.Tensor
    predicted: torch.Tensor
    clean_correct: torch.Tensor
    clean_predicted: torch.Tensor
    distance: torch.Tensor
    forward: int = 0
    backward: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def robust_accuracy(self) -> float:
        """The share of images that are still classified correctly."""
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
    precision: str = "fp32",
    compiler: str | None = None,
    **settings: Any,
) -> Outcome:
    """Attack images x (B 3 H W) in [0,1] with labels y (B,), and tell what came of it.

    Images that are misclassified from the start are left as they are. y may be None, or a target that is
    no label, for attacks whose objective needs none; then nothing counts as a success. Of an attack that is
    `targeted`, y are the classes wanted: success is to be classified so, and what is so from the start is
    left as it is.

    attack: a registered name, or a function of the same signature.
    model: any callable from images to outputs; the attack differentiates it.
    threat: the norm and the budget that every image must keep.
    victim: another model that judges (transfer); then every image is attacked to the attack's full
        objective, whatever `model` thinks of it.
    batch: images in one pass.
    eight_bit: round to whole grey levels inside the budget before judging, so that saving changes nothing.
    samples: fresh passes over which a randomised model is averaged when it judges.
    precision: "bf16" or "fp16" for a faster search; a success counts only if fp32 confirms it, and what
        fp32 does not confirm is attacked again in fp32.
    compiler: "inductor", say, compiles the attacked model first; the judge stays as it is.
    settings: those of the attack.
    """
    start = time.monotonic()
    check_images(x)
    check_precision(precision)
    if y is not None and len(y) != len(x):
        raise InputError(f"there must be one label an image, {len(x)}, got {len(y)}")
    function, gradients = _known(attack, settings)
    source = model if compiler is None else Compiled(model, compiler)
    source = source if precision == "fp32" else Autocast(source, precision)
    search = Count(source)
    judged = search if victim is None and source is model else Count(victim or model)
    judge = eot(judged, samples)
    if victim is not None:
        settings = supported(attack, early_stop=False, judge=judge) | settings
    work = _Attack(function, settings, threat, search, judge, victim is not None, eight_bit)
    names: set[str] = set()
    parts = []
    with torch.no_grad(), frozen(model), frozen(victim):
        for first in range(0, len(x), batch):
            some, labels = x[first : first + batch], y if y is None else y[first : first + batch].to(x.device)
            clean = judge(some)
            _check_output(clean, labels, len(some))
            if first == 0:
                asked, steady = (judged, samples == 1) if victim is None else (search, False)
                names |= doubts(asked, some, labels, clean, gradients, steady)
            adv, output = work.on(some, labels, clean)
            if victim is None and precision != "fp32":
                names |= work.confirm(judged, some, labels, clean, adv, output)
            before, success = (work.success(logits, labels) for logits in (clean, output))
            distance = threat.size(adv - some)
            parts.append((adv, success, _predicted(output), ~before, _predicted(clean), distance))
    counts = {search, judged}
    if any(count.nan_seen for count in counts):
        raise InputError("the model must return numbers, got NaN on attacked images; check its precision")
    adv, success, predicted, clean_correct, clean_predicted, distance = (
        torch.cat(part) for part in zip(*parts, strict=True)
    )
    return Outcome(
        adv,
        success,
        predicted,
        clean_correct,
        clean_predicted,
        distance,
        forward=sum(count.forward for count in counts),
        backward=sum(count.backward for count in counts),
        seconds=time.monotonic() - start,
        warnings=tuple(sorted(names)),
    )


@dataclass(frozen=True)
class _Attack:
    """An attack with all that one batch of it needs; `transfer` attacks every image."""

    function: Attack
    settings: dict[str, Any]
    threat: Threat
    search: Count
    judge: Model
    transfer: bool
    eight_bit: bool

    def on(
        self, x: torch.Tensor, y: torch.Tensor | None, clean: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Certified images (B 3 H W) and the judged model's fresh output on them."""
        adv, rows = x.detach().clone(), self._rows(y, clean)
        if len(rows):
            adv[rows] = self._images(self.search, x[rows], _of(y, rows))
        return adv, self.judge(adv)

    def confirm(
        self,
        full: Model,
        x: torch.Tensor,
        y: torch.Tensor | None,
        clean: torch.Tensor,
        adv: torch.Tensor,
        output: torch.Tensor,
    ) -> set[str]:
        """Attack again, on the model in full precision, what only low precision misclassifies; in place."""
        rows = self._rows(y, clean)
        if not len(rows):
            return set()
        claimed = self.success(self.search(adv[rows]), _of(y, rows))
        again = rows[claimed & ~self.success(output[rows], _of(y, rows))]
        if not len(again):
            return set()
        adv[again] = self._images(full, x[again], _of(y, again))
        output[again] = self.judge(adv[again])
        return {PrecisionDisagreement.__name__}

    def _rows(self, y: torch.Tensor | None, clean: torch.Tensor) -> torch.Tensor:
        """The images to attack: those that are still right, or all."""
        if self.transfer:
            return torch.arange(len(clean))
        return (~self.success(clean, y)).nonzero()[:, 0]

    def success(self, output: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        """Which outputs are what the attack wants (B,)."""
        return succeeded(output, y, bool(self.settings.get("targeted", False)))

    def _images(self, model: Model, x: torch.Tensor, y: torch.Tensor | None) -> torch.Tensor:
        adv = self.function(model, x, y, self.threat, **self.settings)
        certify(x, adv, self.threat)
        if self.eight_bit:
            adv = whole_levels(x, adv, self.threat)
            certify(x, adv, self.threat, eight_bit=True)
        return adv


def _known(attack: str | Attack, settings: dict[str, Any]) -> tuple[Attack, bool]:
    """The attack's function and whether it uses gradients; settings it does not have are refused."""
    if not isinstance(attack, str):
        return attack, True
    check_settings(attack, settings)
    return ATTACKS[attack], ATTACKS.info(attack).gradients


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


def _of(y: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor | None:
    return y if y is None else y[rows]


def _predicted(output: torch.Tensor) -> torch.Tensor:
    """The classes of logits (B K) or (B K H W); -1 (B,) where the model returns no classes."""
    if output.ndim in (2, 4):
        return output.argmax(1)
    return torch.full((len(output),), -1, device=output.device)
