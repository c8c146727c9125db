"""What the studies of attention scaling share: a model, images, comparisons and their claims.

The paper's figures are most likely those of the scaled model itself, another classifier. Ours are of the
model as it is; what the scaled model says stands beside them as a diagnostic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from robvit.attention import attention_layers
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.measuring.comparison import Comparison, ScalingMethod, compare_scaling
from robvit.progress import progress
from robvit.record import Curve, Record, Table, Trial
from robvit.studies.aas.controls import RANDOM, Unsearched
from robvit.studies.claims import claims_table
from robvit.studies.common import Effort, StudyContext
from robvit.studies.judging import per_cent, point, share_over_seeds
from robvit.studies.published import PublishedTable, read_published
from robvit.threat import Threat
from robvit.verdict import Claim, seen_together

PUBLISHED = read_published("aas")
PAPER = PUBLISHED.paper
MODEL, IMAGES = "robvit-mini-robust", 64
PAPER_STEPS = 100  # of the paper's attacks, but for PGD-20 and FGSM
MOVED = "How the scales moved"  # the table's title


@dataclass(frozen=True)
class ScalingEffort(Effort):
    """What the attacks take, and how scales are found (`find_scales`); `learn` images fit them.

    `fit` is "train", as the paper's Algorithm 1, or "batch". A `lora` and a `head`, files, make the judged
    model of the one that is named. With `batches`, a folder, several studies share what became of a batch
    under an attack that they have in common. Scales that nobody searched for are drawn `draws` times.
    """

    learn: int = 256
    steps: int = PAPER_STEPS
    eps: float = 8 / 255
    batch: int = 64
    fit: str = "train"
    objective: str = "unit"
    direction: str = "gradient"
    space: str = "linear"
    starts: int = 1
    draws: int = 3
    lora: str = ""
    head: str = ""
    batches: str = ""

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise InputError(f"random scales are drawn once or more, got draws={self.draws}")

    def method(self, **changes: Any) -> ScalingMethod:
        """How scales come about, with other settings of `find_scales` where given."""
        names = ("objective", "direction", "space", "starts")
        settings = {name: getattr(self, name) for name in names}
        return ScalingMethod(fit=self.fit, settings={**settings, **changes})


EFFORT = ScalingEffort()
CIFAR10 = ("", "sample", "cifar10")  # names of data that the paper's tables are of


def published_for(name: str, context: StudyContext) -> PublishedTable:
    """The paper's table for the data at hand: its figures of other data stand beside nothing."""
    kind, table = _kind_of_data(context), PUBLISHED[name]
    own = PUBLISHED.tables.get(f"{name} {kind}")
    return own or (table if kind in CIFAR10 else replace(table, rows={}))


def _kind_of_data(context: StudyContext) -> str:
    """The name of the data that a study was given, or of its own."""
    spec = context.data if isinstance(context.data, str) else getattr(context.data, "spec", "")
    return spec.partition(":")[0]


@dataclass
class ScalingBench:
    """A model, images to judge on and others to fit scales and to choose a factor on."""

    context: StudyContext
    effort: ScalingEffort
    model: Model
    images: ImageDataset
    learn: ImageDataset

    @property
    def depth(self) -> int:
        return len(attention_layers(self.model))

    @property
    def threat(self) -> Threat:
        return Threat("linf", self.effort.eps)

    @property
    def memory(self) -> Path:
        """The folder that keeps what became of every batch."""
        return Path(self.effort.batches) if self.effort.batches else self.context.out / "batches"

    @cached_property
    def unsearched(self) -> Unsearched:
        return self.unsearched_of(self.model)

    def unsearched_of(self, model: nn.Module) -> Unsearched:
        """The control scales of another model than the bench's own."""
        effort, seed = self.effort, self.context.seed
        return Unsearched(
            model, self.learn, self.threat, effort.steps, seed, self.memory, effort.space, effort.draws
        )

    def compare(
        self,
        base: str,
        steps: int,
        method: ScalingMethod,
        label: str,
        *,
        threat: Threat | None = None,
        blocks: int | None = None,
    ) -> Comparison:
        """The plain, scaled and control attacks; `steps` 0 for an attack that has none.

        Scales of the controls are for the first `blocks` only, if a number is given.
        """
        with progress(label, total=len(self.images)) as advance:
            return compare_scaling(
                self.model,
                self.images,
                threat or self.threat,
                base=base,
                settings={"steps": steps} if steps else {},
                method=method,
                train=self.learn,
                others=self.unsearched.controls(blocks),
                batch=self.effort.batch,
                seed=self.context.seed,
                memory=self.memory,
                progress=advance,
            )

    def record(self, compared: Mapping[str, Comparison], gains: Mapping[str, float | None]) -> Record:
        """A record with every trial, told apart by what was compared, and claims for each of `gains`.

        `gains` has the paper's gain in points for those comparisons that test its effect, None where it
        gives none.
        """
        trials: list[Trial] = []
        for name, comparison in compared.items():
            trials += [replace(trial, scenario=name) for trial in comparison.trials]
        claims = [compared[name].claim(name, gain) for name, gain in gains.items()]
        over_random = [
            compared[name].claim(f"{name}, over {RANDOM}", over=RANDOM)
            for name in gains
            if RANDOM in compared[name].others
        ]
        record = self.context.record(self.model, self.images, trials=trials, claims=[*claims, *over_random])
        title = "Does scaling break more than the control? Pair by pair"
        record.tables = [claims_table(record.claims, title), *searches_table(compared)]
        record.notes = [tally(claims, over_random)]
        return record

    def note(self) -> str:
        return (
            f"Judged on the unscaled model, {len(self.images)} images, {self.threat}; scales fitted on "
            f"{len(self.learn)} others ({self.effort.fit}). {RANDOM.capitalize()}, and one factor that GAMA "
            "chose on those, go on with what plain leaves; the control is plain with as many passes as "
            f"plain and AAS together. {self._draws_note()} The paper: ViT-B/16."
        )

    def _draws_note(self) -> str:
        """What random scales can tell."""
        if self.effort.draws == 1:
            return "One draw of random scales can tell of that draw alone, not of what others would do."
        return f"Figures of {RANDOM} are means of {self.effort.draws} draws, AAS is one search."


def bench(context: StudyContext, effort: ScalingEffort, model: str | None = None) -> ScalingBench:
    """The given model and images, or the bundled robust ones."""
    context = replace(context, model=model or context.model)
    own = context.load(MODEL, lora=effort.lora or None, head=effort.head or None)
    network, learn, judged = context.prepare(own, "sample", learn=effort.learn, judged=IMAGES)
    return ScalingBench(context, effort, network, judged, learn)


def tally(claims: list[Claim], over_random: list[Claim]) -> str:
    """In how many comparisons the paper's effect is there, when all are tested together."""
    seen = seen_together([*claims, *over_random])
    count, random = sum(seen[: len(claims)]), sum(seen[len(claims) :])
    return (
        f"Against a control of the same cost the paper's effect is seen in {count} of {len(claims)} "
        f"comparisons, over {RANDOM} in {random} of {len(over_random)}, after Holm's correction over all of "
        "these; verdicts in tables are each its own."
    )


def furthest_move(comparison: Comparison) -> float:
    """By how much the ascent moved the scale that it moved most, over all batches."""
    return max(move for search in comparison.searches for move in search.moved)


def searches_table(compared: Mapping[str, Comparison], what: str = "") -> list[Table]:
    """How far the ascent took the scales from where it started, and where they ended; the last batch's."""
    rows: list[list[Any]] = []
    for name, one in compared.items():
        if one.searches:
            search = one.searches[-1]
            ends = (", ".join(f"{v:.2g}" for v in values) for values in (search.start, search.values))
            rows.append([name, f"{furthest_move(one):.2g}", *ends])
    columns = ["", "furthest move of a scale by the ascent", "last start, block by block", "end"]
    note = "A move near zero means that the scales are those of the random start."
    return [Table(f"{MOVED}{what}", columns, rows, note)] if rows else []


def arms(comparison: Comparison) -> dict[str, list[list[bool]]]:
    """Which images are still classified rightly under what, by name, a row a draw of scales."""
    found = {"plain": [comparison.plain.correct], "AAS": [comparison.scaled.correct]}
    found["plain and AAS"] = [comparison.both]
    found |= {f"plain and {n}": [t.correct for t in draws] for n, draws in comparison.others.items()}
    return found | {"control": [comparison.control.correct]}


def left(comparison: Comparison) -> dict[str, float]:
    """What each of the `arms` leaves, in per cent, the mean over draws."""
    return {name: share_over_seeds(rows)[0] for name, rows in arms(comparison).items()}


def arm_columns(comparison: Comparison) -> list[str]:
    """What stands over `shares`."""
    return ["clean %", *(f"{name} %" for name in arms(comparison))]


def shares(comparison: Comparison) -> list[float]:
    """The clean accuracy, and what each of the `arms` leaves, in per cent."""
    return [per_cent(comparison.clean), *left(comparison).values()]


def scaled_model(comparison: Comparison) -> list[float | None]:
    """The scaled model's own accuracy, clean and on images crafted on it, in per cent of all images."""
    if comparison.own is None:
        return [None, None]
    return [share * per_cent(comparison.clean) for share in comparison.own]


def over_axis(title: str, axis: str, compared: Mapping[int, Comparison]) -> tuple[Table, Curve]:
    """Accuracy left over an axis, as a table and as lines with their intervals."""
    lines: dict[str, list[list[float]]] = {}
    for at, comparison in compared.items():
        for name, rows in arms(comparison).items():
            lines.setdefault(name, []).append(point(at, *rows))
    cells: list[list[Any]] = [[f"{at:g}", *shares(one)] for at, one in compared.items()]
    columns = arm_columns(next(iter(compared.values())))
    return Table(title, [axis, *columns], cells), Curve(title, axis, "accuracy left, %", lines)
