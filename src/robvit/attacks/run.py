"""The public runner: checks what goes in, counts the passes, checks and judges what comes out.

It never repairs: an attack that leaves its budget raises BrokenAttack, and success is decided by a
fresh pass of the judged model over the returned images, never by what the attack believes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from robvit.attacks.audited import audits_inside, refuse_batches
from robvit.attacks.confirming import models_of
from robvit.attacks.core import (
    ATTACKS,
    Attack,
    Model,
    check_settings,
    frozen,
    misclassified,
    succeeded,
    supported,
)
from robvit.attacks.counting import Count
from robvit.attacks.eot import eot
from robvit.attacks.outcome import Outcome
from robvit.attacks.pixels import eight_bit as whole_levels
from robvit.attacks.precision import check_precision
from robvit.attacks.sanity import (
    AuditedSample,
    PrecisionDisagreement,
    PrecisionOfAudit,
    PrecisionUnsound,
    doubts,
)
from robvit.attacks.targets import Target, choose_targets
from robvit.attacks.validity import check_adversarial
from robvit.audit import Audit
from robvit.autoattack import is_audited
from robvit.errors import InputError, check_batch, check_images, check_labels
from robvit.progress import silent
from robvit.threat import Threat

_Part = tuple[torch.Tensor, ...]  # the tensors of an outcome for one batch, in its order


def run(
    attack: str | Attack,
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor | None,
    threat: Threat,
    *,
    victim: Model | None = None,
    leave_wrong: bool = False,
    target: Target | None = None,
    batch: int = 128,
    eight_bit: bool = False,
    samples: int = 1,
    precision: str = "fp32",
    compiler: str | None = None,
    each_pass: Callable[[int], None] = silent,
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
    leave_wrong: with a victim, leave what it misclassifies from the start as it is, where nobody else judges.
    target: makes the attack a targeted one while y stay labels: "random", "least-likely", "most-likely", a
        class, or one for each image (`choose_targets`); success is then to be classified as the target.
    batch: images in one pass.
    eight_bit: round to whole grey levels inside the budget before judging, so that saving changes nothing.
    samples: fresh passes over which a randomised model is averaged when it judges.
    precision: "bf16" or "fp16" for a faster search, with "/plain" after it by plain attention; a success
        counts only if the model as it is confirms it, and what it does not confirm is attacked again there,
        as is a batch on which low precision gives NaN. AutoAttack's audited version is searched in fp32.
    compiler: "inductor", say, compiles the attacked model first, and with "/padded" after it pads batches to
        few sizes; the judge stays as it is.
    each_pass: is told of every forward pass of the attacked model, over how many images it went.
    settings: those of the attack.
    """
    start = time.monotonic()
    check_images(x)
    check_precision(precision)
    if y is not None and len(y) != len(x):
        raise InputError(f"there must be one label an image, {len(x)}, got {len(y)}")
    if target is not None:
        settings = {**settings, "targeted": True}
    function, gradients = _known(attack, settings)
    if len(x) > batch:
        refuse_batches(attack, settings)
    names: set[str] = set()
    if precision != "fp32" and is_audited(attack, settings):
        # Its sample is of what it leaves, and low precision leaves others than those that count.
        precision = "fp32"
        names.add(PrecisionOfAudit.__name__)
    models = models_of(model, victim, precision, compiler, each_pass)
    search, judged = models.search, models.judged
    decide, transfer = eot(judged, samples), victim is not None
    if transfer:
        settings = supported(attack, early_stop=False, judge=decide) | settings
    targeted = bool(settings.get("targeted", False))
    won = partial(succeeded, targeted=targeted)
    parts: list[_Part] = []
    audits: list[Audit] = []
    with torch.no_grad(), frozen(model), frozen(victim):
        for place, (some, labels) in enumerate(_batches(x, y, batch)):
            clean = decide(some)
            _check_output(clean, labels, len(some))
            if not parts:
                asked, steady = (search, False) if transfer else (judged, samples == 1)
                names |= doubts(asked, some, labels, clean, gradients, steady)
            aim = labels  # to leave, or to reach
            if target is not None:
                own = target[place * batch :][:batch] if isinstance(target, torch.Tensor) else target
                aim = choose_targets(own, clean, labels, some, int(settings.get("seed", 0)))
            before = won(clean, aim)
            alike = torch.zeros_like(before)
            if target is not None:
                alike = _given(aim) == _given(labels)  # there is nothing to attack
            everyone = transfer and not leave_wrong
            rows = (~alike if everyone else ~before & ~alike).nonzero()[:, 0]
            adv, claimed, memory = some.detach().clone(), torch.zeros_like(before), models.memory
            craft = partial(_craft, function, threat, settings, some, aim)
            if len(rows):
                with audits_inside() as told:
                    made = craft(search, rows)
                    if models.low and search.nan_seen:  # full precision says whether the model is broken
                        names.add(PrecisionUnsound.__name__)
                        made, memory = craft(models.own, rows), None
                audits += [replace(one, successes=rows[one.successes].tolist()) for one in told]
                adv[rows] = _checked(some[rows], made, threat, eight_bit)
                if memory is not None:
                    claimed[rows] = memory.claimed(made, _of(aim, rows), targeted)
            output = decide(adv)
            if memory is not None:
                claimed |= won(search(adv), aim)
                again = rows[(claimed & ~won(output, aim))[rows]]
                if len(again):
                    names.add(PrecisionDisagreement.__name__)
                    adv[again] = _checked(some[again], craft(judged, again), threat, eight_bit)
                    output[again] = decide(adv[again])
            models.forget()
            success, distance = won(output, aim), threat.size(adv - some)
            wrong = before if target is None else misclassified(clean, labels)
            part = (adv, success, _predicted(output), ~wrong, _predicted(clean), distance)
            parts.append(part if target is None else (*part, _given(aim), _given(labels)))
    names |= {AuditedSample.__name__} if any(one.bound for one in audits) else set()
    counts = {search, judged, models.own}
    return replace(_outcome(parts, counts, time.monotonic() - start, names), audits=tuple(audits))


@torch.no_grad()
def judge(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor,
    adv: torch.Tensor | None = None,
    threat: Threat | None = None,
    *,
    batch: int = 128,
) -> Outcome:
    """What a model makes of images x (B 3 H W), and of `adv` that were made of them elsewhere.

    Without `adv` both are the same. Distances are in the threat's norm, 0 without one.
    """
    start, counted, parts = time.monotonic(), Count(model), list[_Part]()
    with frozen(model):
        for first, (some, labels) in enumerate(_batches(x, y, batch)):
            made = some if adv is None else adv[first * batch :][:batch]
            clean = counted(some)
            _check_output(clean, labels, len(some))
            output = clean if adv is None else counted(made)
            wrong, success = (misclassified(logits, labels) for logits in (clean, output))
            distance = some.new_zeros(len(some)) if threat is None else threat.size(made - some)
            parts.append((made, success, _predicted(output), ~wrong, _predicted(clean), distance))
    return _outcome(parts, {counted}, time.monotonic() - start, set())


def _batches(
    x: torch.Tensor, y: torch.Tensor | None, batch: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    check_batch(batch)
    for first in range(0, len(x), batch):
        some = slice(first, first + batch)
        yield x[some], None if y is None else y[some].to(x.device)


def _craft(
    function: Attack,
    threat: Threat,
    settings: dict[str, Any],
    x: torch.Tensor,
    y: torch.Tensor | None,
    net: Count,
    rows: torch.Tensor,
) -> torch.Tensor:
    """Adversarial images of these rows, made on one of the models."""
    return function(net, x[rows], _of(y, rows), threat, **settings)


def _checked(x: torch.Tensor, adv: torch.Tensor, threat: Threat, eight_bit: bool) -> torch.Tensor:
    """The images (B 3 H W), rounded if wanted; before and after they must keep the budget."""
    check_adversarial(x, adv, threat)
    if eight_bit:
        adv = whole_levels(x, adv, threat)
        check_adversarial(x, adv, threat, eight_bit)
    return adv


def _outcome(parts: list[_Part], counts: set[Count], seconds: float, names: set[str]) -> Outcome:
    if any(count.nan_seen for count in counts):
        raise InputError("the model must return numbers, got NaN on attacked images; check its precision")
    adv, success, predicted, clean_correct, clean_predicted, distance, *aims = (
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
        seconds=seconds,
        warnings=tuple(sorted(names)),
        targets=aims[0] if aims else None,
        labels=aims[1] if aims else None,
    )


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
    if y is None or y.ndim != 1:
        return
    if output.ndim != 2 or output.shape[1] < 2:
        raise InputError(f"the model must return logits ({count}, K) with K >= 2, got {tuple(output.shape)}")
    check_labels(y, count, output.shape[1])


def _given(y: torch.Tensor | None) -> torch.Tensor:
    assert y is not None
    return y


def _of(y: torch.Tensor | None, rows: torch.Tensor) -> torch.Tensor | None:
    return y if y is None else y[rows]


def _predicted(output: torch.Tensor) -> torch.Tensor:
    """The classes of logits (B K) or (B K H W); -1 (B,) where the model returns no classes."""
    if output.ndim in (2, 4):
        return output.argmax(1)
    return torch.full((len(output),), -1, device=output.device)
