"""`robvit.explain`: figures of what a model does with images, as PNG files, a page and a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.defenses.pool import TokenPool, load_tokens
from robvit.defenses.tokens import RobustTokens
from robvit.drawing.images import save_png
from robvit.errors import InputError, Unsupported
from robvit.evaluation.classifiers import model_facts
from robvit.explanation.figures import NAMES
from robvit.explanation.inputs import Source, open_inputs
from robvit.explanation.subject import FIGURES, Subject, shown_name
from robvit.loading import load
from robvit.progress import Advance, silent
from robvit.record import Curve, Record, Table
from robvit.report.figure import Figure
from robvit.report.html import write_report
from robvit.threat import Threat

for _name in NAMES:
    import_module(f"robvit.explanation.figures.{_name}")


def explain(
    model: Model | str | Path,
    data: Source,
    *,
    figures: Sequence[str] | None = None,
    threat: Threat = Threat("linf", 8 / 255),  # noqa: B008  # frozen
    attack: str | None = None,
    settings: Mapping[str, Any] | None = None,
    labels: torch.Tensor | None = None,
    tokens: RobustTokens | TokenPool | torch.Tensor | str | Path | None = None,
    beside: Model | str | Path | None = None,
    resize: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    command: str = "",
    progress: Advance = silent,
) -> Record:
    """Draw what a model does with images, clean and attacked; returns the record of every curve.

    Args:
        model: a Model, or what `robvit.load` takes.
        data: images (B 3 H W) in [0,1], a dataset, or names: "photo.jpg", "sample:3", or a list of them.
        figures: names of `robvit explain --help`; without them all for which nothing is missing, and the
            record says which were left out and why. One that is named and cannot be drawn is an error.
        threat: the budget of the attack.
        attack: a name of `robvit attacks`; without one pgd on classes, feature on a model without a head,
            segpgd on masks. It knows nothing of the tokens.
        settings: of the attack, such as {"steps": 50}.
        labels: (B,), or masks (B H W), of images given as a tensor; without them the clean prediction.
        tokens: every figure also shows the model with these.
        beside: a second model, a robust one say, in figures where it helps.
        resize: "squash" or "crop", for images that are opened here; as for what the model carries if left
            out, else squash.
        seed: of the attack, and of what else is random.
        out: a folder for a PNG of each figure, report.html and record.json; without it nothing is written.
        command: how to repeat it, for the record.
        progress: called after each figure.
    """
    model = _open(model)
    inputs = open_inputs(data, model.input_size[0], fitting(model, resize))
    subject = Subject(
        model,
        inputs.x,
        threat,
        inputs.names,
        inputs.truth_for(model) if labels is None else labels,
        classes=inputs.classes_for(model),
        hardened=None if tokens is None else _harden(model, tokens),
        beside=None if beside is None else _open(beside, img_size=model.input_size[0]),
        attack=attack or "",
        settings=dict(settings or {}),
        seed=seed,
    )
    drawn, left_out = draw_figures(subject, figures, progress)
    record = _record(subject, drawn, left_out)
    record.data, record.command = record.data | inputs.facts, command
    if out is not None:
        for one in drawn:
            save_png(one.image(), Path(out) / f"{one.name}.png")
        record.save(Path(out) / "record.json")
        # The figures show the curves in their places.
        write_report(replace(record, curves=[]), Path(out) / "report.html", figures=drawn)
    return record


def draw_figures(
    subject: Subject, names: Sequence[str] | None = None, progress: Advance = silent
) -> tuple[list[Figure], dict[str, str]]:
    """The named figures, or all that can be drawn, and why the others cannot be."""
    entries = sorted(FIGURES, key=lambda entry: int(entry.info.order))
    if names:
        entries = [FIGURES.entry(name) for name in names]
    drawn, left_out = [], {}
    for entry in entries:
        try:
            drawn.append(entry.value(subject))
        except Unsupported as error:
            if names:
                raise
            left_out[entry.name] = str(error)
        progress(note=entry.name)
    if not drawn:
        raise InputError("no figure can be drawn: " + "; ".join(left_out.values()))
    return drawn, left_out


def _open(model: Model | str | Path, *, img_size: int | None = None) -> Model:
    if isinstance(model, str | Path):
        return load(str(model), img_size=img_size)
    if not isinstance(model, Model):
        raise InputError(
            f"figures look inside a robvit.Model, got {type(model).__name__}; give a name, or wrap a timm "
            "network as robvit.Model(net, mean=..., std=...)"
        )
    return model


def _harden(model: Model, tokens: RobustTokens | TokenPool | torch.Tensor | str | Path) -> Model:
    """The model with tokens; those that name the weights they belong to are checked."""
    tokens = load_tokens(tokens) if isinstance(tokens, str | Path) else tokens
    if not isinstance(tokens, torch.Tensor):
        tokens.check(model)
    return model.replace(tokens=tokens)


def _record(subject: Subject, drawn: list[Figure], left_out: dict[str, str]) -> Record:
    return Record(
        kind="explain",
        model={
            **model_facts(subject.model),
            "name": shown_name(subject.model),
            "tokens": model_facts(subject.hardened or subject.model)["tokens"],
            "beside": shown_name(subject.beside) if subject.beside else None,
        },
        data={"count": len(subject.x), "names": subject.names},
        trials=[],
        tables=[_predictions(subject)] if subject.task == "classes" else [],
        curves=[_titled(one, curve) for one in drawn for curve in one.curves],
        protocol={
            "attack": subject.attack,
            "threat": asdict(subject.threat.budget),
            **subject.settings,
            "figures": [one.name for one in drawn],
            "not drawn": left_out,
        },
    )


def _titled(figure: Figure, curve: Curve) -> Curve:
    """The curve under the figure's title, by which a record's reader knows it."""
    return replace(curve, title=f"{figure.title}: {curve.title}")


def _predictions(subject: Subject) -> Table:
    """What is there, and what each model predicts for each image."""
    pred = {view.name: subject.predict(view.model, view.x).tolist() for view in subject.views()}
    rows = []
    for place, name in enumerate(subject.names):
        truth = "–" if subject.truth is None else subject.class_name(int(subject.truth[place]))
        rows.append([name, truth, *(subject.class_name(each[place]) for each in pred.values())])
    return Table("Predictions", ["image", "truth", *pred], rows)
