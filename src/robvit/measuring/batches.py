"""One batch under one attack, plain or at given scales, remembered in a folder where there is one.

Comparisons of one study share arms, such as the plain attack, and a killed study resumes with what it has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from robvit.attacks import Outcome, run
from robvit.attacks.scales import Scaled
from robvit.evaluation.trials import trial_of
from robvit.files import parse_json, read_text, write_json
from robvit.record import Trial
from robvit.resuming import key_of, versions
from robvit.tensor_files import tensors_sha256
from robvit.threat import Threat

KEPT = ("correct", "predicted", "distance", "forward", "backward", "seconds", "warnings")


class AtScales(NamedTuple):
    """A batch attacked at some scales; `own` counts its images and those that the scaled model gets right,
    untouched and attacked."""

    trial: Trial
    own: tuple[int, int, int]


@dataclass(frozen=True)
class BatchRunner:
    """A model under attacks that are all of one kind, `base`, within one budget."""

    model: nn.Module
    threat: Threat
    base: str
    settings: dict[str, Any]
    seed: int
    memory: Path | None = None

    def plain(self, x: torch.Tensor, y: torch.Tensor) -> Trial:
        """The base attack itself."""
        return self.run(self.base, x, y, self.settings, self.seed)

    def run(self, name: str, x: torch.Tensor, y: torch.Tensor, settings: dict[str, Any], seed: int) -> Trial:
        """Any attack on a batch (B 3 H W) with its labels (B,)."""
        return self._remembered(name, x, y, {"seed": seed, **settings}, None).trial

    def at(self, x: torch.Tensor, y: torch.Tensor, scales: Sequence[float]) -> AtScales:
        """The base attack crafted at given scales."""
        given = {"seed": self.seed, "base": self.base, **self.settings, "scales": list(scales)}
        return self._remembered("aas", x, y, given, scales)

    def _remembered(
        self,
        name: str,
        x: torch.Tensor,
        y: torch.Tensor,
        settings: dict[str, Any],
        scales: Sequence[float] | None,
    ) -> AtScales:
        path = None if self.memory is None else self.memory / f"{self._key(name, x, y, settings)}.json"
        if path is not None and path.exists():
            what = "what became of a batch"
            kept = parse_json(read_text(path, what), path, what)
            trial = Trial(self.base, self.threat.budget, self.settings, **{k: kept[k] for k in KEPT})
            count, correct, adv_correct = kept["own"]
            return AtScales(trial, (count, correct, adv_correct))
        outcome = run(name, self.model, x, y, self.threat, batch=len(x), **settings)
        trial = trial_of(outcome, self.base, self.threat, self.settings)
        found = AtScales(trial, self._own(x, y, outcome, scales))
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {k: getattr(trial, k) for k in KEPT} | {"own": list(found.own)})
        return found

    def _own(
        self, x: torch.Tensor, y: torch.Tensor, outcome: Outcome, scales: Sequence[float] | None
    ) -> tuple[int, int, int]:
        if scales is None:
            return len(x), 0, 0
        with torch.no_grad():
            preds = [Scaled(self.model, scales)(images).argmax(1) for images in (x, outcome.adv)]
        correct, attacked = (int((pred == y).sum()) for pred in preds)
        return len(x), correct, attacked

    def _key(self, name: str, x: torch.Tensor, y: torch.Tensor, settings: dict[str, Any]) -> str:
        facts = {
            "attack": name,
            "settings": settings,
            "threat": str(self.threat),
            "model": tensors_sha256(self.model.state_dict()),
            "kind": repr(type(self.model)),
            "images": hashlib.sha256(x.cpu().numpy().tobytes() + y.cpu().numpy().tobytes()).hexdigest(),
            "versions": versions(),
        }
        return key_of(facts)
