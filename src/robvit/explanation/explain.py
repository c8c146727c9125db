"""`robvit.explain`: all figures of a subject as PNG files, a page and a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from robvit.errors import InputError, Unsupported
from robvit.evaluation.record import Curve, Record, Table
from robvit.explanation import FIGURES
from robvit.explanation.drawing import charts, sheet
from robvit.explanation.subject import Subject
from robvit.explanation.surfaces import surfaces
from robvit.files import written_whole
from robvit.report.figure import Figure
from robvit.report.html import write_report


def _silent(*_: Any, **__: Any) -> None:
    """Report to nobody."""


def explain(
    subject: Subject,
    out: str | Path,
    *,
    figures: Sequence[str] | None = None,
    data: str = "",
    command: str = "",
    report: Callable[..., None] = _silent,
) -> Record:
    """Draw figures into the folder `out`: a PNG for each, record.json and report.html.

    Without names all are drawn for which nothing is missing; the record says which are left out and
    why. A figure that is asked for by name and cannot be drawn is an error.
    """
    for name in figures or ():
        FIGURES.entry(name)
    plates, left_out = [], {}
    for name in figures or [entry.name for entry in FIGURES]:
        try:
            plates.append(FIGURES[name](subject))
        except Unsupported as error:
            if figures:
                raise
            left_out[name] = str(error)
        report(note=name)
    if not plates:
        raise InputError("no figure can be drawn: " + "; ".join(left_out.values()))
    out = Path(out)
    for plate in plates:
        save_png(as_image(plate), out / f"{plate.name}.png")
    record = _record(subject, plates, left_out)
    record.data["spec"], record.command = data or "images", command
    record.save(out / "record.json")
    # The plates show the curves in their places.
    write_report(replace(record, curves=[]), out / "report.html", plates=plates)
    return record


def as_image(plate: Figure) -> Image.Image:
    """The whole plate on paper: title, caption, image, reliefs and charts."""
    parts = [] if plate.image is None else [plate.image]
    parts += [surfaces(plate.surfaces)] if plate.surfaces else []
    parts += [charts(plate.curves)] if plate.curves else []
    return sheet(plate.title, plate.caption, parts)


def save_png(image: Image.Image, path: Path, *, levels: int = 256) -> None:
    """Write a PNG, whole or not at all; with fewer `levels` of each colour it is smaller."""
    step = 255 / (levels - 1)
    shown = image.point([round(round(value / step) * step) for value in range(256)] * 3)
    with written_whole(path) as aside:
        shown.save(aside, format="PNG", optimize=levels < 256)


def _record(subject: Subject, plates: list[Figure], left_out: dict[str, str]) -> Record:
    model, task = subject.model, subject.task
    return Record(
        kind="explain",
        model={
            "name": model.name,
            "identity": model.identity(),
            "input": list(model.input_size),
            "tokens": subject.hardened is not None,
            "beside": subject.beside.name if subject.beside else None,
        },
        data={"count": len(subject.x), "names": subject.names},
        trials=[],
        tables=[_verdicts(subject)] if task == "classes" else [],
        curves=[_named(plate, curve) for plate in plates for curve in plate.curves],
        protocol={
            "attack": subject.attack,
            "threat": str(subject.threat),
            **subject.settings,
            "figures": [plate.name for plate in plates],
            "not drawn": left_out,
        },
    )


def _named(plate: Figure, curve: Curve) -> Curve:
    """The curve under the plate's title, by which a record's reader knows it."""
    return replace(curve, title=f"{plate.title}: {curve.title}")


def _verdicts(subject: Subject) -> Table:
    """What is there, and what each model says of each image."""
    said = {view.name: subject.said(view.model, view.x).tolist() for view in subject.views()}
    rows = []
    for place, name in enumerate(subject.names):
        truth = "–" if subject.truth is None else subject.class_name(int(subject.truth[place]))
        rows.append([name, truth, *(subject.class_name(each[place]) for each in said.values())])
    return Table("What the model says", ["image", "truth", *said], rows)
