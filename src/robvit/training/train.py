"""Training by a recipe, from names to results: weights or adapters, and a record.

record = train("mini", data="sample", out="runs/mini", epochs=1)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit.attacks import judge
from robvit.attacks import run as attack_run
from robvit.data import ImageDataset
from robvit.evaluation.trials import clean_trial_of, joined, trial_of
from robvit.locks import kept_in
from robvit.processes import processes
from robvit.progress import Advance, Log, silent
from robvit.record import Curve, Finding, Record, Trial
from robvit.threat import Threat
from robvit.training import checkpoint, trackers
from robvit.training.fit import WEIGHTS, Fit
from robvit.training.job import Job, job_of, model_facts, prepare
from robvit.training.losses import Loss
from robvit.training.recipe import Recipe, changed, load_recipe
from robvit.training.tora import run_adapters
from robvit.training.validation import BATCH


def train(
    recipe: Recipe | str | Path,
    *,
    model: str | nn.Module | None = None,
    data: str | Path | ImageDataset | None = None,
    out: str | Path | None = None,
    epochs: float | None = None,
    settings: Mapping[str, Any] | None = None,
    extra: str | Path | ImageDataset | None = None,
    split: str = "train",
    resize: str | None = None,
    limit: int | None = None,
    arch: str | None = None,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
) -> Record:
    """Train a model by a recipe, then judge the best weights once more on held-out training images.

    The test set is never touched. Interrupted, the same call with the same `out` resumes to the same bits.

    recipe: a name (`robvit train recipes`), a YAML file, or a Recipe
    model: an alias, a timm name or a checkpoint's path; or a module, whose own weights are then trained;
        the recipe's own if left out
    data: a dataset's name, a folder, or an open ImageDataset; the recipe's own if left out
    out: the folder for weights or adapters, the run's state and record.json; without it only the record,
        and a module that was given, tell of the training
    epochs: the length in place of the recipe's
    settings: other values for keys of the recipe; a dot reaches inside: {"inner.eps": 4 / 255}
    extra: synthetic images for a share of each batch (the recipe's extra_share)
    split, limit: which part of `data`, and at most how many images
    resize: "squash" images to a square, or "crop" their middle; if left out as the model says, else squash
    arch: the network of a checkpoint that does not say what it is
    log: told what each validation saw, line by line
    progress: told each share of the work, one in all, with a note
    command: what the record says the training was started by
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe)
    wishes = dict(settings or {}) | ({} if epochs is None else {"epochs": epochs})
    job = job_of(
        changed(chosen, wishes), model, data, extra=extra, split=split, resize=resize, limit=limit, arch=arch
    )
    return run_job(job, out, log=log, progress=progress, command=command)


def run_job(
    job: Job,
    out: str | Path | None,
    *,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
) -> Record:
    """Do a job; one run at a time works in `out`."""
    main = processes().is_main_process
    log, progress = (log, progress) if main else (silent, silent)
    with kept_in(out) as folder:
        run = run_adapters if job.recipe.adapters is not None else _run_network
        record = run(job, folder, log=log, progress=progress)
        record.command = command
        if main:
            record.save(folder / "record.json")
    return record


def _run_network(job: Job, folder: Path, *, log: Log, progress: Advance) -> Record:
    model, splits = prepare(job)
    chosen = trackers.of(job.recipe)
    fit = Fit(
        model,
        splits,
        job.recipe,
        folder=folder,
        about=job.about() | {"names": list(splits.train.classes)},
        trackers=chosen,
        log=log,
        progress=progress,
    )
    trackers.start(fit.accelerator, job.recipe, chosen)
    fit.run()
    fit.accelerator.end_training()
    record = _record(job, fit, model)
    if fit.accelerator.is_main_process and fit.loss.state_dict():  # what the loss owns belongs to the result
        checkpoint.write_tensors(folder / "loss.safetensors", dict(fit.loss.state_dict()), {})
    return record


def _record(job: Job, fit: Fit, model: nn.Module) -> Record:
    state, validation = fit.state, fit.splits.validation
    epochs = state.history["epoch"]
    seen = {"clean": "clean", "one_step": "one step", "robust": f"{job.recipe.judge_steps} steps"}
    lines = {text: _points(epochs, state.history[key]) for key, text in seen.items()}
    best = state.history["step"].index(state.best_step)
    findings = [Finding("one-step collapse", "red", doubt) for doubt in state.doubts]
    if job.recipe.inner.eps and not findings:
        findings = [Finding("one-step collapse", "green", "one-step and multi-step accuracy stayed together")]
    return Record(
        kind="train",
        model={
            **model_facts(model),
            "recipe": job.recipe.model_dump(mode="json"),
            "weights": WEIGHTS,
            "processes": fit.accelerator.num_processes,
            "compute": fit.compute.rules(),
        },
        data=validation.facts()
        | {"part": "held out of the training part", "learned from": len(fit.splits.train)},
        trials=_trials(model, fit.loss, validation, job.recipe, fit.accelerator.device),
        metrics={"best epoch": epochs[best]}
        | {f"{fit.loss.measure}, {text}": state.history[key][best] for key, text in seen.items()},
        history=state.history,
        tables=fit.loss.tables(),
        curves=[
            Curve(
                "held-out images", "epoch", fit.loss.measure, lines, percent=fit.loss.measure == "accuracy"
            ),
            Curve("training", "epoch", "loss", {"loss": _points(epochs, state.history["loss"])}),
        ],
        findings=findings,
        notes=[
            "The checkpoint was chosen on held-out training images; the test set was not touched.",
            *fit.compute.notes(),
        ],
        machine=fit.compute.machine(),
    )


def _points(xs: list[float], ys: list[float]) -> list[list[float]]:
    return [[x, y] for x, y in zip(xs, ys, strict=True)]


def _trials(
    model: nn.Module, loss: Loss, images: ImageDataset, recipe: Recipe, device: torch.device
) -> list[Trial]:
    """Clean and PGD outcomes of every held-out image, for classifiers."""
    if not loss.needs_labels or type(loss).judge is not Loss.judge:
        return []
    threat = Threat(recipe.inner.norm, recipe.inner.eps)
    settings: dict[str, Any] = {"steps": recipe.judge_steps}
    trials: list[list[Trial]] = []
    for x, y in images.batches(BATCH):
        x, y = x.to(device), y.to(device)
        if threat.eps:
            outcome = attack_run("pgd", model, x, y, threat, batch=BATCH, **settings)
            trials.append([clean_trial_of(outcome), trial_of(outcome, "pgd", threat, settings)])
        else:
            trials.append([clean_trial_of(judge(model, x, y, batch=BATCH))])
    return [joined(parts) for parts in zip(*trials, strict=True)]
