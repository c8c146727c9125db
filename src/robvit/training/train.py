"""A training from names to results: opens data and model, fits, and leaves weights and a record.

record = train(load_recipe("mini"), data="cifar10", out=Path("runs/mini"))
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robvit.attacks import run as attack_run
from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.data.dataset import draw
from robvit.errors import InputError
from robvit.evaluation.record import Curve, Finding, Record, Trial
from robvit.evaluation.trials import clean_trial, clean_trial_of, joined, trial_of
from robvit.loading import load
from robvit.processes import processes
from robvit.threat import Threat
from robvit.training import checkpoint
from robvit.training.fit import WEIGHTS, Fit, Splits
from robvit.training.losses import LOSSES, Loss
from robvit.training.recipe import Recipe
from robvit.training.validation import BATCH

TRACKERS = ("tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class Job:
    """What is trained on what: names as a person gives them."""

    recipe: Recipe
    model: str
    data: str
    extra: str | None = None
    split: str = "train"
    resize: str = "squash"
    limit: int | None = None
    arch: str | None = None


def job_of(recipe: Recipe, model: str | None, data: str | None, **more: Any) -> Job:
    """A job with what the recipe names where nothing else is given."""
    model, data = model or recipe.model, data or recipe.data
    for name, value in (("model", model), ("data", data)):
        if value is None:
            raise InputError(f"this recipe names no {name}; give --{name}")
    assert model is not None
    assert data is not None
    return Job(recipe, model, data, **more)


def prepare(job: Job) -> tuple[Model, Splits]:
    """The model as it starts, with a classifier for the images' classes, and what it learns from."""
    recipe = job.recipe
    torch.manual_seed(recipe.seed)
    model = load(
        job.model,
        pretrained=recipe.pretrained,
        img_size=recipe.img_size,
        patch_size=recipe.patch_size,
        normalise=recipe.normalise,
        drop_path=recipe.drop_path,
        arch=job.arch,
    )
    images = open_data(job.data, split=job.split, limit=job.limit)
    images = images.sized(model.input_size[0], job.resize)
    if recipe.validation >= len(images):
        raise InputError(f"validation takes {recipe.validation:g} of {len(images)} images: none are left")
    net: Any = model.net
    entry: Any = LOSSES[recipe.loss]
    if getattr(entry, "needs_classifier", True) and model.classes != len(images.classes):
        net.reset_classifier(len(images.classes))
    extra = (
        open_data(job.extra, split=job.split).sized(model.input_size[0], job.resize) if job.extra else None
    )
    if extra is not None and extra.classes != images.classes:
        raise InputError(f"the extra data's classes must be those of {job.data}, got {extra.classes[:5]}")
    train, validation = held_out(images, recipe.validation, recipe.seed)
    return model, Splits(train, validation, extra)


def held_out(images: ImageDataset, amount: float, seed: int) -> tuple[ImageDataset, ImageDataset]:
    """Training and validation images: a share below one, or a number, drawn class by class."""
    count = round(amount * len(images)) if amount < 1 else round(amount)
    places = list(range(len(images)))
    order = draw(images.listing, list(images.picks), seed, lambda _: True)
    chosen = {place for place, _ in zip(order, range(max(1, count)), strict=False)}
    apart = [images.picks[i] in chosen for i in places]
    return (
        images.take(i for i in places if not apart[i]),
        images.take(i for i in places if apart[i]),
    )


def about_model(job: Job, model: Model) -> dict[str, Any]:
    """What `save_model` must know to make the weights open by path alone."""
    from robvit.backbones import weights

    return {"arch": weights.architecture(job.model, job.arch), "patch_size": job.recipe.patch_size}


def train(
    job: Job,
    out: Path,
    *,
    report: Callable[..., None] | None = None,
    say: Callable[[str], None] | None = None,
    command: str = "",
) -> Record:
    """Train, then judge the best weights once more; `out` holds weights, state and record.

    The test set is never touched: what chooses and what is reported here are held-out training images.
    """
    model, splits = prepare(job)
    hears: dict[str, Any] = {"report": report, "say": say} if processes().is_main_process else {}
    fit = Fit(
        model,
        splits,
        job.recipe,
        folder=out,
        about=about_model(job, model),
        trackers=trackers_of(job.recipe),
        **{k: v for k, v in hears.items() if v},
    )
    _start_trackers(fit, job.recipe)
    progress = fit.run()
    fit.accelerator.end_training()
    record = _record(job, fit, model, command)
    if fit.accelerator.is_main_process:
        if fit.loss.state_dict():  # what the loss owns belongs to the result
            checkpoint.write_tensors(out / "loss.safetensors", dict(fit.loss.state_dict()), {})
        record.save(out / "record.json")
    assert progress.finished
    return record


def _start_trackers(fit: Fit, recipe: Recipe) -> None:
    plain = {k: v if isinstance(v, int | float | str) else str(v) for k, v in recipe if v is not None}
    try:
        fit.accelerator.init_trackers("robvit", config=plain)
    except Exception as error:  # a tracker fails in whatever way it likes: no login, no server, another store
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{', '.join(trackers_of(recipe))} could not start: {reason}; set it up, or train without it: "
            "--set 'track=[]'"
        ) from error


def trackers_of(recipe: Recipe) -> list[str]:
    """The trackers a recipe names; if it names none, TensorBoard where it is installed."""
    if recipe.track is None:
        return ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    for name in recipe.track:
        if name not in TRACKERS:
            raise InputError(f"track knows {', '.join(TRACKERS)}, got {name!r}")
        if importlib.util.find_spec(name) is None:
            raise InputError(f"{name} is not installed; pip install {name}, or leave it out of track")
    return list(recipe.track)


def _record(job: Job, fit: Fit, model: Model, command: str) -> Record:
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
            "name": job.model,
            "recipe": job.recipe.model_dump(mode="json"),
            "weights": WEIGHTS,
            "identity": model.identity(),
            "processes": fit.accelerator.num_processes,
        },
        data=validation.facts()
        | {"part": "held out of the training part", "learned from": len(fit.splits.train)},
        trials=_trials(model, fit.loss, validation, job.recipe, fit.accelerator.device),
        metrics={"best epoch": epochs[best]}
        | {f"{fit.loss.measure}, {text}": state.history[key][best] for key, text in seen.items()},
        history=state.history,
        curves=[
            Curve("held-out images", "epoch", fit.loss.measure, lines),
            Curve("training", "epoch", "loss", {"loss": _points(epochs, state.history["loss"])}),
        ],
        findings=findings,
        notes=["The checkpoint was chosen on held-out training images; the test set was not touched."],
        command=command,
    )


def _points(xs: list[float], ys: list[float]) -> list[list[float]]:
    return [[x, y] for x, y in zip(xs, ys, strict=True)]


def _trials(
    model: Model, loss: Loss, images: ImageDataset, recipe: Recipe, device: torch.device
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
            with torch.no_grad():
                predicted = model(x).argmax(1)
            trials.append([clean_trial((predicted == y).tolist(), predicted.tolist())])
    return [joined(parts) for parts in zip(*trials, strict=True)]
