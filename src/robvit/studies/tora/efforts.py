"""What the studies of TORA spend: on training adapters, on attacks, and on the tables' other columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from robvit.errors import InputError
from robvit.studies.common import WIDE, TrainingEffort
from robvit.studies.judging import BATCH, Attempt
from robvit.threat import Threat
from robvit.training.recipe import Recipe, load_recipe

SEVERITY = 3


@dataclass(frozen=True)
class AdapterEffort(TrainingEffort):
    """What is spent on training adapters within `eps`; the defaults take minutes on one processor core.

    A `head`, a file, is the classifier of a backbone that has none for these classes. If it reads the class
    token, the adapters' heads start from it. With `wide`, attacks in training are of one wide step, as the
    recipe mini's. With `attacks`, a folder, several studies share what became of a model under an attack.
    """

    learn: int = 1500
    epochs: float = 3
    training: str = ""
    fusion_epochs: float = 1
    eps: float = 4 / 255
    batch: int = BATCH
    head: str = ""
    wide: bool = False
    attacks: str = ""

    def recipe(self, seed: int) -> Recipe:
        """The recipe of `robvit train tora` at this scale."""
        size = {"epochs": self.epochs, "warmup": min(0.3, self.epochs / 4), "batch": self.batch}
        inner = {"inner.eps": self.eps, **(WIDE if self.wide else {})}
        return load_recipe("tora", **size, **inner, judge_steps=1, seed=seed)


@dataclass(frozen=True)
class AttackEffort(AdapterEffort):
    """And what is spent on attacks: PGD of `steps` within each of the `budgets`, in 255ths.

    Of the first `strong` images, all if that is 0, what it leaves is attacked by AutoAttack, with so many
    `steps`, `targets` and `queries`, and by an attack that knows of the gates or is as long.
    """

    budgets: Sequence[float] = (1, 2, 4)
    steps: int = 20
    targets: int = 3
    queries: int = 100
    strong: int = 0

    def __post_init__(self) -> None:
        if not self.budgets or list(self.budgets) != sorted({*self.budgets}):
            raise InputError(
                f"budgets must be rising numbers in 255ths, such as [1, 2, 4], got {list(self.budgets)}"
            )

    @property
    def threats(self) -> list[Threat]:
        return [Threat("linf", budget / 255) for budget in self.budgets]

    @property
    def attempts(self) -> list[Attempt]:
        """PGD within every budget."""
        return [Attempt("pgd", threat, {"steps": self.steps}) for threat in self.threats]

    @property
    def long(self) -> Attempt:
        """AutoAttack, within no budget yet."""
        settings = {"steps": self.steps, "targets": self.targets, "queries": self.queries}
        return Attempt("autoattack", None, settings)

    @property
    def middle(self) -> int:
        """The place of the budget by which rows are compared where one has to do: most models are neither
        whole nor broken there."""
        return len(self.budgets) // 2


@dataclass(frozen=True)
class TableEffort(AttackEffort):
    """And what the tables' other columns take.

    The first `corrupted` images, all if that is 0, are judged under fifteen corruptions at each of the
    `severities`. ImageNet-A, -R and -C are folders, for a backbone of ImageNet's classes.
    """

    severities: Sequence[int] = (SEVERITY,)
    corrupted: int = 0
    imagenet_a: str = ""
    imagenet_r: str = ""
    imagenet_c: str = ""
