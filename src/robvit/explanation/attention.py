"""Attention over the image: what the class token sees, rollout, and who attends to whom.

Legend for shapes: B batch, A heads, T tokens, P prefix tokens, N patches.
"""

from __future__ import annotations

from typing import Any

import torch
from PIL import Image, ImageDraw

from robvit.attention.hooks import watch
from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.errors import InputError, Unsupported
from robvit.evaluation.record import Curve
from robvit.explanation import drawing
from robvit.explanation.drawing import Row, grid, heat, photo
from robvit.explanation.subject import SHOWN, Subject, View, figure

BLOCKS = 5  # shown of all

Maps = dict[int, torch.Tensor]  # by block, counted from 0


@torch.no_grad()
def attention_maps(model: Model, x: torch.Tensor) -> tuple[Maps, Tokens]:
    """The attention of every block whose keys are all the tokens, (B A T T) or (B A 1 T), and the tokens."""
    with watch(model, maps=True) as seen:
        tokens = model.tokens(x)
    total = sum(part.shape[1] for part in (tokens.prefix, tokens.patch, tokens.extra))
    whole = [(len(x), rows, total) for rows in (1, total)]  # windows would make more of the batch
    fits = {b: m for b, m in enumerate(seen.maps) if (len(m), *m.shape[-2:]) in whole}
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
    held = rows[:, first : first + tokens.patch.shape[1]]
    return held.reshape(len(rows), *tokens.grid)


def _asked(attention: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """The class token's row of an attention (B T T) or (B 1 T), or the mean row where there is none."""
    return attention[:, 0] if tokens.prefix.shape[1] else attention.mean(1)


def attention_by_block(model: Model, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the class token attends to in each block, over all heads, and its rollout: (B rows columns)."""
    maps, tokens = attention_maps(model, x)
    found = {f"block {i + 1}": over_patches(_asked(m.mean(1), tokens), tokens) for i, m in maps.items()}
    square = [m for m in maps.values() if m.shape[-2] == m.shape[-1]]
    if len(square) == len(maps) > 1:
        found["rollout"] = over_patches(_asked(rollout(square), tokens), tokens)
    return found


@figure(
    "attention",
    title="What the class token attends to",
    caption="Bright patches are attended to: see whether the object keeps its attention under attack.",
)
def attention(subject: Subject) -> dict[str, Any]:
    """Some blocks and the rollout, for the first images, clean and attacked, and attacked with tokens."""
    views = [view for view in subject.views() if view.name != "clean, tokens"]
    few = slice(0, 2 if subject.hardened else SHOWN)
    found = [attention_by_block(view.model, view.x[few]) for view in views]
    blocks = [name for name in found[0] if name != "rollout"]
    names = spread(blocks, BLOCKS) + ["rollout"] * ("rollout" in found[0])
    rows = []
    for place in range(len(subject.x[few])):
        for view, maps in zip(views, found, strict=True):
            tiles = [heat(maps[n][place], view.x[place]) if n in maps else None for n in names]
            rows.append(Row(view.name, [photo(view.x[place]), *tiles]))
    return {"image": grid(rows, ["image", *names])}


def spread(items: list[str], count: int) -> list[str]:
    """So many of the items, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return items
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


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
    "attending",
    title="Where patches attend, and which are attended to",
    caption="See where marked patches attend, and which patch or token draws the attention of all.",
)
def attending(subject: Subject) -> dict[str, Any]:
    """The last block's maps of the first image, and who receives the patches' attention in every block."""
    views = list(subject.views())
    rows, heads = [], [""]
    lines: dict[str, dict[str, list[list[float]]]] = {}
    for view in views:
        maps, tokens = attention_maps(view.model, view.x)
        square = {i: m for i, m in maps.items() if m.shape[-2] == m.shape[-1]}
        if not square:
            raise Unsupported(f"in {view.model.name} only the class token attends over the image")
        for block, m in square.items():
            for group, share in group_shares(m, tokens).items():
                lines.setdefault(group, {}).setdefault(view.name, []).append([block + 1.0, share])
        row, heads = _attending_row(view, list(square.values())[-1], tokens)
        rows.append(row)
    curves = [
        Curve(f"attention on {group}", "block", "fraction of the patches' attention", held)
        for group, held in lines.items()
        if any(share for line in held.values() for _, share in line)
    ]
    return {"image": grid(rows, heads), "curves": curves}


def _attending_row(view: View, attention: torch.Tensor, tokens: Tokens) -> tuple[Row, list[str]]:
    """The first image with three patches marked, what all attend to, and what each of the three does."""
    mean = attention.mean(1)[:1]
    first, (rows, columns) = tokens.prefix.shape[1], tokens.grid
    received = over_patches(mean[:, first : first + rows * columns].mean(1), tokens)[0]
    top = int(received.argmax())
    asked = {
        "A": (rows // 2) * columns + columns // 2,
        "B": (rows // 8) * columns + columns // 8,
        "C": top,
    }
    image = view.x[0]
    tiles = [_marked(image, asked, tokens.grid), heat(received, image)]
    for place in asked.values():
        tiles.append(heat(over_patches(mean[:, first + place], tokens)[0], image))
    heads = [
        "image",
        "attended to by all",
        "from A, the middle",
        "from B, a corner",
        "from C, most attended",
    ]
    return Row(view.name, tiles), heads


def _marked(x: torch.Tensor, places: dict[str, int], size: tuple[int, int]) -> Image.Image:
    """The image with a frame and a letter around some patches."""
    side = 420
    page = photo(x).resize((side, side), Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(page)
    wide, high = side / size[1], side / size[0]
    for letter, place in places.items():
        left, top = place % size[1] * wide, place // size[1] * high
        box = (left, top, left + wide, top + high)
        pen.rectangle(box, outline="black", width=6)
        pen.rectangle(box, outline="#ffd400", width=3)
        at = (min(left + wide + 4, side - 24), min(top, side - 34))
        pen.text(at, letter, fill="#ffd400", font=drawing.font(34), stroke_width=3, stroke_fill="black")
    return page
