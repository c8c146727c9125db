"""Activations: the largest after every block, and massive ones over tokens and channels."""

from __future__ import annotations

from typing import Any

import torch

from robvit.attention.hooks import watch
from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.evaluation.record import Curve
from robvit.explanation.subject import Subject, figure
from robvit.report.figure import Surface

STEMS = 600  # of a relief; all others are lower


@torch.no_grad()
def streams(model: Model, x: torch.Tensor) -> tuple[list[torch.Tensor], Tokens]:
    """The residual stream after every block, mostly (B T D), and the final tokens."""
    with watch(model, residual=True) as seen:
        tokens = model.tokens(x)
    return [stream.detach() for stream in seen.residual], tokens


def largest_activations(model: Model, x: torch.Tensor) -> torch.Tensor:
    """The largest absolute value in the class and patch tokens after each block: (B blocks)."""
    found, tokens = streams(model, x)
    registers, extra = tokens.prefix.shape[1], tokens.extra.shape[1]
    peaks = []
    for stream in found:  # class token, registers, patches, extra tokens
        flat = stream.flatten(1, -2)
        kept = torch.cat((flat[:, :1], flat[:, registers : flat.shape[1] - extra]), dim=1)
        peaks.append(kept.abs().amax(dim=(1, 2)))
    return torch.stack(peaks, dim=1)


def token_names(tokens: Tokens) -> list[str]:
    """What each token of a sequence is, without extra ones: class, register, or patch by row and column."""
    names = [f"register {i}" if i else "class token" for i in range(tokens.prefix.shape[1])]
    return names + [f"patch {r + 1}/{c + 1}" for r in range(tokens.grid[0]) for c in range(tokens.grid[1])]


@figure(
    "activations",
    title="Largest activation after every block",
    caption="See where the attacked line leaves the clean one, and whether tokens bring it back.",
)
def activations(subject: Subject) -> dict[str, Any]:
    """Means over the images, clean and attacked, with and without tokens."""
    lines = {}
    for view in subject.views():
        peaks = largest_activations(view.model, view.x).mean(0).tolist()
        lines[view.name] = [[float(block), peak] for block, peak in enumerate(peaks, start=1)]
    return {"curves": [Curve("mean over the images", "block", "largest |activation|", lines)]}


@figure(
    "massive",
    title="Activations over tokens and channels",
    caption="Look for channels that tower over all others on a few tokens, and how an attack changes them.",
)
def massive(subject: Subject) -> dict[str, Any]:
    """The first image, in the block whose clean activations are largest; one scale for all.

    Extra tokens are left out: what they become inside says something of the secret that they are.
    """
    first, _ = streams(subject.model, subject.x[:1])
    peaks = [float(stream.abs().max()) for stream in first]
    block = peaks.index(max(peaks))
    found = []
    for view in subject.views():
        stream, tokens = streams(view.model, view.x[:1])
        values = stream[block].flatten(1, -2)[0].abs()
        found.append((view.name, values[: len(values) - tokens.extra.shape[1]], tokens))
    reach = max(float(values.max()) for _, values, _ in found)
    title = f"block {block + 1} of {len(first)}"
    return {"surfaces": [surface(f"{name}, {title}", v, t, reach) for name, v, t in found]}


def surface(title: str, values: torch.Tensor, tokens: Tokens, reach: float) -> Surface:
    """The highest absolute activations (T D) as stems over tokens and channels."""
    count, width = values.shape
    top = values.flatten().topk(min(STEMS, values.numel()))
    stems = [
        [index % width, index // width, round(value, 4)]
        for value, index in zip(top.values.tolist(), top.indices.tolist(), strict=True)
    ]
    names = token_names(tokens)
    return Surface(
        title,
        "channel",
        "token",
        "|activation|",
        width,
        count,
        reach,
        stems,
        row_names=names if len(names) == count else [],
    )
