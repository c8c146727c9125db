"""Training TORA adapters in two phases on the common loop.

Phase 1 trains each adapter, with its token, its head and a fusion of its own, for its own objective while
the other adapter is the identity. Phase 2 starts from both and from the mean of their fusions, weighted by
the trade-off, and trains the fusion alone on the joint output. One phase 1 serves every trade-off.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit.attacks import run
from robvit.attacks.compute import Compute
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.data import ImageDataset
from robvit.defenses.tora.io import adapted, fresh, save_adapters
from robvit.defenses.tora.modules import BOTH, Adapters
from robvit.errors import InputError
from robvit.evaluation.trials import clean_trial_of, trial_of
from robvit.progress import Advance, Log, silent
from robvit.record import Curve, Record, Table, Trial
from robvit.threat import Threat
from robvit.training.adapters import TrainableAdapters
from robvit.training.fit import Fit, RunState
from robvit.training.job import Job, prepare
from robvit.training.recipe import AdapterSettings, Recipe
from robvit.training.splits import Splits
from robvit.training.validation import BATCH

ADAPTERS = "adapters.safetensors"


@dataclass(frozen=True)
class Phase:
    """One training of the common loop: which parts learn, by which answer, for which trade-offs."""

    name: str
    answers: str  # "joint", or the objective whose head answers
    learns: tuple[str, ...]  # how the names of what learns begin
    trades: tuple[float, ...]
    recipe: Recipe

    @property
    def second(self) -> bool:
        """Whether it takes over what phase 1 made."""
        return self.learns == ("fusions",)

    def seen(self, steps: int) -> int:
        """How many images so many steps show, clean and attacked ones counted each."""
        alone = self.recipe.loss_settings.get("trade") in (0.0, 1.0)
        return steps * self.recipe.batch * (1 if alone else 2)

    def attacked(self, steps: int) -> int:
        """How many of them are attacked."""
        return 0 if self.recipe.loss_settings.get("trade") == 0.0 else steps * self.recipe.batch


def settings_of(recipe: Recipe) -> AdapterSettings:
    """The adapters of a recipe; one without them is refused."""
    if recipe.adapters is None:
        raise InputError("this recipe trains a network; adapters need a recipe with adapters, such as tora")
    return recipe.adapters


def phases_of(recipe: Recipe) -> list[Phase]:
    """The trainings that adapters take, in order."""
    wanted = settings_of(recipe)

    def phase(
        name: str, answers: str, learns: tuple[str, ...], trades: tuple[float, ...], **changes: Any
    ) -> Phase:
        changes |= {"loss": "tora", "loss_settings": changes.get("loss_settings") or {"trade": trades[0]}}
        share = changes.get("epochs", recipe.epochs) / recipe.epochs  # shorter phases warm up faster
        changes |= {name: share * getattr(recipe, name) for name in ("warmup", "eps_warmup")}
        return Phase(name, answers, learns, trades, recipe.model_copy(update=changes))

    epochs = wanted.fusion_epochs or recipe.epochs
    if not wanted.fused:  # baselines: everything is trained at once for one trade-off
        trade = wanted.trades[0]
        # Phase 1 shows every image once clean and once attacked, this one both at once: they see as many.
        together = recipe.epochs + epochs
        return [phase(f"{wanted.tuning}-{trade:g}", "joint", ("sides",), (trade,), epochs=together)]
    clean = recipe.inner.model_copy(update={"eps": 0.0})
    phases = []
    for name in BOTH:
        own = {"trade": 1.0} if name == "robustness" else {"trade": 0.0}
        changes: dict[str, Any] = {"loss_settings": own} | ({} if name == "robustness" else {"inner": clean})
        phases.append(phase(f"phase1-{name}", name, (f"sides.{name}", "fusions"), (0.5,), **changes))
    second = "phase2" if wanted.start == "mixed" else f"phase2-{wanted.start}"  # phase 1 serves both starts
    if wanted.path:
        # As long as the trainings of all states together, so that the two ways cost the same.
        epochs, ends = epochs * len(wanted.trades), (wanted.trades[0], wanted.trades[-1])
        path = {"path": True}
        name = "-".join((second, "path", *(f"{trade:g}" for trade in wanted.trades)))
        return [*phases, phase(name, "joint", ("fusions",), ends, loss_settings=path, epochs=epochs)]
    return [
        *phases,
        *(phase(f"{second}-{t:g}", "joint", ("fusions",), (t,), epochs=epochs) for t in wanted.trades),
    ]


def backbone_of(model: nn.Module) -> Model:
    """The model, if adapters can be put on it."""
    if not isinstance(model, Model):
        raise InputError(f"adapters need a model of robvit, got {type(model).__name__}; use robvit.load")
    return model


class AdapterTrainer:
    """The phases of a recipe on one backbone; what is finished in `out` is not done again."""

    def __init__(
        self,
        model: Model,
        splits: Splits,
        recipe: Recipe,
        out: Path,
        *,
        log: Log = silent,
        progress: Advance = silent,
    ) -> None:
        self.model, self.splits, self.recipe, self.out = model, splits, recipe, out
        self.settings, self.phases = settings_of(recipe), phases_of(recipe)
        self.log, self.progress = log, progress
        self.runs: dict[str, RunState] = {}
        self.computes: dict[str, Compute] = {}

    def run(self) -> Adapters:
        """Adapters for all trade-offs of the recipe, kept in `out` as adapters.safetensors."""
        first, last = list[Adapters](), list[Adapters]()
        for phase in self.phases:
            adapters = self.start(phase)
            if phase.second:
                take_over(adapters, first, fusion=self.settings.start == "mixed", shared=self.shared)
            elif self.shared and first:
                adapters.fusions.load_state_dict(first[-1].fusions.state_dict())
            self._fit(adapters, phase)
            (last if phase.answers == "joint" else first).append(adapters)
        adapters = joined(last) if len(last) > 1 else last[0]
        adapters.eval().requires_grad_(False)
        adapters.names = list(self.splits.train.classes)
        adapters.trained_on = TrainedOn(self.model.input_size, self.splits.train.resize)
        wanted, knob = self.settings, "path" if self.settings.path else "states"
        about = {"tuning": wanted.tuning, "knob": knob, "recipe": self.recipe.model_dump(mode="json")}
        save_adapters(adapters, self.out / ADAPTERS, about)
        return adapters

    def start(self, phase: Phase) -> Adapters:
        """Adapters as a phase begins, but for what it takes over."""
        torch.manual_seed(self.recipe.seed)  # every phase starts from the same fusion
        classes = len(self.splits.train.classes)
        wanted = self.settings
        parts = {"tuning": wanted.tuning, "fusion": wanted.fusion, "wiring": wanted.wiring}
        return fresh(self.model, classes, trades=phase.trades, **parts)

    @property
    def shared(self) -> bool:
        """Whether phase 1 has one fusion for both objectives."""
        return self.settings.phase1 == "shared"

    def _fit(self, adapters: Adapters, phase: Phase) -> None:
        self.log(f"{phase.name}: {', '.join(phase.learns)} learn")
        learner = TrainableAdapters(self.model, adapters, phase.answers, phase.learns)
        about = {"backbone": self.model.identity(), "phase": phase.name}
        about |= {name: getattr(self.settings, name) for name in ("tuning", "fusion", "wiring", "phase1")}

        def share(amount: float = 1, note: str = "") -> None:
            self.progress(amount / len(self.phases), note=note)

        fit = Fit(
            learner,
            self.splits,
            phase.recipe,
            folder=self.out / phase.name,
            about=about,
            log=self.log,
            progress=share,
        )
        self.runs[phase.name], self.computes[phase.name] = fit.run(), fit.compute


def take_over(adapters: Adapters, apart: list[Adapters], *, fusion: bool, shared: bool = False) -> None:
    """Give adapters what phase 1 made for each objective, and its fusions if wanted.

    Those are means by trade-off, or the last one where it was shared.
    """
    with torch.no_grad():
        for name, one in zip(BOTH, apart, strict=True):
            adapters.sides[name].load_state_dict(one.sides[name].state_dict())
        for name, parameter in adapters.fusions.named_parameters() if fusion else ():
            accuracy, robustness = (one.fusions.get_parameter(name)[0] for one in apart)
            means = [torch.lerp(accuracy, robustness, 1 if shared else t) for t in adapters.shape.trades]
            parameter.copy_(torch.stack(means))


def joined(states: list[Adapters]) -> Adapters:
    """One set of adapters with a fusion for every trade-off, from sets that share all but the fusion."""
    trades = tuple(one.shape.trades[0] for one in states)
    made = Adapters(states[0].shape._replace(trades=trades), states[0].fingerprint)
    tensors = dict(states[0].state_dict())
    for name in tensors:
        if name.startswith("fusions"):
            tensors[name] = torch.cat([one.state_dict()[name] for one in states])
    made.load_state_dict({**tensors, "trades": made.trades, "place": made.place})
    return made


def train_adapters(
    model: Model,
    splits: Splits,
    recipe: Recipe,
    out: Path,
    *,
    log: Log = silent,
    progress: Advance = silent,
) -> tuple[Adapters, dict[str, RunState]]:
    """The adapters of a recipe, and what each phase saw, by its name. Asked again, it resumes or is done."""
    trainer = AdapterTrainer(model, splits, recipe, out, log=log, progress=progress)
    return trainer.run(), trainer.runs


def run_adapters(job: Job, out: Path, *, log: Log, progress: Advance) -> Record:
    """From names to adapters in `out` and a record of what they do on held-out training images."""
    opened, splits = prepare(job)
    model = backbone_of(opened)
    recipe, wanted = job.recipe, settings_of(job.recipe)
    trainer = AdapterTrainer(model, splits, recipe, out, log=log, progress=progress)
    twin = adapted(model, trainer.run())
    threat = Threat(recipe.inner.norm, recipe.inner.eps)
    rows, trials = list[list[Any]](), list[Trial]()
    for trade in wanted.trades:
        moved = twin.replace(trade_off=trade)
        found = judged(moved, splits.validation, threat, recipe.judge_steps, f"{trade:g}")
        trials += found
        rows.append([f"{trade:g}", *(100 * sum(t.correct) / len(t.correct) for t in found)])
    note = f"attacked by PGD of {recipe.judge_steps} steps within {threat}"
    held, runs, computes = splits.validation, trainer.runs, trainer.computes
    doubts = dict.fromkeys(note for compute in computes.values() for note in compute.notes())
    return Record(
        kind="train",
        model={
            **model.facts(),
            "tuning": wanted.tuning,
            "recipe": recipe.model_dump(mode="json"),
            "adapters": ADAPTERS,
            "compute": {name: compute.rules() for name, compute in computes.items()},
        },
        data=held.facts() | {"part": "held out of the training part", "learned from": len(splits.train)},
        trials=trials,
        tables=[Table("By trade-off", ["trade-off", "clean", "attacked"], rows, note)],
        curves=[Curve(name, "step", "loss", {"loss": _line(run.history)}) for name, run in runs.items()],
        notes=["The last weights count; none are chosen. The test set was not touched.", *doubts],
        machine=next(iter(computes.values())).machine(),
    )


def judged(model: Model, images: ImageDataset, threat: Threat, steps: int, scenario: str) -> list[Trial]:
    """Every image's outcome, clean and under PGD."""
    x, y = (tensor.to(model.mean.device) for tensor in images.tensors())
    outcome = run("pgd", model, x, y, threat, batch=BATCH, steps=steps)
    attacked = trial_of(outcome, "pgd", threat, {"steps": steps}, scenario=scenario)
    return [clean_trial_of(outcome, scenario=scenario), attacked]


def _line(history: dict[str, list[float]]) -> list[list[float]]:
    return [[step, loss] for step, loss in zip(history["step"], history["loss"], strict=True)]
