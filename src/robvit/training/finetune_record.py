"""The record of a label-free fine-tuning: what was tuned, how, and what held-out features say."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.lora import LoRA
from robvit.record import Curve, Finding, Record
from robvit.training.features import Features
from robvit.training.fit import Fit
from robvit.training.validation import Scores

NOTE = (
    "Cosines of held-out images' features with the original's clean ones, by the attack that the tuning uses "
    "and by a longer one. Judge accuracy by AutoAttack: these attacks are too weak for a verdict."
)
HIDDEN = (
    "Two windows of tokens were hidden from the tuned network, here too, and none from the original: the "
    "untouched network's clean cosine is what hiding alone costs."
)
WITH_LABELS = (
    "Accuracy on held-out images, by an attack of one step and by a longer one. AutoAttack decides what is "
    "published: these attacks are too weak for a verdict."
)


def make_record(
    model: Model,
    tuned: Model,
    factors: LoRA | None,
    fit: Fit,
    seen: dict[str, Scores],
    settings: dict[str, Any],
    seconds: float,
) -> Record:
    """All that is known of a tuning; `seen` holds the original's and the tuned model's scores."""
    validation, state = fit.splits.validation, fit.state
    names = {
        "clean": "clean",
        "one_step": f"attack of {fit.loss.short_attack(fit.recipe.inner)[0]} steps",
        "robust": f"attack of {fit.recipe.judge_steps} steps",
    }
    measure = fit.loss.measure
    means = {
        f"{measure}, {who}, {names[key]}": asdict(one)[key] for who, one in seen.items() for key in names
    }
    added = int(fit.loss.added) if isinstance(fit.loss, Features) else 0
    steps = state.history["step"]
    lines = {text: _points(steps, state.history[key]) for key, text in names.items()}
    if fit.loss.needs_labels:
        title = "Held-out images", "step", measure
        notes = [WITH_LABELS, "Labels were used."]
    else:
        title = "Held-out features", "step", "cosine with the original's clean features"
        notes = [NOTE, "No labels were used."]
        if isinstance(fit.loss, Features) and fit.loss.hiding is not None:
            notes.append(HIDDEN)
    notes += fit.compute.notes()
    notes.append("This is no secret: an attacker may have all of it.")
    loss = {"loss": _points(steps, state.history["loss"])}
    return Record(
        kind="robustify",
        model={
            "name": model.name,
            "fingerprint": model.fingerprint(),
            "identity": tuned.identity(),
            "tuned fingerprint": tuned.fingerprint(),
            "input": list(model.input_size),
            "result": "model" if factors is None else str(factors),
            "settings": settings,
            "processes": fit.accelerator.num_processes,
            "compute": fit.compute.rules(),
        },
        data=fit.splits.train.facts()
        | {"held out": len(validation), "held out digest": validation.digest()}
        | ({"extra": extra_facts(fit.splits.extra)} if fit.splits.extra else {}),
        trials=[],
        metrics=means
        | {"seconds": seconds, "best step": float(state.best_step), "inner steps added": float(added)},
        history=state.history,
        curves=[
            Curve(*title, lines, notes[0]),
            Curve("Tuning", "step", "loss", loss),
        ],
        findings=[_finding(fit, seen["tuned"])],
        notes=notes,
        machine=fit.compute.machine(),
    )


def extra_facts(extra: ImageDataset | None) -> dict[str, Any] | None:
    """What is told of the second set of images, if there is one."""
    if extra is None:
        return None
    return {"spec": extra.spec, "count": len(extra), "digest": extra.digest()}


def _finding(fit: Fit, tuned: Scores) -> Finding:
    """Whether short and long attacks part: red for the result, amber if they did on the way."""
    apart = f"{tuned.one_step:.3f} under the tuning's own attack, {tuned.robust:.3f} under a longer one"
    loss = fit.loss
    if last := loss.apart(tuned) if isinstance(loss, Features) else loss.doubt(tuned, fit.classes):
        return Finding("masked gradients", "red", last)
    if fit.state.doubts:
        return Finding("masked gradients", "amber", f"{apart}; on the way: {'; '.join(fit.state.doubts)}")
    return Finding("masked gradients", "green", f"{apart}: they stay together")


def _points(xs: list[float], ys: list[float]) -> list[list[float]]:
    return [[x, y] for x, y in zip(xs, ys, strict=True)]
