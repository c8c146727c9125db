"""Segmentation: what a head sees in clean and in attacked images, as coloured masks."""

from __future__ import annotations

import torch

from robvit.drawing.grid import Grid, Row, Tile
from robvit.drawing.images import coloured_mask, photo
from robvit.errors import IGNORE, Unsupported
from robvit.explanation.subject import SHOWN, Subject, figure
from robvit.report.figure import Figure


@figure(
    title="What a segmentation head sees",
    caption="See how the mask falls apart in the attacked image, and whether it holds with tokens.",
    order=100,
)
def segmentation(subject: Subject) -> Figure:
    """Truth where there is one, then every mask, clean and attacked, with and without tokens."""
    if subject.task != "pixels":
        raise Unsupported(
            f"{subject.model.name} has no segmentation head; `robvit train head --kind segmentation` makes "
            "one, then give --head"
        )
    classes = subject.model.classes
    views = list(subject.views())
    masks = [subject.predict(view.model, view.x) for view in views]
    rows = []
    for place in range(min(SHOWN, len(subject.x))):
        tiles = [Tile(photo(subject.x[place]), subject.names[place]), Tile(photo(subject.adv[place]))]
        if subject.truth is not None:
            tiles.append(Tile(coloured_mask(subject.truth[place], classes)))
        for mask in masks:
            tiles.append(Tile(coloured_mask(mask[place], classes), _agreement(mask[place], subject, place)))
        rows.append(Row(tiles))
    truth = ["truth"] if subject.truth is not None else []
    return Figure(Grid(rows, ["image", "attacked image", *truth, *(view.name for view in views)]))


def _agreement(mask: torch.Tensor, subject: Subject, place: int) -> str:
    """The share of pixels that agree with the truth, or with the clean mask where there is none."""
    assert subject.target is not None
    target = subject.target[place]
    counted = (target >= 0) & (target != IGNORE)
    share = float((mask == target)[counted].float().mean())
    return f"{share:.0%} {'as the clean mask' if subject.truth is None else 'correct'}"
