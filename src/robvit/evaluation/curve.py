"""Accuracy against the budget: for each image the smallest eps at which it falls, and so the whole curve.

Every image is attacked for the smallest perturbation, once. It falls at the size of what was found and at
every larger eps, so that the curve never rises. Images stay floats: rounding to grey levels would hide
budgets below one of them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robvit.attacks import ATTACKS
from robvit.attacks.core import check_settings
from robvit.backbones.trained_on import fitting
from robvit.budget import check_budget, parse_number
from robvit.drawing.charts import draw_charts
from robvit.drawing.images import save_png
from robvit.drawing.sheet import sheet
from robvit.errors import InputError
from robvit.evaluation.attack import passes_an_image, settled
from robvit.evaluation.attack_shards import AttackJob, Shards, run_job
from robvit.evaluation.claims import chance_notes
from robvit.evaluation.classifiers import Judged, aligned, check_fit, fitted, model_facts, open_classifier
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import Data, judged_images
from robvit.files import written_whole
from robvit.locks import kept_in
from robvit.processes import processes
from robvit.progress import Advance, Log, part_of, silent
from robvit.record import Curve, Record, Table, Trial
from robvit.statistics import interval
from robvit.texts import spreadsheet_cell
from robvit.threat import Threat

LINF = tuple(level / 255 for level in (0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16))
USUAL_ATTACK = {"l1": "fab"}
USUAL = {"linf": LINF, "l2": (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0), "l1": (1, 2, 4, 8, 12, 16, 24)}


def curve(
    model: Judged,
    data: Data,
    *,
    norm: str = "linf",
    eps: Sequence[float | str] | None = None,
    attacks: Sequence[str] | None = None,
    settings: dict[str, dict[str, Any]] | None = None,
    out: str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    batch: int = 32,
    seed: int = 0,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
) -> Record:
    """Accuracy under attack against eps, from the smallest eps at which each image falls.

    The record holds a trial for each eps, the largest first, whose `distance` is each fallen image's smallest
    eps.

    model: a model, any callable from images (B 3 H W) in [0,1] to logits (B K), or what names one.
    data: an image set, or what `open_data` opens.
    norm: of the perturbation.
    eps: the budgets of the curve in pixels, such as "8/255"; a usual list for the norm if left out.
    attacks: those that look for the smallest perturbation: pgd_min, fab, fab_t, in L2 also cw_l2; an image
        falls at the smallest that any of them finds; pgd_min if left out, in L1 fab.
    settings: those of single attacks by name, such as {"pgd_min": {"steps": 40}}.
    out: a folder for record.json, curve.png, smallest_eps.csv and the parts from which an interrupted run
        resumes.
    split: the part of the data; its judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many images, drawn by a fixed seed; all if left out, where the command takes 64.
    batch: images in one pass.
    seed: decides every random draw.
    log: takes in words how many images there are, where the limit leaves some out.
    progress: takes shares of the work, one in all.
    command: what a person typed, for the record.
    """
    budgets, names = _budgets(norm, eps), attacks or (USUAL_ATTACK.get(norm, "pgd_min"),)
    given = {name: _settings(name, norm, budgets[-1], (settings or {}).get(name, {}), seed) for name in names}
    judged = open_classifier(model)
    if judged.black_box:
        raise InputError(
            f"a curve needs gradients, {judged.name} is a black box; `robvit attack --attack square`"
        )
    images = judged_images(data, Subset(), split=split, limit=limit, log=log)
    images = aligned(judged, images.resized(judged.size or images.size, fitting(judged.net, resize)))
    check_fit(judged, images)
    record = Record("curve", model_facts(judged), images.facts(), [], command=command)
    record.protocol = {"attacks": given, "norm": norm, "eps": budgets, "batch": batch}
    share = part_of(progress, 1 / (len(images) * len(given)))
    with kept_in(out) as folder:
        found = []
        for name, own in given.items():
            threat = Threat(norm, math.inf)
            passes = passes_an_image(name, own, threat, judged, images).forward
            job = AttackJob(
                name,
                threat,
                own,
                fitted(judged.net, images),
                judged.identity,
                images,
                batch=batch,
                # An image that falls is searched for again in every round.
                passes=passes * (1 + own.get("rounds", ATTACKS.info(name).defaults.get("rounds", 0))),
                rounded=False,
            )
            compute = settled(job, "fp32", folder / "compute.json")  # threads; sizes want full precision
            with compute.in_use():
                found.append(_falls(run_job(job, folder / "shards" / name, share)))
            record.machine = compute.machine()
        worst = min_of(found)
        _fill(record, norm, budgets, names, worst)
        if out is not None and processes().is_main_process:
            _write(record, worst, folder)
    return record


@dataclass(frozen=True)
class Falls:
    """For each image the smallest eps at which it falls, infinite if at none, and what is predicted there."""

    clean: Trial
    eps: list[float]
    predicted: list[int]
    forward: int
    backward: int
    seconds: float
    warnings: list[str]


def _falls(done: Shards) -> Falls:
    clean, trial = done.clean_trial(), done.trial()
    eps = [
        0.0 if not was else math.inf if correct else distance
        for was, correct, distance in zip(clean.correct, trial.correct, trial.distance, strict=True)
    ]
    return Falls(clean, eps, trial.predicted, trial.forward, trial.backward, trial.seconds, trial.warnings)


def min_of(found: Sequence[Falls]) -> Falls:
    """The nearest fall of each image, and the cost of all."""
    sizes = zip(*(falls.eps for falls in found), strict=True)
    nearest = [found[eps.index(min(eps))] for eps in sizes]
    return Falls(
        found[0].clean,
        [falls.eps[i] for i, falls in enumerate(nearest)],
        [falls.predicted[i] for i, falls in enumerate(nearest)],
        sum(falls.forward for falls in found),
        sum(falls.backward for falls in found),
        sum(falls.seconds for falls in found),
        sorted({name for falls in found for name in falls.warnings}),
    )


def _budgets(norm: str, eps: Sequence[float | str] | None) -> list[float]:
    """Rising budgets, each once."""
    chosen = sorted({parse_number(value) for value in (USUAL.get(norm, LINF) if eps is None else eps)})
    if not chosen:
        raise InputError("a curve needs at least one eps, got none; leave eps out for the usual ones")
    for value in chosen:
        check_budget(norm, value, usable=True)
    return chosen


def _settings(name: str, norm: str, largest: float, given: dict[str, Any], seed: int) -> dict[str, Any]:
    """The settings of one attack; refused are those that look for no smallest perturbation."""
    info = ATTACKS.info(name)
    if info.kind != "minimum" or norm not in info.norms:
        able = [e.name for e in ATTACKS if e.info.kind == "minimum" and norm in e.info.norms]
        raise InputError(
            f"a curve needs attacks for the smallest perturbation in {norm}: {', '.join(able)}; got {name}"
        )
    check_settings(name, given)
    own = {key: value for key, value in (("seed", seed), ("reach", largest)) if key in info.defaults}
    return own | given


def _fill(record: Record, norm: str, budgets: list[float], attacks: Sequence[str], falls: Falls) -> None:
    """The clean trial, one for each budget, a table and what is to be known about it."""
    trials = [_trial("+".join(attacks), norm, eps, falls) for eps in budgets]
    cost: dict[str, Any] = {"forward": falls.forward, "backward": falls.backward, "seconds": falls.seconds}
    trials[-1] = replace(trials[-1], **cost, warnings=falls.warnings)
    record.trials = [falls.clean, *reversed(trials)]  # a page leads with the first: the hardest
    rows = [[_shown(eps, norm), *_per_cent(trial)] for eps, trial in zip(budgets, trials, strict=True)]
    record.tables = [Table(f"Accuracy in per cent by eps, {norm}", ["eps", "accuracy", "low", "high"], rows)]
    fallen = sorted(eps for eps in falls.eps if 0 < eps < math.inf)
    if fallen:
        unit, name = (255, ", in grey levels (1/255)") if norm == "linf" else (1, "")
        record.metrics[f"median smallest eps of those that fall{name}"] = unit * fallen[len(fallen) // 2]
    record.notes = [
        f"{len(fallen)} images fall at some eps, {sum(map(math.isinf, falls.eps))} at none up to "
        f"{_shown(budgets[-1], norm)}, {falls.eps.count(0.0)} are misclassified without any attack.",
        "An image falls at the size of the smallest perturbation that was found, and at every larger eps: an "
        "upper bound of robust accuracy. Images are floats, not rounded to grey levels.",
        *chance_notes(record),
    ]


def _trial(name: str, norm: str, eps: float, falls: Falls) -> Trial:
    """What is left at one budget."""
    room = eps * (1 + 1e-6) + 1e-7  # what rounding of floats can do to a size
    fell = [at <= room for at in falls.eps]
    predicted = [
        after if down else before
        for after, before, down in zip(falls.predicted, falls.clean.predicted, fell, strict=True)
    ]
    distance = [at if down else 0.0 for at, down in zip(falls.eps, fell, strict=True)]
    return Trial(name, Threat(norm, eps).budget, {}, [not down for down in fell], predicted, distance)


def _per_cent(trial: Trial) -> list[float]:
    """Accuracy and its 95 % interval."""
    return [100 * share for share in (trial.accuracy, *interval(sum(trial.correct), len(trial.correct)))]


def _shown(eps: float, norm: str) -> str:
    return f"{255 * eps:g}/255" if norm == "linf" else f"{eps:g}"


def _write(record: Record, falls: Falls, folder: Path) -> None:
    """The record, the chart, and each image's smallest eps as CSV: empty where it never fell."""
    record.save(folder / "record.json")
    norm, name = record.protocol["norm"], record.model.get("name")
    axis, unit = ("eps in grey levels (1/255), linf", 255) if norm == "linf" else (f"eps, {norm}", 1)
    points = sorted([unit * (t.threat.eps if t.threat else 0.0), *_per_cent(t)] for t in record.trials)
    names = (record.trials[-1].attack, "95 % interval, low", "high")
    lines = {line: [[at, shares[i]] for at, *shares in points] for i, line in enumerate(names)}
    caption = f"{name}, {record.data['count']} images of {record.data.get('spec') or 'your own'}"
    drawn = draw_charts([Curve("", axis, "accuracy in per cent", lines)])
    save_png(sheet("Accuracy against eps", caption, [drawn]), folder / "curve.png")
    place = folder / "smallest_eps.csv"
    with written_whole(place) as aside, aside.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["image", "label", "smallest eps"])
        for image, label, eps in zip(record.data["names"], record.data["labels"], falls.eps, strict=True):
            writer.writerow([spreadsheet_cell(image), label, "" if math.isinf(eps) else repr(eps)])
