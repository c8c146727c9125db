"""What the studies of attention scaling share: a model, images, comparisons and their judgement.

The paper's figures are most likely those of the scaled model itself, another classifier. Ours are of the
model as it is; what the scaled model says stands beside them as a diagnostic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from robvit.attacks import run
from robvit.attacks.aas import FACTORS
from robvit.attention.comparison import Comparison, ScalingMethod, compare_scaling
from robvit.attention.hooks import attention_layers
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.evaluation.metrics import interval, mcnemar, paired_interval
from robvit.evaluation.record import Curve, Record, Table, Trial
from robvit.progress import progress
from robvit.studies.common import Request, study_record
from robvit.studies.rob.common import parts
from robvit.threat import Threat

PAPER = "Jain and Dutta, adversarial robustness of vision transformers, CVPR 2024"
MODEL, IMAGES = "robvit-mini-robust", 64
LEARN = 64  # images on which one factor for all blocks is chosen


@dataclass(frozen=True)
class Bench:
    """A model, images to judge on and others to choose a factor on, and the threat."""

    request: Request
    model: Model
    images: ImageDataset
    learn: ImageDataset
    threat: Threat
    batch: int

    @property
    def depth(self) -> int:
        return len(attention_layers(self.model))

    def compare(
        self, base: str, steps: int, way: ScalingMethod, label: str, *, threat: Threat | None = None
    ) -> Comparison:
        """The plain, scaled and control attacks; `steps` 0 for an attack that has none."""
        with progress(label, total=len(self.images)) as advance:
            return compare_scaling(
                self.model,
                self.images,
                threat or self.threat,
                base=base,
                batch=self.batch,
                way=way,
                settings={"steps": steps} if steps else {},
                seed=self.request.seed,
                report=advance,
            )

    def record(self, found: Mapping[str, Comparison]) -> Record:
        """A record with every trial, told apart by what was compared, and the judgement of all of them."""
        trials: list[Trial] = []
        for name, one in found.items():
            trials += [replace(trial, scenario=name) for trial in one.trials]
        record = study_record(self.request, self.model, self.images, trials=trials)
        record.tables = [judgement(found)]
        there = sum(row[-1] == "appears" for row in record.tables[0].rows)
        record.notes = [
            f"Against a control of the same cost the paper's effect appears in {there} of {len(found)} "
            "comparisons."
        ]
        return record

    def best_factor(self, steps: int = 20) -> float:
        """The factor other than 1 that leaves the least accuracy, on images that are not judged."""
        x, y = self.learn.arrays()
        left = {}
        with progress("choosing one factor", total=len(FACTORS) - 1) as advance:
            for factor in (f for f in FACTORS if f != 1):
                given: dict[str, Any] = {"factors": factor, "steps": steps, "seed": self.request.seed}
                left[factor] = run("aas_uniform", self.model, x, y, self.threat, **given).robust_accuracy
                advance()
        return min(left, key=lambda f: left[f])

    def left_at(self, factor: float, base: str, steps: int) -> float:
        """Accuracy left by an attack crafted at one factor, in per cent, judged unscaled."""
        given: dict[str, Any] = {"base": base, "factors": factor, "seed": self.request.seed}
        given |= {"steps": steps} if steps else {}
        broken = [
            run("aas_uniform", self.model, x, y, self.threat, **given).success
            for x, y in self.images.batches(self.batch)
        ]
        return percent((~torch.cat(broken)).tolist())

    def note(self) -> str:
        return (
            f"Judged on the unscaled model, {len(self.images)} images, {self.threat}; the control is "
            "plain with as many passes as plain and scaled together. The paper: ViT-B/16, CIFAR-10."
        )


def bench(request: Request, eps: float = 8 / 255, batch: int = 64, model: str | None = None) -> Bench:
    """The wanted model and images, or the bundled robust ones."""
    asked = replace(request, model=model or request.model)
    network = asked.load(MODEL)
    learn, judge = parts(asked, network.input_size[0], LEARN, request.images or IMAGES)
    return Bench(asked, network, judge, learn, Threat("linf", eps), batch)


def percent(correct: Sequence[bool]) -> float:
    return 100 * sum(correct) / len(correct)


def arms(one: Comparison) -> dict[str, list[bool]]:
    """Which images withstand what, by name."""
    return {
        "plain": one.plain.correct,
        "scaled": one.scaled.correct,
        "both": one.both,
        "control": one.control.correct,
    }


def shares(one: Comparison) -> list[float]:
    """Accuracy left by the plain attack, the scaled one, both and the control, in per cent."""
    return [percent(correct) for correct in arms(one).values()]


def judgement(found: Mapping[str, Comparison]) -> Table:
    """Every comparison against its control; the last column says whether the paper's effect appears."""
    rows: list[list[Any]] = []
    for name, one in found.items():
        more, less = one.broken_only()
        _, low, high = (100 * v for v in paired_interval(more, less, len(one.both)))
        says = one.verdict().split(":")[0].removeprefix("The paper's effect ")
        rows.append([name, more, less, f"{low:+.1f} to {high:+.1f}", f"{mcnemar(more, less):.2g}", says])
    columns = [
        "compared",
        "only scaled breaks",
        "only the control breaks",
        "95 % interval, points",
        "p",
        "the effect",
    ]
    return Table("Plain and scaled together against the control, pair by pair", columns, rows)


def over(title: str, axis: str, found: Mapping[int, Comparison]) -> tuple[Table, Curve]:
    """Accuracy left over an axis, as a table and as lines with their intervals."""
    lines: dict[str, list[list[float]]] = {}
    for at, one in found.items():
        for name, correct in arms(one).items():
            bounds = [100 * v for v in interval(sum(correct), len(correct))]
            lines.setdefault(name, []).append([at, percent(correct), *bounds])
    rows: list[list[Any]] = [[f"{at:g}", *shares(one)] for at, one in found.items()]
    table = Table(title, [axis, "plain %", "scaled %", "both %", "control %"], rows)
    return table, Curve(title, axis, "accuracy left, %", lines)
