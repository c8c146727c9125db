"""Label-free adversarial fine-tuning of a foundation model, so that it stands in the white box.

result = finetune(robvit.load("dinov2-small", img_size=112), images, out="runs/robust")
robust = robvit.load("dinov2-small", img_size=112, lora="runs/robust/lora.safetensors", head=HEAD)
"""

from __future__ import annotations

import copy
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit.backbones import weights
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.lora import LoRA
from robvit.defenses.low_rank import lora_of
from robvit.locks import kept_in
from robvit.processes import processes
from robvit.progress import Advance, Log, silent
from robvit.record import PROCESSOR, Record
from robvit.training import checkpoint
from robvit.training.expectation import expected
from robvit.training.features import FeatureLearner
from robvit.training.finetune_plan import planned
from robvit.training.finetune_record import extra_facts, make_record
from robvit.training.fit import Fit
from robvit.training.losses import OwnAttack, make_loss
from robvit.training.splits import Splits
from robvit.training.tuning import METHODS, Tuning, chosen_extra, chosen_images, make_learner, split
from robvit.training.validation import Scores, judge

SECONDS = "seconds.txt"  # spent so far, by the clock and of processors, of all runs together


@dataclass(frozen=True)
class Finetuned:
    """The tuned model, the factors merged into it if it was tuned by LoRA, the record, and what the
    result's file tells of how it was tuned and judged."""

    model: Model
    lora: LoRA | None
    record: Record
    settings: dict[str, Any]


def finetune(
    model: Model,
    data: ImageDataset | torch.Tensor,
    tuning: Tuning | None = None,
    *,
    extra: ImageDataset | torch.Tensor | None = None,
    lora: LoRA | str | Path | None = None,
    minutes: float | None = None,
    out: str | Path | None = None,
    arch: str | None = None,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
    **settings: Any,
) -> Finetuned:
    """Tune a copy of a model so that its attacked features stay at the original's clean ones.

    With the loss "task" or "trades", labels and the model's classifier or head decide instead.

    Interrupted, the same call with the same `out` resumes to the same bits.

    model: without tokens and adapters; it is left as it is
    data: a dataset, whose labels only a supervised loss looks at, or images (N 3 H W) in [0,1]
    tuning: how; `settings` are those of `Tuning`, and win
    extra: more images for a share of each batch, the tuning's `extra_share`; none of them is held out
    lora: factors of an earlier tuning to go on from; the aim stays the features of `model`
    minutes: plan steps and batch for so long, by a probe of the model on this machine
    out: the folder for lora.safetensors or model.safetensors, the run's state and record.json
    arch: the network of a model loaded from a path that does not say what it is
    log: told what each validation saw, line by line
    progress: told each share of the work, one in all, with a note
    command: what the record says the tuning was started by
    """
    tuning = replace(tuning or Tuning(), **settings).settled(model)
    start = lora if isinstance(lora, LoRA) or lora is None else LoRA.load(lora)
    images, more = chosen_images(data, model, tuning), chosen_extra(extra, model, tuning)
    main = processes().is_main_process
    log = log if main else silent
    with kept_in(out) as folder:
        if minutes is not None:
            tuning = planned(model, images, tuning, minutes, folder)
            log(
                f"planned for {minutes:g} minutes: {tuning.steps} steps of {tuning.batch} images at "
                f"{model.input_size[0]} pixels, {tuning.attack_steps} inner steps or, if the guard asks, more"
            )
        log(expected(model, tuning))
        clock = Stopwatch(folder / SECONDS, progress)
        result = _run(model, split(images, tuning, more), tuning, folder, start, log=log, clock=clock)
        result.record.command = command
        if out is not None and main:
            _save(result, model, folder, arch)
            result.record.save(folder / "record.json")
    return result


def _run(
    model: Model,
    splits: Splits,
    tuning: Tuning,
    folder: Path,
    start: LoRA | None,
    *,
    log: Log,
    clock: Stopwatch,
) -> Finetuned:
    learner = make_learner(model, tuning, start)
    about = {
        "backbone": model.identity(),
        "method": tuning.method,
        "rank": tuning.rank,
        "alpha": tuning.alpha,
        "blocks": tuning.blocks,
        "norms": tuning.norms,
        "start": _start(start),
    }
    recipe = tuning.recipe(len(splits.train))
    loss = None
    if tuning.supervised:
        loss = OwnAttack(make_loss(recipe.loss, learner, splits.train, recipe.loss_settings))
    fit = Fit(
        learner,
        splits,
        recipe,
        folder=folder / "training",
        about=about,
        loss=loss,
        log=log,
        progress=clock,
    )
    fit.run()
    settings = _settings(model, tuning, splits, start)
    tuned, factors = _result(model, learner, tuning, settings)
    seen = {"original": _seen(model, fit), "tuned": _seen(tuned, fit)}
    spent = {"seconds": clock.seconds, PROCESSOR: clock.processor}
    record = make_record(model, tuned, factors, fit, seen, asdict(tuning) | {"start": _start(start)}, spent)
    settings |= _verdict(record)
    if factors is not None:
        factors = replace(factors, settings=settings)
    return Finetuned(tuned, factors, record, settings)


def _verdict(record: Record) -> dict[str, Any]:
    """What a file of the result tells besides its settings: its cost, its scores, what the guard found."""
    return {
        PROCESSOR: record.metrics[PROCESSOR],
        "scores": {name: value for name, value in record.metrics.items() if ", tuned, " in name},
        "findings": [
            {"check": one.check, "status": one.status, "evidence": one.evidence} for one in record.findings
        ],
    }


def _start(start: LoRA | None) -> dict[str, Any] | None:
    """What a tuning went on from: the factors' digest, the steps that had led to them, and what those cost.

    The cost is None where one of the tunings before does not tell its own.
    """
    if start is None:
        return None
    before = start.settings.get("start") or {"steps": 0, PROCESSOR: 0.0}
    steps = before.get("steps", 0) + start.settings.get("steps", 0)
    costs = [one.get(PROCESSOR) for one in (before, start.settings)]
    return {"digest": start.digest(), "steps": steps, PROCESSOR: None if None in costs else sum(costs)}


def _settings(model: Model, tuning: Tuning, splits: Splits, start: LoRA | None) -> dict[str, Any]:
    """How a result was tuned: the tuning's numbers, the images, and what it went on from."""
    return asdict(tuning) | {
        "img_size": list(model.input_size),
        "resize": splits.train.resize,
        "data": splits.train.digest(),
        "images": len(splits.train),
        "extra": extra_facts(splits.extra),
        "model": model.name,
        "start": _start(start),
    }


def _result(
    model: Model, learner: FeatureLearner, tuning: Tuning, settings: dict[str, Any]
) -> tuple[Model, LoRA | None]:
    """The result as it is shipped: factors rounded and merged, or the tuned weights."""
    if tuning.method == "full":
        twin = learner.model[0].replace(original=model.original_fingerprint or model.fingerprint())
        return twin.requires_grad_(False).eval(), None
    assert isinstance(learner.trained, nn.ModuleDict)
    factors = lora_of(learner.trained, tuning.alpha, model.fingerprint(), settings)
    return factors.merge(model), factors


def _seen(model: Model, fit: Fit) -> Scores:
    """How a model's features do on the held-out images."""
    still = copy.deepcopy(model).requires_grad_(False)
    learner = type(fit.model)(still, nn.Module()).to(fit.accelerator.device)
    return judge(learner, fit.loss, fit.splits.validation, fit.recipe, fit.accelerator)


def _save(result: Finetuned, model: Model, folder: Path, arch: str | None) -> None:
    if result.lora is not None:
        result.lora.save(folder / METHODS["lora"])
        return
    original = result.model.original_fingerprint
    settings = result.settings | {"model": Path(model.name).name}  # where it lay is nobody's business
    about = {"arch": weights.architecture(model.name, arch), "original": original, "settings": settings}
    about["resize"] = settings["resize"]
    checkpoint.save_model(result.model, folder / METHODS["full"], about)


class Stopwatch:
    """The seconds spent on a tuning, all runs together; called with its progress, which it passes on.

    The clock's depend on what else the machine does; the processors' are those of all processes together.
    """

    def __init__(self, path: Path, progress: Advance) -> None:
        self.path, self.progress = path, progress
        self.start, self.start_processor = time.monotonic(), time.process_time()
        self.before, self.before_processor = _spent(path)
        self.main = processes().is_main_process

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.start

    @property
    def processor(self) -> float:
        own = time.process_time() - self.start_processor
        count: int = processes().num_processes
        return self.before_processor + own * count  # which share the work evenly

    def __call__(self, amount: float = 1, note: str = "") -> None:
        if self.main:
            aside = self.path.with_suffix(".part")  # a kill in between leaves the old file
            aside.write_text(f"{self.seconds:.1f} {self.processor:.1f}\n", "ascii")
            aside.replace(self.path)
            self.progress(amount, note=note)


def _spent(path: Path) -> tuple[float, float]:
    """Seconds by the clock and of processors that earlier runs took."""
    if not path.exists():
        return 0.0, 0.0
    clock, _, processor = path.read_text("ascii").partition(" ")
    return float(clock), float(processor or clock)
