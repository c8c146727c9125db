"""The doctor: every check on one model, and a record of what each found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from robvit.attacks.core import Model, modules_of
from robvit.attacks.eot import eot
from robvit.data import ImageDataset
from robvit.diagnosis import model_checks as alone  # noqa: F401  each files its checks, in this order
from robvit.diagnosis.context import AVERAGED, CheckContext, Effort, name_of
from robvit.diagnosis.grading import CHECKS, GREEN, RED
from robvit.errors import DataError
from robvit.evaluation.metrics import interval
from robvit.evaluation.record import Curve, Finding, Record, Trial
from robvit.threat import Threat

Report = Callable[..., None]
Pictures = ImageDataset | tuple[torch.Tensor, torch.Tensor]


def doctor(
    model: Model, pictures: Pictures, *,
    threat: Threat | None = None, surrogate: Model | None = None, samples: int = 1,
    checks: Sequence[str] | None = None, effort: Effort | None = None, seed: int = 0, batch: int = 32,
    report: Report | None = None,
) -> Record:  # fmt: skip
    """Look for signs that a model only seems robust; a record whose `findings` are green, amber or red.

    `model` is any callable from pixels (B 3 H W) in [0,1] to logits (B K), `pictures` a labelled set or
    (x, y); a few dozen pictures suffice. `surrogate` is another classifier of the same pictures, from
    which attacks are transferred; the bundled ones serve where they fit. A randomised model may be judged
    by its mean over `samples` passes. `checks` names the ones to run, all if left out.
    """
    chosen = [CHECKS.entry(name) for name in checks] if checks else list(CHECKS)
    x, y, data = _opened(pictures)
    x = x.to(next((p.device for net in modules_of(model) for p in net.parameters()), x.device))
    exam = CheckContext(
        eot(model, samples) if samples > 1 else model, x, y, threat or Threat("linf", 8 / 255),
        effort=effort, surrogate=surrogate, seed=seed, batch=batch,
    )  # fmt: skip
    total = sum(entry.facts["cost"] for entry in chosen)
    findings = []
    for entry in chosen:
        verdict = entry.value(exam)
        bad = None if verdict.status == GREEN else verdict.pictures
        names = [] if bad is None else [data["names"][i] for i in bad.nonzero()[:, 0].tolist()]
        findings.append(Finding(entry.name, verdict.status, verdict.evidence, names))
        if report:
            report(entry.facts["cost"] / total, note=entry.name)
    return _record(exam, findings, data, {"name": name_of(model), "samples": samples})


def _opened(pictures: Pictures) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """The pictures (n 3 H W), their labels (n,), and what a record tells of them."""
    if isinstance(pictures, tuple):
        x, y = pictures
        names = [f"picture {i}" for i in range(len(x))]
        return x, y, {"spec": "tensors", "count": len(x), "names": names, "labels": y.tolist()}
    if pictures.kind != "labels":
        raise DataError(f"the doctor needs one label a picture, these pictures have {pictures.kind}")
    x, y = pictures.arrays()
    facts = {"digest": pictures.digest(), "count": len(x), "names": pictures.names, "labels": pictures.labels}
    return x, y, facts


def _record(exam: CheckContext, findings: list[Finding], data: dict[str, Any], model: dict[str, Any]) -> Record:
    predicted = exam.clean.argmax(1).tolist()
    clean = Trial("clean", "none", {}, exam.right.tolist(), predicted, [0.0] * len(predicted))
    shots = [shot for shot in exam.shots.values() if shot.threat == exam.threat]
    record = Record(
        kind="doctor", model=model, data=data, curves=_curves(exam), findings=findings,
        trials=[clean, *(shot.trial(exam.x) for shot in shots)],
    )  # fmt: skip
    record.figures = {
        "accuracy on clean pictures": sum(clean.right) / len(clean.right),
        "accuracy under every attack of the doctor": record.robust_accuracy(),
    }
    reds = [finding.check for finding in findings if finding.status == RED]
    if reds:
        record.notes.append(f"Robustness measured on this model is not to be believed: {', '.join(reds)}.")
    else:
        record.notes.append("No check speaks against the attacks that were used; that proves no robustness.")
    if exam.randomised:
        record.notes.append(f"The model is randomised; it was attacked and judged by its mean of {AVERAGED}.")
    return record


def _curves(exam: CheckContext) -> list[Curve]:
    """Accuracy over budgets and over steps, from what the checks have run."""

    def point(at: float, broken: torch.Tensor) -> list[float]:
        left = int((~broken).sum())
        return [at, left / len(broken), *interval(left, len(broken))]

    plain = [s for s in exam.shots.values() if set(s.settings) == {"steps"}]
    lines = {
        "budget": {s.threat.eps: s for s in plain if s.settings["steps"] == exam.effort.steps},
        "steps": {float(s.settings["steps"]): s for s in plain if s.threat == exam.threat},
    }
    axes = {"budget": f"eps ({exam.threat.norm}, pixels)", "steps": "steps"}
    return [
        Curve(f"Accuracy over {what}", axes[what], "accuracy",
              {"PGD": [point(at, line[at].broken) for at in sorted(line)]})
        for what, line in lines.items() if len(line) > 1
    ]  # fmt: skip
