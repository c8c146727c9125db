"""The one training loop: a model, images and a recipe in; the best weights, a history and doubts out.

Nothing random travels from step to step: the order of images, their augmentation, the attack's noise
and the layers' own noise each come from a seed made of the run's seed and the step. So the whole state
is the weights, what the optimiser remembers, the running average, the loss's own buffers and the number
of the step, and a run that was killed ends with the same bits as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from robvit.backbones.model import Model
from robvit.processes import on_cpu, processes
from robvit.progress import Advance, Log, silent
from robvit.resuming import check_unchanged, versions
from robvit.tensor_files import read_tensors, tensors_sha256
from robvit.training import aas_at, checkpoint, features  # noqa: F401  aas_at and features file losses
from robvit.training.computing import image_size, scaled, settled
from robvit.training.losses import Loss, make_loss
from robvit.training.recipe import Recipe
from robvit.training.schedule import budget, learning_rate
from robvit.training.splits import Splits, check_labels
from robvit.training.step import Stepper
from robvit.training.stream import Sharing, Stream
from robvit.training.validation import Scores, judge

STATE = "state.safetensors"
WEIGHTS = "model.safetensors"


@dataclass
class RunState:
    """All of a training's state that is not a tensor."""

    step: int = 0
    best: float = -math.inf
    best_step: int = 0
    best_standing: int = 0  # see `Fit._validate`
    stale: int = 0  # validations since the best
    finished: bool = False
    losses: list[float] = field(default_factory=list)  # since the last validation
    history: dict[str, list[float]] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)
    seconds: float = field(default=0.0, compare=False)  # of all steps so far, whichever run took them


class Fit:
    """A training on its way. `run` resumes from wherever `folder` says it was; `loss` is the recipe's own if
    left out."""

    def __init__(
        self,
        model: nn.Module,
        splits: Splits,
        recipe: Recipe,
        *,
        folder: Path,
        about: dict[str, Any] | None = None,
        loss: Loss | None = None,
        log: Log = silent,
        progress: Advance = silent,
        trackers: list[str] | None = None,
    ) -> None:
        self.recipe, self.splits, self.folder = recipe, splits, folder
        self.about = about or {}
        self.log, self.progress = log, progress
        self.stream = Stream(splits.train, recipe, splits.extra)
        self.steps = self.stream.steps
        model = model.to(processes().device)
        self.compute = settled(model, splits.train, recipe, self.steps, folder)
        self.accelerator = Accelerator(
            cpu=on_cpu(),
            mixed_precision=scaled(self.compute),
            log_with=trackers or None,
            project_dir=str(folder),
        )
        self.origin = tensors_sha256(model.state_dict())
        self.model = model
        self.size = image_size(model, splits.train)
        self.classes = len(splits.train.classes)
        self.loss = loss or make_loss(recipe.loss, self.model, splits.train, recipe.loss_settings)
        check_labels(splits, self.loss)
        self.loss.to(self.accelerator.device)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and self.loss.trains(name))
        self.stepper = Stepper(
            self.model,
            self.loss,
            recipe,
            self.accelerator,
            compute=self.compute,
            classes=self.classes,
            folder=folder,
        )
        self.sharing = Sharing(
            self.accelerator.num_processes, self.accelerator.process_index, recipe.accumulation
        )
        self.sharing.check(recipe.batch)
        self.state = RunState()
        self._saved = time.monotonic()

    @property
    def judged(self) -> nn.Module:
        """The weights that count: their running average where there is one."""
        ema = self.stepper.ema
        return self.model if ema is None else ema.module

    def run(self) -> RunState:
        """Train to the end; the best weights are in `folder`, and loaded into the model."""
        self.resume()
        state = self.state
        self.progress(state.step / self.steps)
        self.log(f"computing in {self.compute}")
        if not state.finished:
            steps = range(state.step, self.steps)
            loader = iter(self.stream.loader(steps, self.sharing, self.size))
            for step in steps:
                self._advance(step, loader)
                if self._finished():
                    state.finished = True
                    break
            # What `stop_after` ended goes on when it is raised.
            state.finished |= state.step == self.stream.all_steps
            self._save(always=True)
        self.accelerator.wait_for_everyone()
        self._load_best()
        return state

    def _advance(self, step: int, loader: Iterator[Any]) -> None:
        """One step, and what is due after it."""
        start = time.monotonic()
        now = self.stream.time(step)
        epoch = math.floor(now)
        if step == 0 or epoch > math.floor(self.stream.time(step - 1)):
            self.loss.on_epoch(self.model, epoch)
        self.model.train()
        rate = learning_rate(self.recipe, now)
        value = self.stepper.advance(step, now, rate, list(islice(loader, self.recipe.accumulation)))
        self.state.losses.append(value)
        self.state.step = step + 1
        self.progress(1 / self.steps, note=f"loss {value:.3f}")
        self.accelerator.log({"step loss": value}, step=self.state.step)
        if due := self._validation_due():
            self._validate(rate, budget(self.recipe, now)[0])
        self.state.seconds += time.monotonic() - start
        self._save(always=due)

    def _validation_due(self) -> bool:
        """After every `validate_every` epochs and at the end, never between the replays of a batch."""
        rest = self.state.step % self.recipe.replays
        return not rest and (self._validates(self.state.step) or self.state.step == self.steps)

    def _validates(self, step: int) -> bool:
        """Whether `validate_every` epochs are over after a step, the last of its replays."""
        turn = step // self.recipe.replays
        every = self.recipe.validate_every * self.stream.epoch / self.recipe.replays
        return turn // every > (turn - 1) // every

    def _validate(self, rate: float, eps: float) -> None:
        """Judge on held-out images, keep the best weights, tell what was seen."""
        state = self.state
        seen = judge(self.judged, self.loss, self.splits.validation, self.recipe, self.accelerator)
        mean = sum(state.losses) / len(state.losses)
        state.losses = []
        doubt = self.loss.doubt(seen, self.classes) if self.recipe.inner.eps else ""
        # What hides from the attack is no good, however little it moves; then comes what was to be kept.
        standing = 2 * (not doubt) + self.loss.keeps(seen)
        better = (standing, seen.robust) > (state.best_standing, state.best)
        if better:
            state.best, state.best_step, state.best_standing = seen.robust, state.step, standing
            state.stale = 0
            if self.accelerator.is_main_process:
                about = self.about | {"resize": self.splits.train.resize}
                checkpoint.save_model(self.judged, self.folder / WEIGHTS, about)
        else:
            state.stale += 1
        row = {"step": float(state.step), "epoch": self.stream.time(state.step)}
        row |= {"loss": mean, "lr": rate, "eps": eps, **asdict(seen)}
        for name, value in row.items():
            state.history.setdefault(name, []).append(value)
        self.accelerator.log({k: v for k, v in row.items() if k != "step"}, step=state.step)
        self.log(self._line(row, seen, better))
        if doubt:
            state.doubts.append(f"epoch {row['epoch']:.2f}: {doubt}")
            self.log(f"warning: {state.doubts[-1]}")

    def _line(self, row: dict[str, float], seen: Scores, better: bool) -> str:
        short, long = self.loss.short_attack(self.recipe.inner)[0], self.recipe.judge_steps
        form = ".1%" if self.loss.measure == "accuracy" else ".3f"
        attacked = f"  attack of {short}: {seen.one_step:{form}}  of {long}: {seen.robust:{form}}"
        return (
            f"epoch {row['epoch']:6.2f}  loss {row['loss']:.4f}  lr {row['lr']:.1e}  "
            f"eps {row['eps'] * 255:.1f}/255  {self.loss.measure} clean {seen.clean:{form}}"
            f"{attacked if self.recipe.inner.eps else ''}{'  best' if better else ''}"
        )

    def _finished(self) -> bool:
        """Whether to stop before the plan does."""
        patience = self.recipe.patience
        stop = patience is not None and self.state.stale >= patience
        if stop:
            self.log(f"stopped: no better for {patience} validations")
        return stop

    @cached_property
    def key(self) -> dict[str, Any]:
        """Names the run by all that decides it: the same key, the same weights in the end."""
        sets = [s for s in (self.splits.train, self.splits.validation, self.splits.extra) if s]
        return {
            "recipe": self.recipe.digest(),
            "names and labels": [s.digest() for s in sets],
            "pixels": [s.pixels() for s in sets],
            "size and resize": [[s.size, s.resize] for s in sets],
            "model": self.about,
            "starting weights": self.origin,
            "versions": versions(),
            **self._stop(),
        }

    def _stop(self) -> dict[str, Any]:
        """Where a training is ended early, if that adds a validation, which may change what comes after."""
        added = self.steps < self.stream.all_steps and not self._validates(self.steps)
        return {"stop_after": self.recipe.stop_after} if added else {}

    def _save(self, always: bool = False) -> None:
        due = always or time.monotonic() - self._saved >= self.recipe.save_seconds
        if not due or self.state.step % self.recipe.replays or not self.accelerator.is_main_process:
            return
        parts = {
            "model": dict(self.model.state_dict()),
            "loss": dict(self.loss.state_dict()),
            "optimizer": checkpoint.optimizer_tensors(self.stepper.optimizer),
        }
        if self.stepper.ema is not None:
            parts["ema"] = dict(self.stepper.ema.module.state_dict())
        scaler = getattr(self.accelerator, "scaler", None)
        facts = {"key": self.key, "progress": asdict(self.state), "scaler": scaler and scaler.state_dict()}
        checkpoint.save_state(self.folder / STATE, parts, facts)
        self._saved = time.monotonic()

    def resume(self) -> None:
        """Take up the state in the folder, if there is one; that of another run is refused."""
        path = self.folder / STATE
        if not path.exists():
            return
        parts, facts = checkpoint.load_state(path)
        check_unchanged(path, facts.get("key"), self.key)
        checkpoint.restore(self.model, parts["model"], path)
        checkpoint.restore(self.loss, parts.get("loss", {}), path)
        checkpoint.restore_optimizer(self.stepper.optimizer, parts.get("optimizer", {}))
        if self.stepper.ema is not None:
            checkpoint.restore(self.stepper.ema.module, parts["ema"], path)
        if facts["scaler"]:
            self.accelerator.scaler.load_state_dict(facts["scaler"])
        self.state = RunState(**facts["progress"])
        self.log(f"resuming after step {self.state.step} of {self.steps}")

    def _load_best(self) -> None:
        """Leave the best weights in the model."""
        tensors, _ = read_tensors(self.folder / WEIGHTS, "the best weights")
        saved = self.model.net if isinstance(self.model, Model) else self.model  # as `save_model` has it
        checkpoint.restore(saved, tensors, self.folder / WEIGHTS)
        self.model.eval()
