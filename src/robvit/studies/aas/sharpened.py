"""When could attention scaling work? Models whose attention is sharpened until their softmax underflows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from robvit.attacks.precision import DTYPES
from robvit.attention import attention_layers, keep_scales, kept_scales
from robvit.attention.rounding import NarrowAttention
from robvit.errors import InputError
from robvit.measuring.comparison import Comparison, compare_scaling
from robvit.measuring.saturation import saturation
from robvit.progress import progress
from robvit.record import Curve, Record, Table, Trial
from robvit.registry import unknown
from robvit.studies.aas.common import (
    EFFORT,
    PAPER,
    ScalingBench,
    ScalingEffort,
    arm_columns,
    bench,
    searches_table,
    shares,
)
from robvit.studies.aas.controls import RANDOM
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import attack_title, point
from robvit.verdict import Claim, claim_of, seen_together

SHARPNESS = (1.0, 3.0, 10.0, 20.0, 50.0, 100.0, 150.0)
WATCHED = 32  # images on which underflow is counted
UNDONE = "sharpening undone"
BEGINS = 0.01  # of the rows of a softmax one-hot: there underflow begins


@dataclass(frozen=True)
class Sharpened:
    """One model of the sweep: the share of one-hot rows in its worst block, and its comparison."""

    sharpness: float
    one_hot: float
    comparison: Comparison

    @property
    def worst(self) -> list[bool]:
        """Which images stay correct under everything that was tried on this model."""
        arms = [trial.correct for trial in self.comparison.trials]
        return [all(each) for each in zip(*arms, strict=True)]

    def lost(self) -> Claim:
        """That all other scales together break images which plain PGD misses with the passes of AAS alone.

        They are several attacks and cost more, so this tells from where on plain PGD loses images, and `won`
        whether AAS is what wins them back.
        """
        found = self.comparison
        others = [trial.correct for draws in found.others.values() for trial in draws]
        ours = [not all(each) for each in zip(found.both, *others, strict=True)]
        text = f"x{self.sharpness:g}: plain PGD loses images that other scales, all together, break"
        return claim_of(text, ours, [not correct for correct in found.control.correct])

    def won(self) -> Claim:
        """That AAS breaks what plain PGD does not, even at equal cost."""
        return self.comparison.claim(f"x{self.sharpness:g}: AAS wins images back, at equal cost")

    def searched(self) -> Claim:
        """That the search matters: AAS breaks more than scales drawn at random."""
        return self.comparison.claim(f"x{self.sharpness:g}: AAS, over {RANDOM}", over=RANDOM)


@study(
    "aas-sharpened",
    paper=PAPER,
    title="When scaling could work: attention sharpened until its softmax underflows",
    effort=replace(EFFORT, steps=20),
)
def sweep(
    context: StudyContext,
    effort: ScalingEffort,
    *,
    sharpness: Sequence[float] = SHARPNESS,
    precisions: Sequence[str] = tuple(DTYPES),
) -> Record:
    """Query-key products times 1 to 150 in three number formats; every model is judged by itself."""
    at = bench(context, effort)
    if kept_scales(at.model) is not None:
        raise InputError(f"{at.model.name} has scales of its own; this study sharpens a model without")
    for name in precisions:
        if name not in DTYPES:
            raise unknown("precision", name, list(DTYPES))
    record = context.record(at.model, at.images)
    for precision in precisions:
        found = [_sharpened(at, factor, precision) for factor in sharpness]
        _add(record, found, precision, attack_title("pgd", {"steps": effort.steps}), at.note())
    return record


def _sharpened(at: ScalingBench, sharpness: float, precision: str) -> Sharpened:
    """One model: sharpened for good, its softmax in a precision, attacked and judged by itself."""
    model: nn.Module = copy.deepcopy(at.model)
    depth = len(attention_layers(model))
    keep_scales(model, [sharpness] * depth)
    one_hot = max(layer.one_hot[precision] for layer in saturation(model, _few(at)))
    if precision != "fp32":
        model = NarrowAttention(model, DTYPES[precision]).eval()
    with progress(f"x{sharpness:g}, {precision}", total=len(at.images)) as advance:
        comparison = compare_scaling(
            model,
            at.images,
            at.threat,
            settings={"steps": at.effort.steps},
            method=at.effort.method(),
            train=at.learn,
            others={UNDONE: [[1 / sharpness] * depth], **at.unsearched_of(model).controls()},
            batch=at.effort.batch,
            seed=at.context.seed,
            memory=at.memory,
            progress=advance,
        )
    return Sharpened(sharpness, one_hot, comparison)


def _few(at: ScalingBench) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(at.learn.take(range(min(WATCHED, len(at.learn)))).batches(at.effort.batch))


def _add(record: Record, found: list[Sharpened], precision: str, attack: str, note: str) -> None:
    """One precision's table, curve and claims."""
    rows: list[list[Any]] = []
    lines: dict[str, list[list[float]]] = {}
    for one in found:
        rows.append([f"{one.sharpness:g}", 100 * one.one_hot, *shares(one.comparison)])
        arms: Mapping[str, Sequence[bool]] = {
            "clean": one.comparison.clean.correct,
            "plain": one.comparison.plain.correct,
            "plain and AAS": one.comparison.both,
            "control": one.comparison.control.correct,
            "everything": one.worst,
        }
        for name, correct in arms.items():
            lines.setdefault(name, []).append(point(one.sharpness, correct))
        share = 100 * one.one_hot
        lines.setdefault("one-hot rows, worst block", []).append([one.sharpness, share, share, share])
        record.trials += _trials(one, precision)
    columns = ["sharpness", "one-hot rows, worst block, %", *arm_columns(found[0].comparison)]
    title = f"Sharpened attention, {precision}, {attack}"
    record.tables.append(Table(title, columns, rows, note))
    record.curves.append(Curve(title, "query-key products times", "%", lines))
    claims = [claim for one in found for claim in (one.lost(), one.won(), one.searched())]
    claims = [replace(claim, text=f"{precision}, {claim.text}") for claim in claims]
    record.claims += claims
    record.tables.append(claims_table(claims, f"{precision}: what plain PGD loses, and what AAS wins back"))
    record.tables += searches_table(
        {f"x{one.sharpness:g}": one.comparison for one in found}, f", {precision}"
    )
    record.notes.append(f"{precision}: {_where(found)}")


def _trials(one: Sharpened, precision: str) -> list[Trial]:
    name = f"{precision}, x{one.sharpness:g}"
    return [replace(trial, scenario=name, control=True) for trial in one.comparison.trials]


def _where(found: list[Sharpened]) -> str:
    """From which sharpness on each part of the claim holds."""
    seen = seen_together([one.lost() for one in found] + [one.won() for one in found])
    marks = {
        "underflow begins": [one.one_hot > BEGINS for one in found],
        "plain PGD loses images": seen[: len(found)],
        "AAS wins images back": seen[len(found) :],
    }
    parts = []
    for text, holds in marks.items():
        first = next((one.sharpness for one, held in zip(found, holds, strict=True) if held), None)
        parts.append(f"{text} {'nowhere' if first is None else f'from x{first:g}'}")
    tried = f"up to x{found[-1].sharpness:g} were tried, with Holm's correction over these claims"
    return f"{', '.join(parts)}; {tried}."
