"""A defence that works at test time meets attackers who know it: `challenge`.

Random transformations, purification and optimisation for every image often look robust because an attack
meets noise, no gradient, or the wrong one. So the doctor looks for what the defence hides, and attackers of
several kinds try: the figure to quote is what is left by all of them together (1802.00420, 2002.08347).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from robvit.attacks.precision import fused_layers, plain_attention
from robvit.attacks.run import judge, run
from robvit.backbones.trained_on import fitting
from robvit.challenging.attackers import ATTACKERS, Defence, Field, field_of
from robvit.diagnosis.doctor import doctor
from robvit.errors import InputError
from robvit.evaluation.classifiers import (
    Classifier,
    Judged,
    aligned,
    check_fit,
    fitted,
    model_facts,
    open_classifier,
)
from robvit.evaluation.doubts import doubts
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import Data, judged_images
from robvit.evaluation.trials import clean_trial_of, trial_of
from robvit.locks import kept_in
from robvit.processes import processes
from robvit.progress import Advance, part_of, silent
from robvit.record import Finding, Record, Table
from robvit.threat import NORMS, Threat

USUAL = Threat("linf", 8 / 255)
CHECKS = (
    "randomness",
    "softmax_output",
    "saturation",
    "gradients",
    "finite_differences",
    "black_box",
    "transfer",
)
EXAMINED = 32  # images that the doctor sees
PLAIN, DEFENDED = "without the defence", "defended"


def challenge(
    model: Judged,
    data: Data,
    defence: str | Defence,
    *,
    threat: Threat = USUAL,
    steps: int = 40,
    samples: int = 10,
    queries: int = 300,
    out: str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = 64,
    batch: int = 32,
    seed: int = 0,
    progress: Advance = silent,
    command: str = "",
) -> Record:
    """Attack a model behind a test-time defence with the defence in mind, and tell what is left.

    The record's findings are the doctor's, its trials those of each attacker, and its headline is their
    worst case image by image.

    model: the model without its defence: any callable to logits (B K), or what names one.
    data: labelled images, or what `open_data` opens.
    defence: a function, or `module:function`, from that model to a callable on images (B 3 H W) in [0,1].
        If it takes `differentiable`, it is called once more with True for a twin whose inner steps autograd
        can follow (create_graph=True), which the attacker unrolls.
    threat: the norm and the budget of the attackers.
    steps: gradient steps of an attack.
    samples: draws over which a randomised defence is averaged, when it is attacked and when it is judged.
    queries: those of who sees answers only, among the attackers and in the doctor's check.
    out: a folder for record.json; nothing is written without it.
    split: the part of the data; its judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many images.
    batch: images in one pass.
    seed: decides every random draw.
    progress: takes shares of the work, one in all.
    command: what a person typed, for the record.
    """
    if threat.norm not in NORMS:
        raise InputError(f"a defence is challenged in {', '.join(NORMS)}, got {threat.norm}")
    for what, count in (("steps", steps), ("samples", samples), ("queries", queries)):
        if count < 1:
            raise InputError(f"{what} must be 1 or more, got {count}")
    with torch.random.fork_rng():  # opening a model draws too
        plain = model if isinstance(model, Classifier) else open_classifier(model)
        images = judged_images(data, Subset(count=None), split=split, limit=limit)
        images = aligned(plain, images.resized(plain.size or images.size, fitting(plain.net, resize)))
        check_fit(plain, images)
        device = processes().device
        net = fitted(plain.net, images).to(device)
        x, y = (tensor.to(device) for tensor in images.tensors())
        torch.manual_seed(seed)
        # A defence that optimises is differentiated twice, and the fused kernel of the CPU cannot be.
        with kept_in(out) as folder, plain_attention(fused_layers(net)):
            field = field_of(net, defence, x[:batch], samples)
            facts = model_facts(plain) | {"defence": _name(defence), "randomised": field.randomised}
            record = Record("challenge", facts, images.facts(), [], command=command)
            seen = x[:EXAMINED], y[:EXAMINED]
            strength = {"threat": threat, "queries": queries, "batch": batch, "seed": seed}
            record.findings = _examined(field, seen, part_of(progress, 0.3, "doctor"), **strength)
            _attack(record, field, x, y, threat, batch, seed, steps, queries, part_of(progress, 0.7))
            record.metrics = _metrics(record)
            effort = {"steps": steps, "samples": samples, "queries": queries}
            record.protocol = {"threat": asdict(threat.budget), **effort, "seed": seed, "batch": batch}
            record.machine = {"device": device.type, "threads": torch.get_num_threads()}
            record.notes = [_meaning(record), *doubts(plain, images)]
            if out is not None:
                record.save(folder / "record.json")
    return record


def _name(defence: str | Defence) -> str:
    return defence if isinstance(defence, str) else getattr(defence, "__name__", type(defence).__name__)


def _examined(
    field: Field, seen: tuple[torch.Tensor, torch.Tensor], progress: Advance, **settings: Any
) -> list[Finding]:
    """What the doctor finds in the defended model, with the one behind it to transfer from."""
    return doctor(
        field.defended, seen, surrogate=field.plain, checks=CHECKS, progress=progress, **settings
    ).findings


def _attack(
    record: Record,
    field: Field,
    x: torch.Tensor,
    y: torch.Tensor,
    threat: Threat,
    batch: int,
    seed: int,
    steps: int,
    queries: int,
    progress: Advance,
) -> None:
    """Every attacker's trial, and a table of them in words; one that finds no gradient is told so."""
    rows: list[list[Any]] = []
    record.trials = [clean_trial_of(judge(field.plain, x, y, batch=batch), scenario=PLAIN, control=True)]
    for name, attacker in ATTACKERS.items():
        settings: dict[str, Any] = {"steps": queries if attacker.attack == "square" else steps, "seed": seed}
        if lacking := attacker.why_not(field):
            rows.append([name, attacker.about, None, lacking])
            continue
        try:
            outcome = run(
                attacker.attack,
                attacker.source(field),
                x,
                y,
                threat,
                victim=field.defended,
                samples=field.samples if field.randomised else 1,
                batch=batch,
                **settings,
            )
        except InputError as error:
            rows.append([name, attacker.about, None, str(error).split(";")[0]])
            continue
        finally:
            progress(1 / len(ATTACKERS), note=name)
        if len(record.trials) == 1:
            record.trials.append(clean_trial_of(outcome, scenario=DEFENDED))
        trial = trial_of(outcome, attacker.attack, threat, settings | {"attacker": name}, scenario=DEFENDED)
        record.trials.append(trial)
        rows.append([name, attacker.about, 100 * trial.accuracy, ""])
    if len(record.trials) == 1:
        raise InputError(f"no attacker could run; {rows[-1][0]}: {rows[-1][-1]}")
    columns = ["attacker", "what it does", "accuracy left, %", "why not"]
    record.tables = [Table("Attackers", columns, rows, "The worst case is taken image by image.")]


def _metrics(record: Record) -> dict[str, float]:
    trials = {trial.settings.get("attacker"): trial for trial in record.trials}
    found = {
        "clean accuracy, undefended": record.trials[0].accuracy,
        "clean accuracy, defended": record.trials[1].accuracy,
        "accuracy under all attackers": record.robust_accuracy(),
    }
    if "transfer" in trials:  # not from a model without gradients
        found["accuracy under transfer"] = trials["transfer"].accuracy
    worst = record.headline()
    return found | {f"accuracy under all attackers, {k}": getattr(worst, k) for k in ("low", "high")}


def _meaning(record: Record) -> str:
    red = [finding.title for finding in record.findings if finding.status == "red"]
    left, seen = (record.metrics.get(f"accuracy under {who}") for who in ("all attackers", "transfer"))
    without = "" if seen is None else f", those who attack the model without it {seen:.1%}"
    hides = f" The doctor: {'; '.join(red)} - does not hold." if red else ""
    return (
        f"Attackers who know the defence leave {left:.1%} of the images correct{without}.{hides} "
        "No attack proves robustness: only the first figure may be quoted, as an upper bound."
    )
