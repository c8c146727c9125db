"""Massive activations, over tokens and channels."""

from __future__ import annotations

import torch

from robvit.backbones.families import Tokens
from robvit.drawing.surfaces import Surface
from robvit.explanation.figures.activations import streams
from robvit.explanation.subject import Subject, figure
from robvit.report.figure import Figure

STEMS = 600  # of a surface; all others are lower


def token_names(tokens: Tokens) -> list[str]:
    """What each token of a sequence is, without extra ones: class, register, or patch by row and column."""
    names = [f"register {i}" if i else "class token" for i in range(tokens.prefix.shape[1])]
    return names + [f"patch {r + 1}/{c + 1}" for r in range(tokens.grid[0]) for c in range(tokens.grid[1])]


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


@figure(
    title="Activations over tokens and channels",
    caption="Look for channels that tower over all others on a few tokens, and how an attack changes them.",
    order=20,
)
def massive(subject: Subject) -> Figure:
    """The first image, in the block whose clean activations are largest; one scale for all.

    Extra tokens are left out: what they become inside says something of the secret that they are.
    """
    first, _ = streams(subject.model, subject.x[:1])
    peaks = [float(stream.abs().max()) for stream in first]
    block = peaks.index(max(peaks))
    shown = []
    for view in subject.views():
        residual, tokens = streams(view.model, view.x[:1])
        values = residual[block].flatten(1, -2)[0].abs()
        shown.append((view.name, values[: len(values) - tokens.extra.shape[1]], tokens))
    reach = max(float(values.max()) for _, values, _ in shown)
    where = f"block {block + 1} of {len(first)}"
    return Figure(surfaces=[surface(f"{name}, {where}", v, t, reach) for name, v, t in shown])
