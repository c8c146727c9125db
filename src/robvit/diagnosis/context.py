"""What the checks share: the images, the examined model, and every attack on it, each run once.

Checks request attacks; what one check has computed, the next one gets for nothing. A model whose output
differs from pass to pass is replaced by its mean over several passes, in attacks (EOT) and when judging.
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

from robvit.attacks import Outcome
from robvit.attacks.confirming import models_of
from robvit.attacks.core import ATTACKS, Model, frozen, misclassified, supported
from robvit.attacks.counting import Count
from robvit.attacks.eot import eot
from robvit.attacks.losses import LOSSES
from robvit.attacks.sanity import PrecisionDisagreement, PrecisionUnsound
from robvit.attacks.scales import network_of
from robvit.attacks.validity import check_adversarial
from robvit.errors import InputError, Unsupported, check_images, check_labels
from robvit.evaluation.trials import clean_trial, trial_of
from robvit.progress import silent
from robvit.record import Trial
from robvit.threat import Threat

EOT_PASSES = 4  # over which a randomised model is averaged
WHITE_BOX = ("cross_entropy", "margin", "dlr")  # the losses whose union is "the white box"


@dataclass(frozen=True)
class AttackStrength:
    """How hard the attacks try: gradient steps, restarts, queries and random draws, each for an image."""

    steps: int = 20
    restarts: int = 4
    queries: int = 300
    draws: int = 100

    def __post_init__(self) -> None:
        for name, least in (("steps", 4), ("restarts", 2), ("queries", 1), ("draws", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")


class CheckContext:
    """The examined model on images x (n 3 H W) in [0,1] with labels y (n,).

    `judged` is the model, or its mean over several passes if it is `randomised`; `clean_logits` (n K) and
    `correct` (n,) are its own on the images as they are. `outcomes` holds every attack so far by its title,
    `trials` the same for a record, and `pgd_outcomes` those of `pgd` by steps and budget. Of a `black_box`
    only answers can be had.
    """

    def __init__(
        self,
        model: Model,
        x: torch.Tensor,
        y: torch.Tensor,
        threat: Threat,
        *,
        strength: AttackStrength | None = None,
        surrogate: Model | None = None,
        seed: int = 0,
        batch: int = 32,
        black_box: bool = False,
    ) -> None:
        check_images(x)
        self.black_box = black_box
        self.model, self.x, self.y, self.threat = model, x, y.to(x.device), threat
        self.strength, self.seed, self.batch = strength or AttackStrength(), seed, batch
        self.surrogate = surrogate
        self.precision = "fp32"  # of the attacks' search, whose successes the judged model confirms
        self.each_pass: Callable[[int], None] = silent  # is told of every forward pass of an attack
        self.outcomes: dict[str, Outcome] = {}
        self.pgd_outcomes: dict[tuple[int, float], Outcome] = {}
        self.trials: list[Trial] = []
        self.judged: Model = model
        self.clean_logits = self.logits(x)
        self._check_logits(y)
        second = self.logits(x)
        tolerance = 1e-3 * float(self.clean_logits.abs().max())
        self.randomised = not torch.allclose(self.clean_logits, second, rtol=1e-3, atol=tolerance)
        if self.randomised:
            self.judged = eot(model, EOT_PASSES)
            self.clean_logits = self.logits(x)
        self.correct = ~misclassified(self.clean_logits, self.y)
        if not bool(self.correct.any()):
            raise InputError(
                f"the model classifies none of the {len(x)} images correctly, so there is nothing to attack; "
                "check that the labels are of the classes it was trained on"
            )

    def _check_logits(self, y: torch.Tensor) -> None:
        count, logits = len(self.x), self.clean_logits
        if logits.ndim != 2 or logits.shape[0] != count or logits.shape[1] < 2:
            got = tuple(logits.shape)
            raise InputError(f"the model must return logits ({count}, K) with K >= 2, got {got}")
        if not bool(logits.isfinite().all()):
            raise InputError("the model must return finite numbers on clean images, got NaN or infinity")
        check_labels(y, count, logits.shape[1])

    @property
    def num_correct(self) -> int:
        """How many images the model classifies correctly, which is how many an attack can change."""
        return int(self.correct.sum())

    # --- outputs and gradients ----------------------------------------------------------------------

    def logits(self, x: torch.Tensor, model: Model | None = None) -> torch.Tensor:
        """(n 3 H W) -> (n K), without gradients."""
        model = model or self.judged
        with torch.no_grad(), frozen(model):
            return torch.cat([model(part) for part in x.split(self.batch)]).detach()

    def input_gradient(self, loss: str, point: torch.Tensor) -> torch.Tensor | None:
        """The raw gradient of a loss at `point` (n 3 H W), NaN and all; None if autograd finds none."""
        parts = []
        for x, y in zip(point.split(self.batch), self.y.split(self.batch), strict=True):
            with torch.enable_grad(), frozen(self.judged):
                leaf = x.detach().clone().requires_grad_()
                try:
                    total = LOSSES[loss](self.judged(leaf), y).sum()
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError:  # the pass without gradients went well, so this one has none
                    return None
                if not total.requires_grad:
                    return None
                (grad,) = torch.autograd.grad(total, leaf, allow_unused=True)
            if grad is None:
                return None
            parts.append(grad.detach())
        return torch.cat(parts)

    @cached_property
    def margin_gradient(self) -> torch.Tensor | None:
        """The raw gradient of the margin at the clean images."""
        return self.input_gradient("margin", self.x)

    @cached_property
    def attention_network(self) -> nn.Module | None:
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
        surrogate: Model | None = None,
        after: Outcome | None = None,
        **settings: Any,
    ) -> Outcome:
        """Attack all correct images, or only those still correct in `after`, and judge the result.

        Images are made on the `surrogate`, if there is one, and always judged on the examined model. The
        title names the attack with all its settings: under the same title it is run once.
        """
        threat = threat or self.threat
        if title in self.outcomes:
            return self.outcomes[title]
        function = ATTACKS[name]
        options = {"seed": self.seed, **(supported(name, early_stop=False) if surrogate else {}), **settings}
        is_blind = ATTACKS.info(name).gradients and surrogate is None and self.margin_gradient is None

        def make(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x if is_blind else function(model, x, y, threat, **options)

        return self.run(title, make, threat, surrogate=surrogate, after=after, settings=settings)

    def run(
        self,
        title: str,
        make: Callable[[Model, torch.Tensor, torch.Tensor], torch.Tensor],
        threat: Threat,
        *,
        surrogate: Model | None = None,
        after: Outcome | None = None,
        settings: dict[str, Any] | None = None,
    ) -> Outcome:
        """Let `make(model, x, y)` change the images, check the budget, and judge the result."""
        start = time.monotonic()
        clean_predicted = self.clean_logits.argmax(1)
        adv = self.x.clone() if after is None else after.adv.clone()
        predicted = clean_predicted if after is None else after.predicted
        predicted, success = predicted.clone(), (~self.correct if after is None else after.success).clone()
        precision = self.precision if surrogate is None else "fp32"
        models, names = models_of(surrogate or self.judged, None, precision, None, self.each_pass), set[str]()
        rows, claimed = (~success).nonzero()[:, 0], torch.zeros_like(success)

        def attempt(model: Count, places: torch.Tensor) -> None:
            """Change these images, as the model in question sees them, and judge what comes of it."""
            for part in places.split(self.batch):
                with torch.no_grad():
                    adv[part] = make(model, self.x[part], self.y[part])
                    if unsound := models.low and models.search.nan_seen:
                        names.add(PrecisionUnsound.__name__)
                        adv[part] = make(models.own, self.x[part], self.y[part])
                check_adversarial(self.x[part], adv[part], threat)
                if models.memory is not None and not unsound:
                    claimed[part] = models.memory.claimed(adv[part], self.y[part], targeted=False)
                models.forget()
            logits = self.logits(adv[places])
            if bool(logits.isnan().any()):
                raise InputError("the model must return numbers, got NaN on attacked images; mend that first")
            predicted[places], success[places] = logits.argmax(1), misclassified(logits, self.y[places])

        if len(rows):
            attempt(models.search, rows)
        if len(again := (claimed & ~success).nonzero()[:, 0]):
            names.add(PrecisionDisagreement.__name__)
            attempt(models.own, again)
        counts = {models.search, models.own}
        self.outcomes[title] = outcome = Outcome(
            adv=adv,
            success=success,
            predicted=predicted,
            clean_correct=self.correct,
            clean_predicted=clean_predicted,
            distance=threat.size(adv - self.x),
            forward=sum(model.forward for model in counts) + len(rows),
            backward=sum(model.backward for model in counts),
            seconds=time.monotonic() - start,
            warnings=tuple(sorted(names)),
        )
        settings, skipped = dict(settings or {}), []
        if after is not None:
            settings["after"], skipped = self._title(after), after.success.nonzero()[:, 0].tolist()
        self.trials.append(trial_of(outcome, title, threat, settings, skipped=skipped))
        return outcome

    def _title(self, outcome: Outcome) -> str:
        return next(title for title, known in self.outcomes.items() if known is outcome)

    def pgd(self, *, steps: int | None = None, eps: float | None = None) -> Outcome:
        """The attack under test: PGD on cross-entropy, with which most evaluations begin."""
        steps = steps or self.strength.steps
        threat = self.threat if eps is None else Threat(self.threat.norm, eps)
        suffix = "" if eps is None else f", {threat}"
        outcome = self.attack("pgd", title=f"pgd-{steps}{suffix}", threat=threat, steps=steps)
        self.pgd_outcomes[steps, threat.eps] = outcome
        return outcome

    def pgd_on(self, loss: str) -> Outcome:
        """PGD on another loss, otherwise as `pgd`."""
        if loss == WHITE_BOX[0]:
            return self.pgd()
        steps = self.strength.steps
        return self.attack("pgd", title=f"pgd-{steps} {loss}", steps=steps, loss=loss)

    @cached_property
    def white_box(self) -> Outcome:
        """The white box: for each image the worst of PGD on three losses."""
        first, *others = (self.pgd_on(loss) for loss in WHITE_BOX)
        adv, predicted, success = first.adv.clone(), first.predicted.clone(), first.success.clone()
        for other in others:
            new = other.success & ~success
            adv[new], predicted[new] = other.adv[new], other.predicted[new]
            success |= other.success
        self.outcomes["white box"] = outcome = Outcome(
            adv=adv,
            success=success,
            predicted=predicted,
            clean_correct=self.correct,
            clean_predicted=first.clean_predicted,
            distance=self.threat.size(adv - self.x),
        )
        return outcome

    def clean_trial(self) -> Trial:
        """The predictions on the images as they are, for a record."""
        return clean_trial(self.correct.tolist(), self.clean_logits.argmax(1).tolist())


def percent(outcome: Outcome) -> str:
    """The accuracy under an attack, in words."""
    return f"{outcome.robust_accuracy:.0%}"
