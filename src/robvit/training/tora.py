"""Training TORA adapters in two phases on the common loop.

Phase 1 trains each adapter, with its token, its head and a fusion of its own, for its own objective while
the other adapter is the identity. Phase 2 starts from both and from the mean of their fusions, weighted by
the trade-off, and trains the fusion alone on the joint output. One phase 1 serves every trade-off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks import run
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.tora.io import adapted, fresh, save_adapters
from robvit.defenses.tora.modules import BOTH, Adapters, check_trades
from robvit.errors import InputError
from robvit.evaluation.record import Curve, Record, Table, Trial
from robvit.evaluation.trials import clean_trial_of, trial_of
from robvit.threat import Threat
from robvit.training.fit import Fit, Progress, Splits
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import LOSSES, Loss
from robvit.training.recipe import Recipe
from robvit.training.train import Job, prepare
from robvit.training.validation import BATCH

Say = Callable[..., None]
KNOBS = ("states", "path")


class Learner(nn.Module):
    """Adapters that learn, on a backbone that does not: (B 3 H W) in [0,1] to logits (B K).

    It answers by the mean of both heads ("joint") or by the head of one objective. The backbone is no
    submodule, so it is neither trained, nor saved, nor put into training mode.
    """

    def __init__(self, model: Model, adapters: Adapters, answers: str, learns: tuple[str, ...]) -> None:
        super().__init__()
        self.adapters, self.answers = adapters, answers
        self.input_size = model.input_size
        self.backbone = (adapted(model, adapters),)
        for name, parameter in adapters.named_parameters():
            parameter.requires_grad_(name.startswith(learns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (model,) = self.backbone
        if self.answers == "joint":
            joint: torch.Tensor = model(x)
            return joint
        return model.heads_apart(x)[self.answers]

    def _apply(self, fn: Any, recurse: bool = True) -> Learner:
        self.backbone[0]._apply(fn, recurse)  # no submodule, yet it goes where the adapters go
        super()._apply(fn, recurse)
        return self


@LOSSES.add("tora")
class TradeOff(Loss):
    """The trade-off's share of the loss on attacked images, the rest on clean ones.

    With a `path`, every step draws a trade-off between the ends the adapters hold and sets it, so that one
    training serves all of them; between steps the adapters stand in the middle.
    """

    def __init__(
        self, model: nn.Module, images: ImageDataset, *, trade: float = 0.5, path: bool = False
    ) -> None:
        super().__init__()
        self.trade, self.path = trade, path

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        if not self.path:
            return self._mixed(model, x, y, attack, self.trade)
        adapters: Any = model.adapters
        low, high = (float(adapters.trades[i]) for i in (0, -1))
        trade = low + (high - low) * float(torch.rand(()))  # seeded by the step
        adapters.trade_off = trade
        loss = self._mixed(model, x, y, attack, trade)
        adapters.trade_off = (low + high) / 2
        return loss

    @staticmethod
    def _mixed(
        model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack, trade: float
    ) -> torch.Tensor:
        loss = torch.zeros((), device=x.device)
        if trade:
            loss = loss + trade * F.cross_entropy(model(attack(model, x, y)), y)
        if trade < 1:
            loss = loss + (1 - trade) * F.cross_entropy(model(x), y)
        return loss


@dataclass(frozen=True)
class Plan:
    """What is trained: a tuning, for which trade-offs, and how several of them become one model.

    With the knob "states" every trade-off has a fusion of its own; with "path" only the first and the last
    have, and are trained together on trade-offs drawn between them. `fusion_epochs` is the length of
    phase 2 for one trade-off, that of phase 1 if left out; `start` says where phase 2 begins: "mixed", at
    both fusions' weighted mean, or "fresh".
    """

    recipe: Recipe
    tuning: str = "tora"
    trades: tuple[float, ...] = (0.5,)
    knob: str = "states"
    fusion_epochs: float | None = None
    start: str = "mixed"

    def __post_init__(self) -> None:
        check_trades(self.trades)
        if self.knob not in KNOBS or (self.knob == "path" and len(self.trades) < 2):
            raise InputError(
                f"the knob is one of {', '.join(KNOBS)}, path with two trades or more, "
                f"got {self.knob!r} and {list(self.trades)}"
            )
        if self.start not in ("mixed", "fresh"):
            raise InputError(f'start must be "mixed" or "fresh", got {self.start!r}')

    @property
    def phases(self) -> int:
        """How many trainings it takes."""
        if self.tuning in ("heads", "single"):
            return 1
        return 2 + (1 if self.knob == "path" else len(self.trades))


@dataclass(frozen=True)
class Phase:
    """One training of the common loop: its name, its way and what it saw."""

    name: str
    progress: Progress


class Trainer:
    """The phases of a plan on one backbone; what is finished in `out` is not done again."""

    def __init__(
        self,
        model: Model,
        splits: Splits,
        plan: Plan,
        out: Path,
        *,
        report: Say | None = None,
        say: Say | None = None,
    ) -> None:
        self.model, self.splits, self.plan, self.out = model, splits, plan, out
        self.hears: dict[str, Any] = {
            name: heard for name, heard in (("report", report), ("say", say)) if heard
        }
        self.say = say or (lambda _: None)
        self.phases: list[Phase] = []

    def run(self) -> Adapters:
        """Adapters for all trade-offs of the plan, kept in `out` as adapters.safetensors."""
        plan = self.plan
        if plan.tuning in ("heads", "single"):
            if len(plan.trades) > 1:
                raise InputError(f"the tuning {plan.tuning} has no fusion: it takes one trade-off at a time")
            adapters = self._alone(plan.trades[0])
        else:
            apart = [self._first(name) for name in BOTH]
            if plan.knob == "path":
                ends = (plan.trades[0], plan.trades[-1])
                adapters = self._second(apart, ends, path=True)
            else:
                adapters = joined([self._second(apart, (trade,)) for trade in plan.trades])
        adapters.eval().requires_grad_(False)
        about = {"tuning": plan.tuning, "knob": plan.knob, "recipe": plan.recipe.model_dump(mode="json")}
        save_adapters(adapters, self.out / "adapters.safetensors", about)
        return adapters

    def _first(self, name: str) -> Adapters:
        """Phase 1: one objective's adapter, token, head and a fusion of its own."""
        adapters = self._fresh((0.5,))
        robust = name == "robustness"
        settings = {"trade": 1.0 if robust else 0.0}
        recipe = self.plan.recipe.model_copy(update={"loss_settings": settings})
        if not robust:
            recipe = recipe.model_copy(update={"inner": recipe.inner.model_copy(update={"eps": 0.0})})
        return self._fit(adapters, name, (f"sides.{name}", "fusions"), recipe, f"phase1-{name}")

    def _second(self, apart: list[Adapters], trades: tuple[float, ...], path: bool = False) -> Adapters:
        """Phase 2: the fusion alone, for one trade-off or for all between two."""
        plan = self.plan
        adapters = self._fresh(trades)
        take_over(adapters, apart, fusion=plan.start == "mixed")
        settings = {"path": True} if path else {"trade": trades[0]}
        # A path is as long as the trainings of all states together, so that the two ways cost the same.
        epochs = (plan.fusion_epochs or plan.recipe.epochs) * (len(plan.trades) if path else 1)
        recipe = plan.recipe.model_copy(update={"loss_settings": settings, "epochs": epochs})
        name = f"phase2-{'path' if path else f'{trades[0]:g}'}"
        return self._fit(adapters, "joint", ("fusions",), recipe, name)

    def _alone(self, trade: float) -> Adapters:
        """Baselines without a fusion: everything is trained at once for one trade-off."""
        recipe = self.plan.recipe.model_copy(update={"loss_settings": {"trade": trade}})
        name = f"{self.plan.tuning}-{trade:g}"
        return self._fit(self._fresh((trade,)), "joint", ("sides",), recipe, name)

    def _fresh(self, trades: tuple[float, ...]) -> Adapters:
        torch.manual_seed(self.plan.recipe.seed)  # every phase starts from the same fusion
        return fresh(self.model, len(self.splits.train.classes), tuning=self.plan.tuning, trades=trades)

    def _fit(
        self, adapters: Adapters, answers: str, learns: tuple[str, ...], recipe: Recipe, name: str
    ) -> Adapters:
        self.say(f"{name}: {', '.join(learns)} learn")
        learner = Learner(self.model, adapters, answers, learns)
        about = {"backbone": self.model.identity(), "tuning": self.plan.tuning, "phase": name}
        recipe = recipe.model_copy(update={"loss": "tora"})
        fit = Fit(learner, self.splits, recipe, folder=self.out / name, about=about, **self.hears)
        self.phases.append(Phase(name, fit.run()))
        return adapters


def take_over(adapters: Adapters, apart: list[Adapters], *, fusion: bool) -> None:
    """Give adapters what phase 1 made for each objective, and their fusions' means by trade-off if wanted."""
    with torch.no_grad():
        for name, one in zip(BOTH, apart, strict=True):
            adapters.sides[name].load_state_dict(one.sides[name].state_dict())
        for name, parameter in adapters.fusions.named_parameters() if fusion else ():
            accuracy, robustness = (one.fusions.get_parameter(name)[0] for one in apart)
            means = [torch.lerp(accuracy, robustness, trade) for trade in adapters.shape.trades]
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
    model: Model, splits: Splits, plan: Plan, out: Path, **hears: Any
) -> tuple[Adapters, list[Phase]]:
    """Run a plan; the adapters and the phases that led to them. Asked again, it goes on or is done."""
    trainer = Trainer(model, splits, plan, out, **hears)
    return trainer.run(), trainer.phases


def train_job(job: Job, plan: Plan, out: Path, **hears: Any) -> Record:
    """From names to adapters in `out` and a record of what they do on held-out training images."""
    model, splits = prepare(job)
    adapters, phases = train_adapters(model, splits, plan, out, **hears)
    twin = adapted(model, adapters)
    inner, rows, trials = plan.recipe.inner, list[list[Any]](), list[Trial]()
    threat = Threat(inner.norm, inner.eps)
    for trade in plan.trades:
        twin.trade_off = trade
        found = judged(twin, splits.validation, threat, plan.recipe.judge_steps, f"{trade:g}")
        trials += found
        rows.append([f"{trade:g}", *(100 * sum(t.correct) / len(t.correct) for t in found)])
    note = f"attacked by PGD of {plan.recipe.judge_steps} steps within {threat}"
    curves = [Curve(phase.name, "step", "loss", {"loss": _line(phase.progress.history)}) for phase in phases]
    held = splits.validation
    return Record(
        kind="train",
        model={
            "name": job.model,
            "fingerprint": model.fingerprint(),
            "tuning": plan.tuning,
            "recipe": plan.recipe.model_dump(mode="json"),
            "adapters": "adapters.safetensors",
        },
        data=held.facts() | {"part": "held out of the training part", "learned from": len(splits.train)},
        trials=trials,
        tables=[Table("By trade-off", ["trade-off", "clean", "attacked"], rows, note)],
        curves=curves,
        notes=["The last weights count; none are chosen. The test set was not touched."],
    )


def judged(model: Model, images: ImageDataset, threat: Threat, steps: int, scenario: str) -> list[Trial]:
    """Every image's outcome, clean and under PGD."""
    x, y = images.arrays()
    outcome = run("pgd", model, x, y, threat, batch=BATCH, steps=steps)
    attacked = trial_of(outcome, "pgd", threat, {"steps": steps}, scenario=scenario)
    return [clean_trial_of(outcome, scenario=scenario), attacked]


def _line(history: dict[str, list[float]]) -> list[list[float]]:
    return [[step, loss] for step, loss in zip(history["step"], history["loss"], strict=True)]
