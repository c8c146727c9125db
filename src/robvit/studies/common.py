"""What every study shares: what it is given, what it spends on learning, and the record it leaves.

To add one, write a function `(context, *, its own settings) -> Record` under `@study(...)` in a file of its
paper's folder. Its table puts our figures beside the paper's; the record says at which scale.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.data.folders import NoSplits
from robvit.errors import DataError, InputError
from robvit.evaluation.classifiers import model_facts
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import judged_images
from robvit.loading import load
from robvit.locks import kept_in
from robvit.record import Record
from robvit.registry import Registry, unknown
from robvit.settings import check_like
from robvit.verdict import power_of

Study = Callable[..., Record]
# What attacks in training change to be of one wide step (N-FGSM), as the recipe mini's.
WIDE = {"inner.steps": 1, "inner.step": 1, "inner.start": "wide", "inner.project": False}


@dataclass(frozen=True)
class StudySettings:
    """Settings that several studies share: every field is one of those studies that take it."""

    def changed(self, given: dict[str, Any]) -> Self:
        """The same with what was given in place of its own."""
        return replace(self, **given)


@dataclass(frozen=True)
class Effort(StudySettings):
    """What a study spends on learning."""

    learn: int  # images learned from


@dataclass(frozen=True)
class TrainingEffort(Effort):
    """What a study spends on training networks; with `training`, a folder, several studies share them."""

    epochs: float
    training: str = ""

    def folder(self, context: StudyContext) -> Path:
        """Where trainings are kept."""
        return Path(self.training) if self.training else context.out / "training"


@dataclass(frozen=True)
class StudyInfo:
    """What is known about a study: its paper, what of it is repeated, and settings with their defaults.

    `effort` holds those settings that it shares with others, such as what is spent on learning.
    """

    paper: str
    title: str
    defaults: dict[str, Any]
    effort: StudySettings | None = None


STUDIES: Registry[Study, StudyInfo] = Registry("study", StudyInfo)


class Prepared(NamedTuple):
    """A model, images to learn from, and others on which it is judged."""

    model: Model
    learn: ImageDataset
    judged: ImageDataset


@dataclass(frozen=True)
class StudyContext:
    """What a study was given; None leaves the choice to the study.

    `images` is the number of images judged. `out` takes shards, trainings and figures, so that an
    interrupted study resumes. Attacks are kept in `attacks`, if several studies are to share them.
    """

    model: str | Model | None = None
    data: str | ImageDataset | None = None
    images: int | None = None
    img_size: int | None = None
    resize: str = "squash"
    seed: int = 0
    out: Path = Path("runs/reproduce")
    attacks: Path | None = None

    def count(self, default: int) -> int:
        """How many images are judged; what so many can tell is said before anything runs."""
        return told(self.images or default)

    def learned(self, default: int) -> int:
        """How many images are learned from, in studies that show a training."""
        return self.images or default

    def model_name(self, default: str) -> str:
        """The name of the model, for studies that train it from its name."""
        if isinstance(self.model, Model):
            raise InputError(
                f"this study trains networks: give a name or a path, got {self.model.name} itself"
            )
        return self.model or default

    def data_name(self, default: str) -> str:
        """The name of the data, for studies that train on them."""
        if isinstance(self.data, ImageDataset):
            raise InputError("this study trains networks: give what names the data, got images")
        return self.data or default

    def load(self, default: str, **options: Any) -> Model:
        """The given model, or the study's own."""
        options = {"img_size": self.img_size, **options}
        if not isinstance(self.model, Model):
            return load(self.model or default, **options)
        if wanted := sorted(name for name, value in options.items() if value is not None):
            raise InputError(
                f"{self.model.name} is loaded already; give its name to choose {', '.join(wanted)}"
            )
        return self.model

    def dataset(self, default: str, split: str | None, size: int, limit: int | None = None) -> ImageDataset:
        """At most `limit` images of the given data, or of the study's own, at this size."""
        if isinstance(self.data, ImageDataset):
            chosen = judged_images(self.data, Subset(count=limit), split=None, limit=None)
            return chosen.resized(size, self.resize)
        return open_data(self.data or default, split=split, size=size, resize=self.resize, limit=limit)

    def part(self, default: str, split: str, size: int, limit: int | None = None) -> ImageDataset:
        """A part of the given data, or of the study's own; all of it where it has no parts."""
        try:
            return self.dataset(default, split, size, limit)
        except NoSplits:
            return self.dataset(default, None, size, limit)

    def splits(
        self, default: str, size: int, *, learn: int, judged: int
    ) -> tuple[ImageDataset, ImageDataset]:
        """Images to learn from and others to judge on: the data's own parts, or two shares of one folder."""
        if not isinstance(self.data, ImageDataset):
            try:
                first = self.dataset(default, "train", size, learn)
            except NoSplits:
                pass
            else:
                return first, self._held_out(default, size, judged)
        together = self.dataset(default, None, size, learn + judged)
        if len(together) < learn + judged:
            raise InputError(
                f"{together.spec or 'the data'} has {len(together)} images; {learn} are to learn from and "
                f"{judged} to judge on: give more, or set fewer (--images, --set learn=)"
            )
        return together.take(range(judged, len(together))), together.take(range(judged))

    def _held_out(self, default: str, size: int, limit: int) -> ImageDataset:
        """The part to test on, or to validate on where there is no other."""
        try:
            return self.dataset(default, "test", size, limit)
        except DataError:  # if it is there and broken, this comes up again
            return self.dataset(default, None, size, limit)

    def prepare(self, model: Model, default: str, *, learn: int, judged: int) -> Prepared:
        """A model with images at its size; the number judged is the study's unless another was given."""
        size = model.input_size[0]
        return Prepared(model, *self.splits(default, size, learn=learn, judged=self.count(judged)))

    def record(self, model: Model, images: ImageDataset, **parts: Any) -> Record:
        """A record of a study that judged this model on these images."""
        return Record("study", model_facts(model), images.facts(), **{"trials": [], **parts})


def study(
    name: str, *, paper: str, title: str, effort: StudySettings | None = None
) -> Callable[[Study], Study]:
    """File a study under the name that people type.

    Its settings are its keyword arguments and, if it takes an effort after the context, its fields.
    """

    def file(function: Study) -> Study:
        parameters = inspect.signature(function).parameters.values()
        settings = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        spent = {} if effort is None else vars(effort)
        STUDIES.add(name, paper=paper, title=title, effort=effort, defaults={**settings, **spent})(function)
        return function

    return file


def reproduce(
    study: str,
    *,
    model: str | Path | Model | None = None,
    data: str | Path | ImageDataset | None = None,
    images: int | None = None,
    img_size: int | None = None,
    resize: str = "squash",
    seed: int = 0,
    out: str | Path | None = None,
    command: str = "",
    **settings: Any,
) -> Record:
    """Repeat a table or figure of one of the papers: our figures beside the paper's.

    Args:
        study: its name, such as "rob-table2" (`robvit reproduce` lists all).
        model: the backbone, or what `load` takes; the study's own if left out.
        data: the images, or what `open_data` takes; the study's own if left out.
        images: how many images are judged: the scale of the run.
        img_size: side of the images in pixels; the model's own if left out.
        resize: "squash" images to a square, or "crop" their middle.
        seed: decides every random draw.
        out: a folder for the record, figures and all long work, which a second run takes up again.
        command: what the record is to say about how it was made.
        settings: those of the study, such as steps=10.
    """
    entry = STUDIES.entry(study)
    for key, value in settings.items():
        if key not in entry.info.defaults:
            raise unknown(f"setting of {study}", key, list(entry.info.defaults))
        check_like(key, value, entry.info.defaults[key])
    if images is not None and images < 1:
        raise InputError(f"images must be 1 or more, got {images}; leave it out for the study's own number")
    with kept_in(out) as folder:
        context = StudyContext(
            str(model) if isinstance(model, Path) else model,
            str(data) if isinstance(data, Path) else data,
            images,
            img_size,
            resize,
            seed,
            folder,
        )
        record = _run(entry.value, entry.info.effort, context, settings)
        scale = f"{record.data['count']} images of {record.data['spec'] or 'your own'}"
        record.notes.insert(0, f"{entry.info.title}, after {entry.info.paper}. Scale: {scale}.")
        if record.trials:
            judged = len(record.trials[0].correct)
            record.notes.insert(1, f"Pair by pair, {power_of(judged)}.")
        record.command = command
        record.protocol |= {"study": study, "seed": seed, "settings": settings}
        if out is not None:
            record.save(folder / "record.json")
    return record


def _run(
    function: Study, effort: StudySettings | None, context: StudyContext, settings: dict[str, Any]
) -> Record:
    """Call a study, with the settings that are its effort's as a changed effort."""
    if effort is None:
        return function(context, **settings)
    names = {field.name for field in fields(effort)}
    spent = {key: value for key, value in settings.items() if key in names}
    others = {key: value for key, value in settings.items() if key not in names}
    return function(context, effort.changed(spent), **others)


def told(images: int) -> int:
    """So many images are judged: say what they can tell, before anything runs."""
    print(f"{power_of(images)}.", file=sys.stderr, flush=True)
    return images


def mean(values: list[float]) -> float:
    return sum(values) / len(values)
