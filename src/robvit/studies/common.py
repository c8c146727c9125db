"""What every study shares: what a person asks for, how it is run, and how its table is printed.

To add one, write a function `(request, *, its own settings) -> Record` under `@study(...)` in a file of
this folder. Its table puts our figures beside the paper's; the record says at which scale.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.errors import InputError
from robvit.evaluation.record import Record
from robvit.loading import load
from robvit.registry import Registry, unknown

Study = Callable[..., Record]


@dataclass(frozen=True)
class StudyInfo:
    """What is known about a study: the paper, what of it is repeated, and settings with their defaults."""

    paper: str
    title: str
    defaults: dict[str, Any]


STUDIES: Registry[Study, StudyInfo] = Registry("study", StudyInfo)


@dataclass(frozen=True)
class Request:
    """What a person wants: whatever is left out is the study's own choice.

    `images` sets the scale: the number of images judged. `out` is where long work is kept, so that
    an interrupted study goes on.
    """

    model: str | None = None
    data: str | None = None
    images: int | None = None
    img_size: int | None = None
    fit: str = "squash"
    seed: int = 0
    out: Path = field(default_factory=lambda: Path("runs/reproduce"))

    def load(self, default: str, **options: Any) -> Model:
        """The wanted model, or the study's."""
        return load(self.model or default, **{"img_size": self.img_size, **options})

    def dataset(self, default: str, split: str | None, size: int, images: int | None = None) -> ImageDataset:
        """At most `images` images of the wanted data, or of the study's, at this size."""
        return open_data(self.data or default, split=split, size=size, resize=self.fit, limit=images)


def study_record(request: Request, model: Model, images: ImageDataset, **fields: Any) -> Record:
    """A record of a study that judged this model on these images."""
    return Record(
        kind="study",
        model={"name": model.name, "fingerprint": model.fingerprint(), "input": list(model.input_size)},
        data=images.facts() | {"spec": request.data or "sample"},
        **{"trials": [], **fields},
    )


def study(name: str, *, paper: str, title: str) -> Callable[[Study], Study]:
    """File a study under the name that people type; its keyword arguments are its settings."""

    def file(function: Study) -> Study:
        parameters = inspect.signature(function).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        STUDIES.add(name, paper=paper, title=title, defaults=defaults)(function)
        return function

    return file


def reproduce(name: str, request: Request | None = None, /, **given: Any) -> Record:
    """Run a study; `given` are fields of the request or settings of the study."""
    entry = STUDIES.entry(name)
    asked = {key: value for key, value in given.items() if key in Request.__dataclass_fields__}
    settings = {key: value for key, value in given.items() if key not in asked}
    if request is not None and asked:
        raise InputError(f"give a request or its fields, not both; got {', '.join(asked)} as well")
    for key in settings:
        if key not in entry.info.defaults:
            raise unknown(f"setting of {name}", key, list(entry.info.defaults))
    record = entry.value(request or Request(**asked), **settings)
    scale = f"{record.data['count']} images of {record.data['spec']}"
    record.notes.insert(0, f"{entry.info.title}, after {entry.info.paper}. Scale: {scale}.")
    return record
