"""Attention over the image: what the class token sees in each block, and the rollout over all of them.

Legend for shapes: B batch, A heads, T tokens, P prefix tokens, N patches.
"""

from __future__ import annotations

import torch

from robvit.attention import watch
from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.drawing.grid import Grid, Row, Tile
from robvit.drawing.images import heat, photo
from robvit.errors import InputError, Unsupported
from robvit.explanation.subject import SHOWN, Subject, figure
from robvit.report.figure import Figure

BLOCKS = 5  # shown of all

Maps = dict[int, torch.Tensor]  # by block, counted from 0


@torch.no_grad()
def attention_maps(model: Model, x: torch.Tensor) -> tuple[Maps, Tokens]:
    """The attention of every block whose keys are all the tokens, (B A T T) or (B A 1 T), and the tokens."""
    with watch(model, maps=True) as seen:
        tokens = model.tokens(x)
    total = sum(part.shape[1] for part in (tokens.prefix, tokens.patch, tokens.extra))
    expected = [(len(x), rows, total) for rows in (1, total)]  # windows would make more of the batch
    fits = {b: m for b, m in enumerate(seen.maps) if (len(m), *m.shape[-2:]) in expected}
    if not fits:
        raise Unsupported(
            f"{model.name} attends over channels or windows, so it has no attention map of the whole "
            "image; a ViT, DeiT, DINOv2 or CLIP has"
        )
    return fits, tokens


def rollout(maps: list[torch.Tensor]) -> torch.Tensor:
    """How much of each token's output comes from each input token, (B A T T) a block -> (B T T).

    Every block passes on half of its input and half of what the mean of its heads attends to.
    """
    if not maps or any(m.ndim != 4 or m.shape[-2:] != maps[0].shape[-2:] for m in maps):
        raise InputError("rollout needs one attention (B A T T) a block, all of one size")
    size = maps[0].shape[-1]
    own = torch.eye(size, device=maps[0].device, dtype=maps[0].dtype)
    flow = own.expand(len(maps[0]), -1, -1)
    for attention in maps:
        flow = (0.5 * attention.mean(1) + 0.5 * own) @ flow
    return flow


def over_patches(rows: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """The part of attention rows (B T) that falls on patches, on their grid: (B rows columns)."""
    first = tokens.prefix.shape[1]
    return rows[:, first : first + tokens.patch.shape[1]].reshape(len(rows), *tokens.grid)


def _class_row(attention: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """The class token's row of an attention (B T T) or (B 1 T), or the mean row where there is none."""
    return attention[:, 0] if tokens.prefix.shape[1] else attention.mean(1)


def attention_by_block(model: Model, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the class token attends to in each block, over all heads, and its rollout: (B rows columns)."""
    maps, tokens = attention_maps(model, x)
    blocks = {f"block {i + 1}": over_patches(_class_row(m.mean(1), tokens), tokens) for i, m in maps.items()}
    square = [m for m in maps.values() if m.shape[-2] == m.shape[-1]]
    if len(square) == len(maps) > 1:
        blocks["rollout"] = over_patches(_class_row(rollout(square), tokens), tokens)
    return blocks


def spread(items: list[str], count: int) -> list[str]:
    """So many of the items, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


@figure(
    title="What the class token attends to",
    caption="Bright patches are attended to: see whether the object keeps its attention under attack.",
    order=30,
)
def attention(subject: Subject) -> Figure:
    """Some blocks and the rollout, for the first images, clean and attacked, and attacked with tokens."""
    views = [view for view in subject.views() if view.name != "clean, tokens"]
    few = slice(0, 2 if subject.hardened else SHOWN)
    maps = [attention_by_block(view.model, view.x[few]) for view in views]
    blocks = [name for name in maps[0] if name != "rollout"]
    names = spread(blocks, BLOCKS) + ["rollout"] * ("rollout" in maps[0])
    rows = []
    for place in range(len(subject.x[few])):
        for view, by_block in zip(views, maps, strict=True):
            image = photo(view.x[place])
            tiles = [Tile(heat(by_block[n][place], image) if n in by_block else None) for n in names]
            rows.append(Row([Tile(image), *tiles], view.name))
    return Figure(Grid(rows, ["image", *names]))
