"""What an attack adds to images, rescaled to grey."""

from __future__ import annotations

import torch

from robvit.backbones.model import Model
from robvit.drawing.grid import Grid, Row, Tile
from robvit.drawing.images import photo
from robvit.drawing.perturbation import grey_perturbation
from robvit.explanation.subject import SHOWN, Subject, figure
from robvit.report.figure import Figure


@figure(
    title="Perturbations, rescaled to grey",
    caption="See whether the object's shape shows in the perturbation, as for a robust model, or mere grain.",
    order=80,
)
def perturbation(subject: Subject) -> Figure:
    """Each image, as the attack on each model left it, and what the attack added."""
    models = subject.models()
    attacked = {
        name: subject.adv if model is subject.model else subject.attacked(model)
        for name, model in models.items()
    }
    rows = []
    for place in range(min(SHOWN, len(subject.x))):
        x = subject.x[place : place + 1]
        tiles = [Tile(photo(x[0]), subject.names[place])]
        for name, adv in attacked.items():
            one = adv[place : place + 1]
            tiles.append(Tile(photo(one[0]), _prediction(subject, models[name], one)))
            tiles.append(Tile(photo(grey_perturbation(x, one)[0])))
        rows.append(Row(tiles))
    columns = [column for name in attacked for column in (f"attacked, {name}", f"perturbation, {name}")]
    return Figure(Grid(rows, ["image", *columns]))


def _prediction(subject: Subject, model: Model, x: torch.Tensor) -> str:
    """What the model takes the image for, if it knows classes."""
    if subject.task != "classes":
        return ""
    return f"seen as {subject.class_name(int(subject.predict(model, x)[0]))}"
