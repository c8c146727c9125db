"""Double masking (PatchCleanser, 2108.09135) with dropped tokens: labels that no small patch can change.

Every window of a `Cover` is dropped by itself. If all answers agree, that is the label. If not, each answer
that differs from the most frequent one is asked again with every second window dropped; one that then
stands alone and undisputed is the label, else the most frequent answer is. A label is certified if the
answers to all pairs of windows agree on it: whatever a patch holds, the window over it shows the network
the same tokens as the clean image does, so that the rule above ends at that label.

Legend for shapes: B batch, M windows, K classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from robvit.backbones.model import Model
from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import Cover, cover


class Defended(NamedTuple):
    """The labels (B,) of the defended inference, and where (B,) its first round disagreed."""

    label: torch.Tensor
    disputed: torch.Tensor


class PatchDefense(nn.Module):
    """A ViT behind double masking: images (B 3 H W) in [0,1] to scores (B K) whose largest is the label.

    Scores are the mean probabilities of the first round, with one added to the label that the rule gives.
    """

    def __init__(self, model: Model, patch: int, *, per_axis: int = 3) -> None:
        super().__init__()
        self.dropping = TokenDropping(model)
        self.cover: Cover = cover(model.input_size, self.dropping.token, patch, per_axis)
        self.passes = 0  # images that went through the network, with whatever was dropped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, embedded = self._first_round(x)
        label = self._decide(scores.argmax(-1), embedded).label
        return scores.softmax(-1).mean(1) + F.one_hot(label, scores.shape[-1])

    @torch.no_grad()
    def classify(self, x: torch.Tensor) -> Defended:
        """Labels, and which of them the first round disputed."""
        scores, embedded = self._first_round(x)
        return self._decide(scores.argmax(-1), embedded)

    def certify(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Which labels y (B,) no patch can change: those that all pairs of windows agree on. (B,) bool."""
        return self.certified_places(x, y, whole=True).all(1)

    @torch.no_grad()
    def certified_places(self, x: torch.Tensor, y: torch.Tensor, *, whole: bool = False) -> torch.Tensor:
        """Under which windows no patch can change the labels y (B,): (B M) bool.

        Those are windows whose pairs all give the label. With `whole` an image is given up with the first
        pair that does not, so that only a row of nothing but true means anything.
        """
        embedded = self.dropping.embed(x)
        held = torch.ones(len(x), len(self.cover.windows), dtype=torch.bool, device=x.device)
        for pair in self.cover.pairs:
            asked = (held.all(1) if whole else held[:, list(pair)].any(1)).nonzero()[:, 0]
            if len(asked):
                agree = self._logits(embedded[asked], *pair).argmax(-1) == y[asked]
                for number in set(pair):
                    held[asked, number] &= agree
        return held

    def _logits(self, embedded: torch.Tensor, *windows: int) -> torch.Tensor:
        self.passes += len(embedded)
        return self.dropping.logits(embedded, self.cover.kept(*windows))

    def _first_round(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (B M K) with each window dropped, and the embedded images."""
        embedded = self.dropping.embed(x)
        rounds = [self._logits(embedded, number) for number in range(len(self.cover.windows))]
        return torch.stack(rounds, dim=1), embedded

    def _decide(self, first: torch.Tensor, embedded: torch.Tensor) -> Defended:
        """The rule, from the answers (B M) of the first round."""
        most = first.mode(dim=1).values
        label = most
        for number in range(len(self.cover.windows)):
            asked = (first[:, number] != most).nonzero()[:, 0]
            for other in range(len(self.cover.windows)):
                if len(asked) == 0:
                    break
                answers = self._logits(embedded[asked], number, other).argmax(-1)
                asked = asked[answers == first[asked, number]]
            label = label.index_put((asked,), first[asked, number])
        return Defended(label, (first != most[:, None]).any(1))


def defend_patches(model: Model, patch: int, *, per_axis: int = 3) -> PatchDefense:
    """A model behind double masking, whose certified answers no square patch of so many pixels can change.

    model: a plain ViT with a classifier (ViT, DeiT, DINOv2, CLIP).
    patch: the side of the patch in pixels of the model's input.
    per_axis: windows along each side; more of them hide less and cost more passes.
    """
    return PatchDefense(model, patch, per_axis=per_axis)
