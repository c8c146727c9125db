"""A white-box attacker of double masking: patches where the certificate leaves room, judged by the defence.

The rule itself has no gradient. The attacker climbs the answers that it rests on, of the whole image and of
some pairs of windows, so that every place of the image is seen; what that finds is put to the rule.

Legend for shapes: B batch, M windows, K classes, H and W of an image, s the patch's side.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from robvit.attacks.best import Best
from robvit.attacks.core import per_image_uniform
from robvit.attacks.counting import Count
from robvit.attacks.losses import objective_of
from robvit.attacks.patch import climb, worst_places
from robvit.attacks.validity import check_adversarial
from robvit.budget import PATCH
from robvit.certification.patches import PatchDefense
from robvit.certification.windows import Cover
from robvit.threat import Threat

PAIRS = 4  # of windows, beside the whole image: a place is under two of eight windows at most
LOCATIONS = 2  # places that are tried on each image


class Attacked(NamedTuple):
    """What patches left: labels (B,) that the defence gives, and sides (B,) of the squares that were changed.

    Passes count images that went through the network, with whatever was dropped.
    """

    label: torch.Tensor
    distance: torch.Tensor
    forward: int
    backward: int


class Answered(nn.Module):
    """Mean log-probabilities (B K) of images (B 3 H W), whole and with some pairs of windows dropped."""

    def __init__(self, defense: PatchDefense) -> None:
        super().__init__()
        self.dropping, cover = defense.dropping, defense.cover
        half = len(cover.windows) // 2
        first = range(0, half, max(1, half // PAIRS))
        self.views = [cover.kept(), *(cover.kept(number, number + half) for number in first)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.dropping.embed(x)
        each = [
            self.dropping.logits(embedded, torch.tensor(kept, device=x.device).expand(len(x), -1))
            for kept in self.views
        ]
        return torch.stack(each).log_softmax(-1).mean(0)


@torch.no_grad()
def attacked(
    defense: PatchDefense,
    x: torch.Tensor,
    y: torch.Tensor,
    label: torch.Tensor,
    safe: torch.Tensor,
    *,
    steps: int,
    seed: int,
) -> Attacked:
    """What the defence says when patches have done their worst: a label of y only if none succeeded.

    label: what it gives without a patch (B,).
    safe: the windows (B M) under which no patch can change the label; other places are tried first.
    """
    side, answered = defense.cover.patch, Answered(defense)
    threat, soft, judged = Threat(PATCH, side), Count(answered), 0
    adv, label, rows = x.clone(), label.clone(), (label == y).nonzero()[:, 0]
    noise = per_image_uniform(x, seed, "adaptive patch")
    allowed = open_places(defense.cover, safe, (x.shape[2], x.shape[3]), defense.dropping.token)
    goal = objective_of("cross_entropy", y[rows], targeted=False)
    places = (
        worst_places(soft, x[rows], goal, noise[rows], side, LOCATIONS, allowed[rows]) if len(rows) else []
    )
    for place in places:
        left = (label[rows] == y[rows]).nonzero()[:, 0]
        some = rows[left]
        if not len(some):
            break
        best, own = Best(x[some], early_stop=False), objective_of("cross_entropy", y[some], targeted=False)
        climb(soft, x[some], y[some], threat, best, own, place[left], noise[some], steps=steps)
        check_adversarial(x[some], best.adv, threat)
        answers = defense.asked(best.adv)
        adv[some], label[some] = best.adv, defense.decide(answers).label
        judged += answers.passes
    views = len(answered.views)
    return Attacked(label, threat.size(adv - x), views * soft.forward + judged, views * soft.backward)


def open_places(
    cover: Cover, safe: torch.Tensor, image: tuple[int, int], token: tuple[int, int]
) -> torch.Tensor:
    """Places of a patch that no safe window (B M) is over: (B H-s+1 W-s+1) bool."""
    rows, columns = (
        [(first // side, (first + cover.patch - 1) // side) for first in range(pixels - cover.patch + 1)]
        for pixels, side in zip(image, token, strict=True)
    )
    over = {(row, column): _windows_over(cover, row, column) for row in {*rows} for column in {*columns}}
    table = torch.tensor([[over[row, column] for column in columns] for row in rows], device=safe.device)
    return ~(table[None] & safe[:, None, None]).any(-1)


def _windows_over(cover: Cover, rows: tuple[int, int], columns: tuple[int, int]) -> list[bool]:
    """Which windows hold all tokens from the first to the last of these rows and columns."""
    corners = {row * cover.grid[1] + column for row in rows for column in columns}
    return [corners <= window for window in cover.windows]  # a window is a rectangle
