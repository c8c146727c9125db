"""An attacker who knows of the adapters: attacks the joint output, each head, and the gates themselves.

A fusion that merely hides its gradient behind the gates falls to one of these; the worst per image
counts, and the joint output decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from robvit.attacks import Outcome, run
from robvit.attacks.losses import cross_entropy
from robvit.backbones.model import Model
from robvit.defenses.tora.modules import BOTH, Adapters
from robvit.errors import Unsupported
from robvit.threat import Threat

WEIGHT = 10.0  # of the mean gate beside the cross-entropy
FAR = 100.0  # a gate's column lies so far below the logits that it is never taken for a class
OWN_GOALS = 2 * len(BOTH)  # beside the joint output: each head, and the gates towards each adapter


class AttackTarget:
    """What is attacked in place of the joint output: a function of the model and images -> (B, any)."""

    def __init__(self, model: Model, output: Callable[[Model, torch.Tensor], torch.Tensor]) -> None:
        self.__wrapped__ = model  # by which attacks find the network they freeze
        self.output = output

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(self.__wrapped__, x)


def gates(model: Model, x: torch.Tensor) -> list[torch.Tensor]:
    """The accuracy adapter's gate in every block: (B T)."""
    return _with_gates(model, x)[1]


def _with_gates(model: Model, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    adapters = model.adapters
    if not isinstance(adapters, Adapters) or not adapters.fusions:
        raise Unsupported(f"{model.name} has no gates; load it with adapters that fuse: tora, adapterfusion")
    found: list[torch.Tensor] = []
    extra = model.placed()
    tokens = adapters.tokens(model.net, model.normalise(x), extra, found)
    return adapters.logits(model.net, tokens), found


def _head(name: str, model: Model, x: torch.Tensor) -> torch.Tensor:
    return model.heads_apart(x)[name]


def _logits_and_gate(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The joint logits, and as a last column the accuracy adapter's mean gate: (B K+1)."""
    logits, found = _with_gates(model, x)
    mean = torch.stack([gate.flatten(1).mean(1) for gate in found]).mean(0)
    return torch.cat((logits, mean[:, None] - FAR), dim=1)


def _push(sign: float, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The joint output is to be wrong, and the gates are to lean towards one adapter."""
    return cross_entropy(output[:, :-1], target) + sign * WEIGHT * (output[:, -1] + FAR)


@dataclass(frozen=True)
class GateAware:
    """What the whole attack did, judged by the joint output, and how many images each goal broke first."""

    outcome: Outcome
    success_by: dict[str, int]


def gate_aware(
    model: Model,
    x: torch.Tensor,
    y: torch.Tensor,
    threat: Threat,
    *,
    attack: str = "pgd",
    joint: bool = True,
    **settings: Any,
) -> GateAware:
    """Attack the joint output, each head and the gates both ways, each where the others failed.

    x (B 3 H W) in [0,1], y (B,); `attack` is one that takes a loss, with its settings. Without `joint` the
    joint output itself is left out, as where the same attack on it has failed before.
    """
    goals: dict[str, tuple[Any, dict[str, Any]]] = {"joint": (model, {})} if joint else {}
    for name in BOTH:
        goals[f"{name} head"] = (AttackTarget(model, partial(_head, name)), {"victim": model})
    both = AttackTarget(model, _logits_and_gate)
    for name, sign in zip(BOTH, (1.0, -1.0), strict=True):
        goals[f"gates to {name}"] = (both, {"victim": model, "loss": partial(_push, sign)})
    first, *rest = goals
    goal, own = goals[first]
    total = run(attack, goal, x, y, threat, **settings, **own)
    successes = {first: int(total.success.sum())}
    for name in rest:
        rows = (~total.success).nonzero()[:, 0]
        if not len(rows):
            break
        goal, own = goals[name]
        outcome = run(attack, goal, x[rows], y[rows], threat, **settings, **own)
        successes[name] = int(outcome.success.sum())
        total = _with_rows(total, outcome, rows)
    return GateAware(total, successes)


def _with_rows(total: Outcome, part: Outcome, rows: torch.Tensor) -> Outcome:
    """An outcome with what became of some of its images (R,) in a later attack, and the cost of both."""
    lists = {}
    for name in ("adv", "success", "predicted", "distance"):
        lists[name] = getattr(total, name).clone()
        lists[name][rows] = getattr(part, name)
    sums = {name: getattr(total, name) + getattr(part, name) for name in ("forward", "backward", "seconds")}
    names = tuple(sorted({*total.warnings, *part.warnings}))
    return replace(total, **lists, **sums, warnings=names)
