"""`robvit.doctor`: every check on one model, and a record of what each found."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from robvit.attacks import Outcome
from robvit.attacks.compute import Compute, settle
from robvit.attacks.core import modules_of
from robvit.attacks.cost import Passes, forecast_of
from robvit.attacks.eot import eot
from robvit.backbones.trained_on import fitting
from robvit.data import open_data
from robvit.diagnosis.checks import CHECKS
from robvit.diagnosis.context import EOT_PASSES, AttackStrength, CheckContext
from robvit.diagnosis.grading import Grade, Status, run_check
from robvit.evaluation.classifiers import (
    Classifier,
    Judged,
    aligned,
    check_fit,
    model_facts,
    open_classifier,
)
from robvit.evaluation.subset import Data, as_dataset
from robvit.locks import alone_in
from robvit.processes import processes
from robvit.progress import Advance, BatchProgress, Log, part_of, silent
from robvit.record import Curve, Finding, Record, Row
from robvit.statistics import interval
from robvit.threat import Threat

WEAKNESS, HARDLY_ANY = "robust_accuracy", 0.1  # a finding beside the checks, and the share that makes it one


def doctor(
    model: Judged,
    data: Data,
    *,
    threat: Threat = Threat("linf", 8 / 255),  # noqa: B008  immutable
    surrogate: Judged | None = None,
    out: str | Path | None = None,
    checks: Sequence[str] | None = None,
    steps: int = 20,
    restarts: int = 4,
    queries: int = 300,
    draws: int = 100,
    samples: int = 1,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = 64,
    seed: int = 0,
    batch: int = 32,
    precision: str = "auto",
    log: Log = silent,
    command: str = "",
    progress: Advance = silent,
) -> Record:
    """Look for signs that a model only seems robust; the record's `findings` are graded, worst first.

    Each finding has a status (red, amber, green or skipped), its evidence, the violating images and a
    remedy. A red one says not to trust robustness measured with such attacks; green ones prove nothing.

    model: a model, any callable from images (B 3 H W) in [0,1] to logits (B K), or what names one.
    data: labelled images: tensors (x, y), a dataset or loader, or what `open_data` opens; dozens suffice.
    threat: the norm and the budget of the attacks.
    surrogate: another classifier of the same images to transfer from; bundled ones that fit if left out.
    out: a folder for record.json; nothing is written without it.
    checks: names of the checks to run; all if left out.
    steps: gradient steps of an attack.
    restarts: random starts in the check of restarts.
    queries: queries of the black-box attack.
    draws: random points tried in the check of noise.
    samples: judge a randomised model by its mean over so many passes.
    split: the part of data that is opened here; its judging part if left out.
    resize: "squash" its images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: so many of its images.
    seed: of all random draws.
    batch: images in one pass.
    precision: of the attacks' search, whose successes fp32 confirms: "fp32", "bf16", "fp16", or "auto", which
        probes what is fastest on this device; gradients themselves are looked at in fp32.
    log: takes in words how it is computed and, at the usual strength, a forecast, before the work starts.
    command: the command line, for the record.
    progress: called as progress(share, note=check) after each check.
    """
    names = [CHECKS.entry(name).name for name in checks or CHECKS.names]
    strength = AttackStrength(steps, restarts, queries, draws)
    judged = _classifier(model)
    x, y, facts = _images(data, judged, split=split, resize=resize, limit=limit)
    x = x.to(next((p.device for net in modules_of(judged.net) for p in net.parameters()), x.device))
    with nullcontext() if out is None else alone_in(out):
        context = CheckContext(
            eot(judged.net, samples) if samples > 1 else judged.net,
            x,
            y,
            threat,
            strength=strength,
            surrogate=None if surrogate is None else _classifier(surrogate).net,
            seed=seed,
            batch=batch,
            black_box=judged.black_box,
        )
        total = sum(CHECKS.info(name).cost for name in names)
        # A randomised model's successes in one precision could not be confirmed in another.
        wanted = "fp32" if judged.black_box or context.randomised or samples > 1 else precision
        compute = settle(judged.net, x[:batch], wanted=wanted, passes=total * len(x))
        context.precision, findings = compute.precision, []
        with compute.in_use():
            if log is not silent:
                log(_forecast(judged, x, compute, total if strength == AttackStrength() else 0))
            for name in names:
                cost = CHECKS.info(name).cost
                shown = BatchProgress(part_of(progress, cost / total / len(x)), len(x), cost)
                context.each_pass = shown.each_pass
                findings.append(_finding(name, run_check(name, context), facts["names"]))
                shown.finish(name)
        record = _record(context, findings, model_facts(judged) | {"samples": samples}, facts)
        if checks is None and record.attacks() and (weak := weakness(record.headline())) is not None:
            record.findings.insert(sum(finding.status == Status.RED for finding in record.findings), weak)
        record.protocol = {"threat": asdict(threat.budget), **asdict(strength), "seed": seed, "batch": batch}
        record.protocol |= compute.rules()
        record.command, record.machine = command, compute.machine()
        record.notes += filter(None, [judged.doubt, *compute.notes()])
        if out is not None:
            record.save(Path(out) / "record.json")
    return record


def _forecast(judged: Classifier, x: torch.Tensor, compute: Compute, passes: int) -> str:
    """How it is computed; with the usual `passes` an image, of which half are backward, also how long."""
    words = f"{judged.name} on {len(x)} images: "
    if passes:
        both = Passes(passes // 2, passes // 2).times(len(x))
        words += f"{forecast_of(both, compute.searched(judged.net), x)}; "
    return f"{words}{compute}"


def _classifier(model: Judged) -> Classifier:
    """The model with what names it; one that was named, not given, is on the device of this process."""
    classifier = open_classifier(model)
    if isinstance(model, str | Path | Classifier):
        classifier.net.to(processes().device)
    return classifier


def _images(
    data: Data, classifier: Classifier, *, split: str | None, resize: str | None, limit: int | None
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """The images (n 3 H W), their labels (n,), and what a record tells of them."""
    if isinstance(data, tuple):
        x, y = data
        names = [f"image {i}" for i in range(len(x))]
        return x, y, {"spec": "tensors", "count": len(x), "names": names, "labels": y.tolist()}
    if isinstance(data, str | Path):
        fit = fitting(classifier.net, resize)
        images = open_data(data, split=split, size=classifier.size, resize=fit, limit=limit)
    else:
        images = as_dataset(data)
    images = aligned(classifier, images)
    check_fit(classifier, images)
    return *images.tensors(), images.facts()


def _finding(name: str, grade: Grade, images: list[str]) -> Finding:
    info, violations = CHECKS.info(name), grade.images
    is_doubtful = grade.status in (Status.RED, Status.AMBER)
    rows = [] if violations is None or not is_doubtful else violations.nonzero()[:, 0].tolist()
    return Finding(
        name,
        grade.status,
        grade.evidence,
        [images[row] for row in rows],
        title=info.title,
        remedy=info.remedy if is_doubtful else "",
    )


def _record(
    context: CheckContext, findings: list[Finding], model: dict[str, Any], data: dict[str, Any]
) -> Record:
    worst_first = list(Status)
    record = Record(
        kind="doctor",
        model=model,
        data=data,
        curves=_curves(context),
        findings=sorted(findings, key=lambda finding: worst_first.index(Status(finding.status))),
        trials=[context.clean_trial(), *(t for t in context.trials if t.threat == context.threat.budget)],
    )
    record.metrics = {"clean accuracy": record.trials[0].accuracy}
    if len(record.trials) > 1:
        record.metrics["accuracy under attack"] = record.robust_accuracy()
    record.notes = _notes(context, record)
    return record


def weakness(robust: Row, status: str = Status.AMBER) -> Finding | None:
    """That hardly an image is classified correctly under attack, so that nobody reads green as robust."""
    if robust.share >= HARDLY_ANY:
        return None
    return Finding(
        WEAKNESS,
        status,
        f"{robust.share:.1%} of the images are still classified correctly under {robust.threat} "
        f"(95 % interval {robust.low:.1%} to {robust.high:.1%})",
        title="The model is not robust at this budget",
        remedy="Harden it: `robvit robustify --method lora`, or train it adversarially (`robvit train`).",
    )


def _notes(context: CheckContext, record: Record) -> list[str]:
    """What the findings mean, first of all whether the model is robust at all."""
    notes = []
    if record.metrics.get("accuracy under attack") == 0:
        notes.append(
            f"The model is not robust: under the attacks at {context.threat} no image is classified "
            "correctly. The checks are about the attacks, not about the model."
        )
    if context.black_box:
        notes.append(
            "The model is a black box: only its answers can be had, so attacks by gradients could not be "
            "checked, and no white-box claim can be made."
        )
    reds, ambers = ([f for f in record.findings if f.status == s] for s in (Status.RED, Status.AMBER))
    if reds:
        failed = "; ".join(finding.title for finding in reds)
        notes.append(f"Do not trust robustness measured with such attacks. Failed: {failed}.")
    elif ambers:
        notes.append(
            f"{len(ambers)} of {len(record.findings)} checks found a weakness of the attacks; follow their "
            "remedies before quoting a number. That nothing is red is not evidence of robustness."
        )
    else:
        notes.append("No check found a problem with the attacks. This is not evidence of robustness.")
    if context.randomised:
        notes.append(
            f"The model is randomised; it was attacked and judged by its mean over {EOT_PASSES} passes."
        )
    return notes


def _curves(context: CheckContext) -> list[Curve]:
    """Accuracy over budgets and over steps, from what the checks have run."""

    def point(at: float, outcome: Outcome) -> list[float]:
        correct, total = int((~outcome.success).sum()), len(outcome.success)
        return [at, correct / total, *interval(correct, total)]

    known, steps, threat = context.pgd_outcomes.items(), context.strength.steps, context.threat
    is_linf = threat.norm == "linf"
    levels, unit = (255, "eps in grey levels (1/255), linf") if is_linf else (1, f"eps, {threat.norm}")
    by_eps = {round(eps * levels, 6): outcome for (count, eps), outcome in known if count == steps}
    by_steps = {float(count): outcome for (count, eps), outcome in known if eps == threat.eps}
    lines = {
        ("Accuracy over budget", unit): by_eps,
        ("Accuracy over steps", "steps"): by_steps,
    }
    return [
        Curve(
            title,
            axis,
            "accuracy",
            {"PGD": [point(at, outcomes[at]) for at in sorted(outcomes)]},
            percent=True,
        )
        for (title, axis), outcomes in lines.items()
        if len(outcomes) > 1
    ]
