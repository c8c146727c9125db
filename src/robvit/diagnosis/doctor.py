"""The doctor: every check on one model, and a record of what each found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from robvit.attacks.core import Model, modules_of
from robvit.attacks.eot import eot
from robvit.data import ImageDataset
from robvit.diagnosis import model_checks  # noqa: F401  registers its checks, which are run first

# isort: split
from robvit.diagnosis import attack_checks  # noqa: F401  registers the others
from robvit.diagnosis.context import AVERAGED, CheckContext, Effort, name_of
from robvit.diagnosis.grading import CHECKS, GREEN, RED
from robvit.errors import DataError
from robvit.evaluation.trials import clean_trial
from robvit.record import Curve, Finding, Record
from robvit.statistics import interval
from robvit.threat import Threat

Report = Callable[..., None]
Images = ImageDataset | tuple[torch.Tensor, torch.Tensor]


def doctor(
    model: Model,
    images: Images,
    *,
    threat: Threat | None = None,
    surrogate: Model | None = None,
    samples: int = 1,
    checks: Sequence[str] | None = None,
    effort: Effort | None = None,
    seed: int = 0,
    batch: int = 32,
    report: Report | None = None,
) -> Record:
    """Look for signs that a model only seems robust; a record whose `findings` are green, amber or red.

    `model` is any callable from pixels (B 3 H W) in [0,1] to logits (B K), `images` a labelled set or
    (x, y); a few dozen images suffice. `surrogate` is another classifier of the same images, from
    which attacks are transferred; the bundled ones serve where they fit. A randomised model may be judged
    by its mean over `samples` passes. `checks` names the ones to run, all if left out.
    """
    chosen = [CHECKS.entry(name) for name in checks] if checks else list(CHECKS)
    x, y, data = _opened(images)
    x = x.to(next((p.device for net in modules_of(model) for p in net.parameters()), x.device))
    context = CheckContext(
        eot(model, samples) if samples > 1 else model,
        x,
        y,
        threat or Threat("linf", 8 / 255),
        effort=effort,
        surrogate=surrogate,
        seed=seed,
        batch=batch,
    )
    total = sum(entry.info.cost for entry in chosen)
    findings = []
    for entry in chosen:
        verdict = entry.value(context)
        bad = None if verdict.status == GREEN else verdict.images
        names = [] if bad is None else [data["names"][i] for i in bad.nonzero()[:, 0].tolist()]
        findings.append(Finding(entry.name, verdict.status, verdict.evidence, names))
        if report:
            report(entry.info.cost / total, note=entry.name)
    return _record(context, findings, data, {"name": name_of(model), "samples": samples})


def _opened(images: Images) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """The images (n 3 H W), their labels (n,), and what a record tells of them."""
    if isinstance(images, tuple):
        x, y = images
        names = [f"image {i}" for i in range(len(x))]
        return x, y, {"spec": "tensors", "count": len(x), "names": names, "labels": y.tolist()}
    if images.kind != "labels":
        raise DataError(f"the doctor needs one label an image, these images have {images.kind}")
    x, y = images.arrays()
    return x, y, images.facts()


def _record(
    context: CheckContext, findings: list[Finding], data: dict[str, Any], model: dict[str, Any]
) -> Record:
    predicted = context.clean.argmax(1).tolist()
    clean = clean_trial(context.correct.tolist(), predicted)
    shots = [shot for shot in context.shots.values() if shot.threat == context.threat]
    record = Record(
        kind="doctor",
        model=model,
        data=data,
        curves=_curves(context),
        findings=findings,
        trials=[clean, *(shot.trial(context.x) for shot in shots)],
    )
    record.metrics = {
        "accuracy on clean images": sum(clean.correct) / len(clean.correct),
        "accuracy under every attack of the doctor": record.robust_accuracy(),
    }
    reds = [finding.check for finding in findings if finding.status == RED]
    if reds:
        record.notes.append(f"Robustness measured on this model is not to be believed: {', '.join(reds)}.")
    else:
        record.notes.append("No check speaks against the attacks that were used; that proves no robustness.")
    if context.randomised:
        record.notes.append(f"The model is randomised; it was attacked and judged by its mean of {AVERAGED}.")
    return record


def _curves(context: CheckContext) -> list[Curve]:
    """Accuracy over budgets and over steps, from what the checks have run."""

    def point(at: float, broken: torch.Tensor) -> list[float]:
        left = int((~broken).sum())
        return [at, left / len(broken), *interval(left, len(broken))]

    plain = [s for s in context.shots.values() if set(s.settings) == {"steps"}]
    lines = {
        "budget": {s.threat.eps: s for s in plain if s.settings["steps"] == context.effort.steps},
        "steps": {float(s.settings["steps"]): s for s in plain if s.threat == context.threat},
    }
    axes = {"budget": f"eps ({context.threat.norm}, pixels)", "steps": "steps"}
    return [
        Curve(
            f"Accuracy over {what}",
            axes[what],
            "accuracy",
            {"PGD": [point(at, line[at].broken) for at in sorted(line)]},
        )
        for what, line in lines.items()
        if len(line) > 1
    ]
