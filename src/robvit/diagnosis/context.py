"""An examination: the images, the model under suspicion, and every attack on it, each made once.

Checks ask the exam for attacks; what one check has paid for, the next one gets for nothing. A model that
answers differently when asked again is replaced by its mean over several passes, in attacks (EOT) and in
judgements alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn

from robvit.attacks.core import ATTACKS, Model, frozen, misclassified, supported
from robvit.attacks.eot import eot
from robvit.attacks.losses import LOSSES
from robvit.attacks.run import Count, certify
from robvit.attacks.scales import network_of
from robvit.errors import InputError, Unsupported, check_images, check_labels
from robvit.record import Trial
from robvit.threat import Threat

AVERAGED = 4  # passes over which a randomised model is averaged
WHITE_BOX = ("cross_entropy", "margin", "dlr")  # the losses whose union is "the white box"


def name_of(model: Model) -> str:
    """What to call a model in words."""
    return str(getattr(model, "name", None) or getattr(model, "__qualname__", type(model).__qualname__))


@dataclass(frozen=True)
class Effort:
    """How hard the attacks try: gradient steps, restarts, queries and noisy images, each for an image."""

    steps: int = 20
    restarts: int = 4
    queries: int = 300
    draws: int = 100

    def __post_init__(self) -> None:
        for name, least in (("steps", 4), ("restarts", 2), ("queries", 1), ("draws", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Shot:
    """One attack: images (n 3 H W), what the model says of each (n,), and whether it errs (n,)."""

    title: str
    threat: Threat
    settings: dict[str, Any]
    adv: torch.Tensor
    predicted: torch.Tensor
    broken: torch.Tensor
    forward: int = 0
    backward: int = 0
    seconds: float = 0.0
    skipped: tuple[int, ...] = ()

    def trial(self, x: torch.Tensor) -> Trial:
        """The shot as a part of a record."""
        return Trial(
            self.title,
            self.threat.budget,
            self.settings,
            (~self.broken).tolist(),
            self.predicted.tolist(),
            self.threat.size(self.adv - x).tolist(),
            self.forward,
            self.backward,
            self.seconds,
            skipped=list(self.skipped),
        )


class CheckContext:
    """The model under examination on images x (n 3 H W) in [0,1] with labels y (n,)."""

    def __init__(
        self,
        model: Model,
        x: torch.Tensor,
        y: torch.Tensor,
        threat: Threat,
        *,
        effort: Effort | None = None,
        surrogate: Model | None = None,
        seed: int = 0,
        batch: int = 32,
    ) -> None:
        check_images(x)
        self.model, self.x, self.y, self.threat = model, x, y.to(x.device), threat
        self.effort, self.seed, self.batch = effort or Effort(), seed, batch
        self.surrogate = surrogate
        self.shots: dict[str, Shot] = {}
        self.subject: Model = model
        self.clean = self.logits(x)
        if self.clean.ndim != 2 or self.clean.shape[0] != len(x) or self.clean.shape[1] < 2:
            got = tuple(self.clean.shape)
            raise InputError(f"the model must return logits ({len(x)}, K) with K >= 2, got {got}")
        if not bool(self.clean.isfinite().all()):
            raise InputError("the model must return finite numbers on clean images, got NaN or infinity")
        check_labels(y, len(x), self.clean.shape[1])
        self.again = self.logits(x)  # a second answer to the same question
        close = 1e-3 * float(self.clean.abs().max())
        self.randomised = not torch.allclose(self.clean, self.again, rtol=1e-3, atol=close)
        if self.randomised:
            self.subject = eot(model, AVERAGED)
            self.clean = self.logits(x)
        self.correct = ~misclassified(self.clean, self.y)
        if not bool(self.correct.any()):
            raise InputError(
                f"the model is right on none of the {len(x)} images, so there is nothing to attack; "
                "check that the labels are of the classes it was trained on"
            )

    @property
    def at_stake(self) -> int:
        """How many images the model gets right, which is how many an attack can break."""
        return int(self.correct.sum())

    # --- what the model says ------------------------------------------------------------------------

    def logits(self, x: torch.Tensor, model: Model | None = None) -> torch.Tensor:
        """(n 3 H W) -> (n K), without gradients."""
        asked = model or self.subject
        with torch.no_grad(), frozen(asked):
            return torch.cat([asked(some) for some in x.split(self.batch)]).detach()

    def slopes(self, loss: str, point: torch.Tensor) -> torch.Tensor | None:
        """The raw gradient of a loss at `point` (n 3 H W), NaN and all; None if autograd knows of none."""
        parts = []
        for some, labels in zip(point.split(self.batch), self.y.split(self.batch), strict=True):
            with torch.enable_grad(), frozen(self.subject):
                leaf = some.detach().clone().requires_grad_()
                try:
                    total = LOSSES[loss](self.subject(leaf), labels).sum()
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:  # the pass that wants no gradients went well, so this step has none
                    return None
                if not total.requires_grad:
                    return None
                (grad,) = torch.autograd.grad(total, leaf, allow_unused=True)
            if grad is None:
                return None
            parts.append(grad.detach())
        return torch.cat(parts)

    @cached_property
    def slope(self) -> torch.Tensor | None:
        """The raw gradient of the margin at the clean images."""
        return self.slopes("margin", self.x)

    @cached_property
    def attentive(self) -> nn.Module | None:
        """The network with attention behind the model, if there is one within reach."""
        with suppress(Unsupported):
            return network_of(self.model)
        return None

    # --- attacks ------------------------------------------------------------------------------------

    def attack(
        self,
        name: str,
        *,
        title: str,
        threat: Threat | None = None,
        source: Model | None = None,
        after: Shot | None = None,
        **settings: Any,
    ) -> Shot:
        """Attack all images that are right, or only those that `after` left standing, and judge afresh.

        Images are made on `source` and always judged on the model under examination. The title names the
        attack with all its settings: under the same title it is run once.
        """
        threat = threat or self.threat
        if title not in self.shots:
            body = ATTACKS[name]
            given = {"seed": self.seed, **(supported(name, early_stop=False) if source else {}), **settings}
            blind = ATTACKS.info(name).gradients and source is None and self.slope is None

            def make(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
                return x if blind else body(model, x, y, threat, **given)

            shown = {**settings, **({"after": after.title} if after else {})}
            self.shoot(title, make, threat, source=source, after=after, settings=shown)
        return self.shots[title]

    def shoot(
        self,
        title: str,
        make: Callable[[Model, torch.Tensor, torch.Tensor], torch.Tensor],
        threat: Threat,
        *,
        source: Model | None = None,
        after: Shot | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Shot:
        """Let `make(model, x, y)` change the images, certify the budget, and judge the result."""
        start = time.monotonic()
        standing = self.correct if after is None else ~after.broken
        adv = self.x.clone() if after is None else after.adv.clone()
        counted = Count(source or self.subject)
        predicted = self.clean.argmax(1) if after is None else after.predicted.clone()
        broken = ~standing
        rows = standing.nonzero()[:, 0]
        if len(rows):
            for some in rows.split(self.batch):
                with torch.no_grad():
                    adv[some] = make(counted, self.x[some], self.y[some])
                certify(self.x[some], adv[some], threat)
            output = self.logits(adv[rows])
            if bool(output.isnan().any()):
                raise InputError("the model must return numbers, got NaN on attacked images; mend that first")
            predicted[rows], broken[rows] = output.argmax(1), misclassified(output, self.y[rows])
        self.shots[title] = Shot(
            title,
            threat,
            settings or {},
            adv,
            predicted,
            broken,
            counted.forward + len(rows),
            counted.backward,
            time.monotonic() - start,
            () if after is None else tuple((~standing).nonzero()[:, 0].tolist()),
        )
        return self.shots[title]

    def pgd(self, *, steps: int | None = None, eps: float | None = None) -> Shot:
        """The attack whose word is tested: PGD on cross-entropy, as most evaluations begin with."""
        steps = steps or self.effort.steps
        threat = self.threat if eps is None else Threat(self.threat.norm, eps)
        loud = "" if eps is None else f", {threat}"
        return self.attack("pgd", title=f"pgd-{steps}{loud}", threat=threat, steps=steps)

    def on_loss(self, loss: str) -> Shot:
        """PGD on another loss, otherwise as `pgd`."""
        if loss == WHITE_BOX[0]:
            return self.pgd()
        return self.attack("pgd", title=f"pgd-{self.effort.steps} {loss}", steps=self.effort.steps, loss=loss)

    @cached_property
    def white(self) -> Shot:
        """The white box: for each image the worst of PGD on three losses."""
        parts = [self.on_loss(loss) for loss in WHITE_BOX]
        adv, predicted, broken = (getattr(parts[0], n).clone() for n in ("adv", "predicted", "broken"))
        for part in parts[1:]:
            fresh = part.broken & ~broken
            adv[fresh], predicted[fresh] = part.adv[fresh], part.predicted[fresh]
            broken |= part.broken
        return Shot("white box", self.threat, {"losses": list(WHITE_BOX)}, adv, predicted, broken)

    def share(self, shot: Shot) -> str:
        """The accuracy that a shot leaves, in words."""
        return f"{float((~shot.broken).float().mean()):.0%}"
