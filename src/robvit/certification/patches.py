"""Double masking with dropped tokens: labels that no small patch can change.

Every answer is given with two windows of a `Cover` dropped. A window stands if all its pairs give one label;
windows that stand give the same one, since they have a pair in common. It is the label; where none stands,
the whole image's answer is. A label is certified if all pairs give it: whatever a patch holds, the pairs of
the window over it show the network the same tokens as the clean image does, so that this window stands.

PatchCleanser (2108.09135) also asks with single windows dropped, and wants them to agree: the proof has no
need of them, and they are a third of the cost and more.

Legend for shapes: B batch, M windows, K classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from robvit.backbones.model import Model
from robvit.certification.answers import UNKNOWN, Answers
from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import Cover, cover, patch_side, window_counts
from robvit.errors import InputError


class Defended(NamedTuple):
    """The labels (B,) of the defended inference, and which of them (B,) no window stands for."""

    label: torch.Tensor
    disputed: torch.Tensor


class PatchDefense(nn.Module):
    """A ViT behind double masking: images (B 3 H W) in [0,1] to logits (B K) whose largest is the label.

    Their softmax is halfway between the label that the rule gives and the mean probabilities of the first
    round, the pairs of the first window.
    """

    def __init__(self, model: Model, patch: int, *, windows: int | tuple[int, int] = 3) -> None:
        super().__init__()
        self.dropping = TokenDropping(model)
        self.cover: Cover = cover(model.input_size, self.dropping.token, patch, windows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits_and_disputed(x)[0]

    def logits_and_disputed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits (B K), and which of their labels (B,) no window stands for, to abstain from."""
        answers = self.asked(x)
        first, defended = answers.first_round(), self.decide(answers)
        return scores(first, defended.label), defended.disputed

    def exportable(self) -> nn.Module:
        """The same logits without a branch, so that `torch.export` and ONNX take it; it asks all pairs."""
        return StraightDefense(self.dropping, self.cover).eval()

    def asked(self, x: torch.Tensor) -> Answers:
        """Images (B 3 H W) of which windows can be dropped; what was answered once is not asked again."""
        return Answers(self.dropping, self.cover, x)

    @torch.no_grad()
    def classify(self, x: torch.Tensor) -> Defended:
        """Labels, and which of them are disputed."""
        return self.decide(self.asked(x))

    @torch.no_grad()
    def certify(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Which labels y (B,) no patch can change: those that all pairs of windows agree on. (B,) bool."""
        return self.safe(self.asked(x), y)

    @torch.no_grad()
    def decide(self, answers: Answers) -> Defended:
        """The rule; beyond the pairs of the first window, others are asked only until they disagree."""
        if bool((answers.label[:, 0, 1:] == UNKNOWN).any()):
            answers.first_round()
        undecided = ~standing(answers.label)[:, :1]
        for other in range(1, len(self.cover.windows)):
            possible = standing(answers.label, unknown=True) & undecided
            possible[:, other] = False
            image, window = possible.nonzero().unbind(1)
            answers(image, window, torch.full_like(window, other))
        label = rule(answers.label)
        disputed = label == UNKNOWN
        rest = disputed.nonzero()[:, 0]
        return Defended(label.index_put((rest,), answers.whole(rest)), disputed)

    def safe(self, answers: Answers, y: torch.Tensor) -> torch.Tensor:
        """Which labels y (B,) all pairs agree on, (B,); an image is given up with the first that does not.

        What is known already comes first, then pairs that drop the most: they cost least and are the first
        to disagree.
        """
        agree = (answers.label == y[:, None, None]) & answers.sure
        held = (agree | (answers.label == UNKNOWN)).all(2).all(1).nonzero()[:, 0]
        pairs = torch.tensor(self.cover.pairs, device=y.device)
        done = 0
        while done < len(pairs) and len(held):
            some = pairs[done : done + max(1, answers.rows // len(held))]
            done += len(some)
            agree = _agree(answers, y, held.repeat_interleave(len(some)), some.repeat(len(held), 1))
            held = held[agree.view(len(held), -1).all(1)]
        return torch.zeros_like(y, dtype=torch.bool).index_fill(0, held, True)

    def safe_places(self, answers: Answers, y: torch.Tensor) -> torch.Tensor:
        """Windows all of whose pairs give the labels y (B,): (B M); one is given up with the first."""
        held = torch.ones(len(y), len(self.cover.windows), dtype=torch.bool, device=y.device)
        for pair in torch.tensor(self.cover.pairs, device=y.device):
            image = held[:, pair].any(1).nonzero()[:, 0]
            agree = _agree(answers, y, image, pair.expand(len(image), 2))
            for window in pair:
                held[image, window] &= agree
        return held


def _agree(answers: Answers, y: torch.Tensor, image: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
    """Whether images (n,) with the windows (n 2) dropped surely get their labels: (n,) bool."""
    first, second = pair.unbind(1)
    return (answers(image, first, second) == y[image]) & answers.sure[image, first, second]


class StraightDefense(nn.Module):
    """Double masking in a straight line: the whole image and all pairs of windows are asked every time."""

    def __init__(self, dropping: TokenDropping, cover: Cover) -> None:
        super().__init__()
        self.dropping, self.cover = dropping, cover
        pairs = cover.pairs
        kept = [cover.kept(*pair) for pair in pairs]
        lengths = sorted({len(tokens) for tokens in kept})
        order = [n for length in lengths for n, tokens in enumerate(kept) if len(tokens) == length]
        place = {pairs[n]: position for position, n in enumerate(order)}
        count = range(len(cover.windows))
        table = [[place.get((min(i, j), max(i, j)), 0) for j in count] for i in count]
        self.register_buffer("table", torch.tensor(table), persistent=False)
        for length in lengths:
            some = torch.tensor([tokens for tokens in kept if len(tokens) == length])
            self.register_buffer(f"kept_{length}", some, persistent=False)
        self.lengths = lengths

    def __str__(self) -> str:
        rows, columns = self.cover.shape
        side = self.cover.patch
        return f"double masking against one patch of {side}x{side} pixels, {rows}x{columns} windows"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedded = self.dropping.embed(x)
        found = []
        for length in self.lengths:
            kept = self.get_buffer(f"kept_{length}")
            rows = embedded[:, None].expand(-1, len(kept), -1, -1).flatten(0, 1)
            each = kept[None].expand(x.shape[0], -1, -1).flatten(0, 1)  # not len(x), which fixes the batch
            found.append(self.dropping.logits(rows, each).unflatten(0, (x.shape[0], len(kept))))
        every = torch.cat(found, dim=1)
        table = self.get_buffer("table")
        label = rule(every.argmax(-1)[:, table])
        label = torch.where(label == UNKNOWN, self.dropping(x).argmax(-1), label)
        return scores(every[:, table[0, 1:]], label)


def claims(table: torch.Tensor) -> torch.Tensor:
    """What each window would be the label's witness of, from the answers to pairs (B M M): (B M)."""
    return torch.cat((table[:, :1, 1], table[:, 1:, 0]), dim=1)


def standing(table: torch.Tensor, *, unknown: bool = False) -> torch.Tensor:
    """The windows (B M) all of whose pairs (B M M) give one label, where `unknown` ones may still do so."""
    itself = torch.eye(table.shape[1], dtype=torch.bool, device=table.device)
    same = (table == claims(table)[:, :, None]) | itself
    stands: torch.Tensor = (same | (table == UNKNOWN) if unknown else same).all(2)
    return stands


def rule(table: torch.Tensor) -> torch.Tensor:
    """The label (B,) of a window that stands, from the answers to pairs (B M M); UNKNOWN if none does.

    Two that stand have the same label, which their common pair gives.
    """
    stands = standing(table)
    label = claims(table).gather(1, stands.int().argmax(1, keepdim=True))[:, 0]
    return torch.where(stands.any(1), label, UNKNOWN)


def scores(first: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Logits (B K) from those of the first round (B M-1 K) and the label (B,) that the rule gives."""
    mean = first.softmax(-1).mean(1)
    return ((mean + F.one_hot(label, mean.shape[-1])) / 2).clamp_min(1e-30).log()


def defend_patches(model: Model, patch: int, *, windows: int | tuple[int, int] = 3) -> PatchDefense:
    """A model behind double masking, whose certified answers no square patch of so many pixels can change.

    model: a plain ViT with a classifier (ViT, DeiT, DINOv2, DINOv3, EVA-02, CaiT, CLIP).
    patch: the side of the patch in pixels of the model's input.
    windows: so many along each side, or rows and columns of them; more hide less and cost more passes.
    """
    return PatchDefense(model, patch, windows=windows)


def open_defense(model: Model, patch: str, windows: str) -> PatchDefense:
    """`defend_patches` from what a person types: pixels ("14") or a share ("2%"), and "3" or "1x7"."""
    if not model.classes:
        raise InputError(f"{model.name} has no classes that a patch could change; give it a head")
    return defend_patches(model, patch_side(patch, model.input_size), windows=window_counts(windows))
