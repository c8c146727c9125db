"""Segmentation: what a head sees in clean and in attacked images, as coloured masks."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import torch
from PIL import Image

from robvit.errors import Unsupported
from robvit.explanation.drawing import Row, grid, photo
from robvit.explanation.subject import SHOWN, Subject, figure


def coloured_mask(mask: torch.Tensor, classes: int) -> Image.Image:
    """A mask (H W) as colours that differ in hue and in lightness; ignored pixels are white."""
    hues = [colorsys.hls_to_rgb(k / classes, 0.35 + 0.3 * (k % 2), 0.6) for k in range(classes)]
    palette = np.full((256, 3), 255, dtype=np.uint8)
    palette[:classes] = (np.array(hues) * 255).astype(np.uint8)
    return Image.fromarray(palette[mask.cpu().numpy()])


@figure(
    "segmentation",
    title="What a segmentation head sees",
    caption="See how the mask falls apart in the attacked image, and whether it holds with tokens.",
)
def segmentation(subject: Subject) -> dict[str, Any]:
    """Truth where there is one, then every mask, clean and attacked, with and without tokens."""
    if subject.task != "pixels":
        raise Unsupported(
            f"{subject.model.name} has no segmentation head; `robvit train head --kind segmentation` makes "
            "one, then give --head"
        )
    classes = subject.model.classes
    views = list(subject.views())
    masks = [subject.said(view.model, view.x) for view in views]
    rows = []
    for place in range(min(SHOWN, len(subject.x))):
        tiles = [photo(subject.x[place]), photo(subject.adv[place])]
        notes = [subject.names[place], ""]
        if subject.truth is not None:
            tiles.append(coloured_mask(subject.truth[place], classes))
            notes.append("")
        for mask in masks:
            tiles.append(coloured_mask(mask[place], classes))
            notes.append(_right(mask[place], subject, place))
        rows.append(Row("", tiles, notes))
    truth = ["truth"] if subject.truth is not None else []
    return {"image": grid(rows, ["image", "attacked image", *truth, *(view.name for view in views)])}


def _right(mask: torch.Tensor, subject: Subject, place: int) -> str:
    """The share of pixels that agree with the truth, or with the clean mask where there is none."""
    assert subject.target is not None
    wanted = subject.target[place]
    counted = (wanted >= 0) & (wanted != 255)
    share = float((mask == wanted)[counted].float().mean())
    return f"{share:.0%} {'as the clean mask' if subject.truth is None else 'right'}"
