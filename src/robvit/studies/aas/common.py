"""What the studies of attention scaling share: a model, images, comparisons and their claims.

The paper's figures are most likely those of the scaled model itself, another classifier. Ours are of the
model as it is; what the scaled model says stands beside them as a diagnostic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from robvit.attacks import run
from robvit.attacks.aas import FACTORS
from robvit.attention import attention_layers
from robvit.attention.comparison import Comparison, ScalingMethod, compare_scaling
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.progress import progress
from robvit.record import Curve, Record, Table, Trial
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext
from robvit.studies.judging import per_cent, point
from robvit.studies.published import read_published
from robvit.threat import Threat
from robvit.verdict import Claim, Verdict

PUBLISHED = read_published("aas")
PAPER = PUBLISHED.paper
MODEL, IMAGES = "robvit-mini-robust", 64
LEARN = 64  # images on which one factor for all blocks is chosen
ARMS = ("plain", "scaled", "both", "control")


@dataclass(frozen=True)
class ScalingBench:
    """A model, images to judge on and others to choose a factor on, and the threat."""

    context: StudyContext
    model: Model
    images: ImageDataset
    learn: ImageDataset
    threat: Threat
    batch: int

    @property
    def depth(self) -> int:
        return len(attention_layers(self.model))

    def compare(
        self, base: str, steps: int, method: ScalingMethod, label: str, *, threat: Threat | None = None
    ) -> Comparison:
        """The plain, scaled and control attacks; `steps` 0 for an attack that has none."""
        with progress(label, total=len(self.images)) as advance:
            return compare_scaling(
                self.model,
                self.images,
                threat or self.threat,
                base=base,
                settings={"steps": steps} if steps else {},
                method=method,
                batch=self.batch,
                seed=self.context.seed,
                progress=advance,
            )

    def record(self, compared: Mapping[str, Comparison], gains: Mapping[str, float | None]) -> Record:
        """A record with every trial, told apart by what was compared, and a claim for each of `gains`.

        `gains` has the paper's gain in points for those comparisons that test its effect, None where it
        gives none.
        """
        trials: list[Trial] = []
        for name, comparison in compared.items():
            trials += [replace(trial, scenario=name) for trial in comparison.trials]
        claims = [compared[name].claim(name, gain) for name, gain in gains.items()]
        record = self.context.record(self.model, self.images, trials=trials, claims=claims)
        title = "Does scaling break more than the control? Pair by pair"
        record.tables = [claims_table(claims, title)]
        record.notes = [tally(claims)]
        return record

    def best_factor(self, steps: int = 20) -> float:
        """The factor other than 1 that leaves the least accuracy, on images that are not judged."""
        x, y = self.learn.tensors()
        accuracy = {}
        with progress("choosing one factor", total=len(FACTORS) - 1) as advance:
            for factor in (f for f in FACTORS if f != 1):
                settings: dict[str, Any] = {"factors": factor, "steps": steps, "seed": self.context.seed}
                accuracy[factor] = run(
                    "aas_uniform", self.model, x, y, self.threat, **settings
                ).robust_accuracy
                advance()
        return min(accuracy, key=lambda f: accuracy[f])

    def accuracy_at(self, factor: float, base: str, steps: int) -> float:
        """Accuracy left by an attack crafted at one factor, in per cent, judged unscaled."""
        settings: dict[str, Any] = {"base": base, "factors": factor, "seed": self.context.seed}
        settings |= {"steps": steps} if steps else {}
        success = [
            run("aas_uniform", self.model, x, y, self.threat, **settings).success
            for x, y in self.images.batches(self.batch)
        ]
        return 100 * int((~torch.cat(success)).sum()) / len(self.images)

    def note(self) -> str:
        return (
            f"Judged on the unscaled model, {len(self.images)} images, {self.threat}; the control is "
            "plain with as many passes as plain and scaled together. The paper: ViT-B/16, CIFAR-10."
        )


def bench(
    context: StudyContext, eps: float = 8 / 255, batch: int = 64, model: str | None = None
) -> ScalingBench:
    """The given model and images, or the bundled robust ones."""
    context = replace(context, model=model or context.model)
    network, learn, judged = context.prepare(context.load(MODEL), "sample", learn=LEARN, judged=IMAGES)
    return ScalingBench(context, network, judged, learn, Threat("linf", eps), batch)


def tally(claims: list[Claim]) -> str:
    """In how many comparisons the paper's effect is there."""
    seen = sum(claim.verdict is Verdict.SEEN for claim in claims)
    where = f"{seen} of {len(claims)} comparisons"
    return f"Against a control of the same cost the paper's effect is seen in {where}."


def arms(comparison: Comparison) -> dict[str, list[bool]]:
    """Which images are still classified rightly under what, by name."""
    trials = (comparison.plain.correct, comparison.scaled.correct)
    return dict(zip(ARMS, (*trials, comparison.both, comparison.control.correct), strict=True))


def shares(comparison: Comparison) -> list[float]:
    """Accuracy left by the plain attack, the scaled one, both and the control, in per cent."""
    return [100 * sum(correct) / len(correct) for correct in arms(comparison).values()]


def scaled_model(comparison: Comparison) -> list[float | None]:
    """The scaled model's own accuracy, clean and on images crafted on it, in per cent of all images."""
    if comparison.own is None:
        return [None, None]
    return [share * per_cent(comparison.clean) for share in comparison.own]


def over_axis(title: str, axis: str, compared: Mapping[int, Comparison]) -> tuple[Table, Curve]:
    """Accuracy left over an axis, as a table and as lines with their intervals."""
    lines: dict[str, list[list[float]]] = {name: [] for name in ARMS}
    for at, comparison in compared.items():
        for name, correct in arms(comparison).items():
            lines[name].append(point(at, correct))
    rows: list[list[Any]] = [[f"{at:g}", *shares(one)] for at, one in compared.items()]
    table = Table(title, [axis, *(f"{name} %" for name in ARMS)], rows)
    return table, Curve(title, axis, "accuracy left, %", lines)
