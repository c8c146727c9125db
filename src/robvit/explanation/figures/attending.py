"""Who attends to whom: where patches attend, and which patch or token draws the attention of all."""

from __future__ import annotations

import torch

from robvit.backbones.families import Tokens
from robvit.drawing.grid import Grid, Row, Tile
from robvit.drawing.images import heat, mark_patches, photo
from robvit.errors import Unsupported
from robvit.explanation.figures.attention import attention_maps, over_patches
from robvit.explanation.subject import Subject, View, figure
from robvit.record import Curve
from robvit.report.figure import Figure

COLUMNS = ["image", "attended to by all", "from A, the middle", "from B, a corner", "from C, most attended"]


def group_shares(attention: torch.Tensor, tokens: Tokens) -> dict[str, float]:
    """The part of the patches' attention (B A T T) that each kind of token receives, and the top patch.

    A kind that is not there receives nothing.
    """
    first, patches = tokens.prefix.shape[1], tokens.patch.shape[1]
    received = attention.mean((0, 1))[first : first + patches].mean(0)  # (T,), the mean over patches that ask
    groups = {
        "the class token": received[:1] if first else received[:0],
        "registers": received[1:first],
        "extra tokens": received[first + patches :],
        "the most attended patch": received[first : first + patches].max()[None],
    }
    return {name: float(part.sum()) for name, part in groups.items()}


@figure(
    title="Where patches attend, and which are attended to",
    caption="See where marked patches attend, and which patch or token draws the attention of all.",
    order=40,
)
def attending(subject: Subject) -> Figure:
    """The last block's maps of the first image, and who receives the patches' attention in every block."""
    rows = []
    lines: dict[str, dict[str, list[list[float]]]] = {}
    for view in subject.views():
        maps, tokens = attention_maps(view.model, view.x)
        square = {i: m for i, m in maps.items() if m.shape[-2] == m.shape[-1]}
        if not square:
            raise Unsupported(f"in {view.model.name} only the class token attends over the image")
        for block, m in square.items():
            for group, share in group_shares(m, tokens).items():
                lines.setdefault(group, {}).setdefault(view.name, []).append([block + 1.0, share])
        rows.append(_row(view, list(square.values())[-1], tokens))
    curves = [
        Curve(f"attention on {group}", "block", "fraction of the patches' attention", by_view)
        for group, by_view in lines.items()
        if any(share for line in by_view.values() for _, share in line)
    ]
    return Figure(Grid(rows, COLUMNS), curves)


def _row(view: View, attention: torch.Tensor, tokens: Tokens) -> Row:
    """The first image with three patches marked, what all attend to, and what each of the three does."""
    mean = attention.mean(1)[:1]
    first, (rows, columns) = tokens.prefix.shape[1], tokens.grid
    received = over_patches(mean[:, first : first + rows * columns].mean(1), tokens)[0]
    marked = {
        "A": (rows // 2) * columns + columns // 2,
        "B": (rows // 8) * columns + columns // 8,
        "C": int(received.argmax()),
    }
    image = photo(view.x[0])
    tiles = [mark_patches(view.x[0], marked, tokens.grid), heat(received, image)]
    tiles += [heat(over_patches(mean[:, first + at], tokens)[0], image) for at in marked.values()]
    return Row([Tile(tile) for tile in tiles], view.name)
