"""Search in low precision, where it is fast; believe only what full precision confirms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from robvit.attacks.core import Attack, Model, frozen, misclassified
from robvit.attacks.run import AttackWarning, Outcome, run
from robvit.errors import InputError
from robvit.threat import Threat

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class PrecisionDisagreement(AttackWarning):
    """Low precision claimed successes that full precision did not confirm; those were attacked again."""


class Autocast:
    """A model under autocast: pixels to logits in full precision, from layers in low precision."""

    def __init__(self, model: Model, precision: str) -> None:
        if precision not in PRECISIONS:
            raise InputError(f"precision must be fp32, {' or '.join(PRECISIONS)}, got {precision!r}")
        self.__wrapped__ = model
        self.dtype = PRECISIONS[precision]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, self.dtype):
            return self.__wrapped__(x).float()


def run_in(
    precision: str,
    attack: str | Attack,
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor,
    threat: Threat,
    **settings: Any,
) -> Outcome:
    """`run` with a search in "bf16", "fp16" or "fp32"; every success holds in full precision.

    A success that only low precision sees is none: that image is attacked again in full precision.
    """
    if precision == "fp32":
        return run(attack, model, x, y, threat, **settings)
    found = run(attack, Autocast(model, precision), x, y, threat, **settings)
    judge = settings.get("victim") or model
    with torch.no_grad(), frozen(judge):
        clean, broken = (
            torch.cat(
                [misclassified(judge(a), b) for a, b in zip(seen.split(128), y.split(128), strict=True)]
            )
            for seen in (x, found.adv)
        )
    again = (found.success & ~broken).nonzero()[:, 0]
    found = replace(found, success=broken, clean=~clean, forward=found.forward + 2 * len(x))
    if not len(again):
        return found
    repeat = run(attack, model, x[again], y[again], threat, **settings)
    adv, success, distance = found.adv.clone(), found.success.clone(), found.distance.clone()
    adv[again], success[again], distance[again] = repeat.adv, repeat.success, repeat.distance
    names = {*found.warnings, *repeat.warnings, PrecisionDisagreement.__name__}
    return Outcome(
        adv,
        success,
        found.clean,
        distance,
        found.forward + repeat.forward,
        found.backward + repeat.backward,
        tuple(sorted(names)),
    )
