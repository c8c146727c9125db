"""The curves of a record: those it holds, those its trials give, and the history of a training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from robvit.record import Curve, Record, Trial
from robvit.report.summary import share

MOST_POINTS = 300  # more than a line of some hundred pixels can show

Points = dict[float, list[bool]]


def budget_curves(record: Record) -> list[Curve]:
    """Accuracy over the budget, a chart for each norm, from trials that differ in nothing else."""
    charts: dict[str, dict[tuple[str, ...], Points]] = {}
    for trial in _attacks(record):
        if threat := trial.threat:
            eps = round(255 * threat.eps, 6) if threat.norm == "linf" else threat.eps
            bound = "" if threat.psnr is None else f"PSNR >= {threat.psnr:g} dB"
            line = (trial.name, trial.scenario, _as_text(trial.settings), bound)
            points = charts.setdefault(threat.norm, {}).setdefault(line, {})
            points[eps] = trial.correct
    curves = []
    for norm, lines in charts.items():
        swept = {line: points for line, points in lines.items() if len(points) > 1}
        for (_, scenario, *_rest), points in swept.items():
            if clean := record.clean(scenario):
                points.setdefault(0.0, clean.correct)
        unit = "eps in grey levels (1/255), linf" if norm == "linf" else f"eps, {norm}"
        curves += _chart(f"Accuracy by budget, {norm}", unit, swept)
    return curves


def step_curves(record: Record) -> list[Curve]:
    """Accuracy over the attack's steps, a chart for each threat, from trials that differ in nothing else."""
    charts: dict[str, dict[tuple[str, ...], Points]] = {}
    for trial in _attacks(record):
        steps = trial.settings.get("steps")
        if isinstance(steps, int | float):
            others = {k: v for k, v in trial.settings.items() if k != "steps"}
            line = (trial.name, trial.scenario, _as_text(others))
            charts.setdefault(trial.strength, {}).setdefault(line, {})[float(steps)] = trial.correct
    return [
        curve
        for threat, lines in charts.items()
        for curve in _chart(
            f"Accuracy by steps of the attack, {threat}",
            "steps",
            {line: points for line, points in lines.items() if len(points) > 1},
        )
    ]


def history_curves(record: Record) -> list[Curve]:
    """The history of a training: measures within [-1,1] share a chart, the others have their own."""
    charts: dict[str, dict[str, list[list[float]]]] = {}
    for name, values in record.history.items():
        finite = [v for v in values if math.isfinite(v)]
        if len(values) > 1 and finite:
            is_share = all(-1 <= v <= 1 for v in finite)
            charts.setdefault("shares and similarities" if is_share else name, {})[name] = thinned(values)
    longest = max((len(values) for values in record.history.values()), default=0)
    each = -(-longest // MOST_POINTS)
    note = f"A point is the mean of {each} steps, the band their range." if each > 1 else ""
    return [
        Curve("Training: " + (kind if len(lines) > 1 else next(iter(lines))), "step", "", lines, note)
        for kind, lines in charts.items()
    ]


def thinned(values: list[float]) -> list[list[float]]:
    """Points [step, value], or [middle step, mean, least, most] of stretches where there are too many."""
    each = -(-len(values) // MOST_POINTS)
    if each == 1:
        return [[i + 1, v] for i, v in enumerate(values)]
    points = []
    for start in range(0, len(values), each):
        part = [v for v in values[start : start + each] if math.isfinite(v)]
        if part:
            middle = start + (min(each, len(values) - start) + 1) / 2
            points.append([middle, sum(part) / len(part), min(part), max(part)])
    return points


def _attacks(record: Record) -> Iterable[Trial]:
    return (t for t in record.trials if t.kind == "attack")


def _as_text(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _chart(title: str, x: str, lines: dict[tuple[str, ...], Points]) -> list[Curve]:
    """One curve if there is any line; names say only what tells the lines apart."""
    if not lines:
        return []
    varied = [len(set(column)) > 1 for column in zip(*lines, strict=True)]
    drawn = {}
    for line, points in lines.items():
        name = ", ".join(part for part, varies in zip(line, varied, strict=True) if varies and part)
        drawn[name or line[0]] = [
            [at, s.share, s.low, s.high] for at, correct in sorted(points.items()) for s in [share(correct)]
        ]
    return [Curve(title, x, "accuracy", drawn, "Whiskers are 95 % intervals.", percent=True)]
