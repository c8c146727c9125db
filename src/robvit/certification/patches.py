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
from robvit.certification.answers import UNKNOWN, Answers
from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import Cover, cover


class Defended(NamedTuple):
    """The labels (B,) of the defended inference, and where (B,) its first round disagreed."""

    label: torch.Tensor
    disputed: torch.Tensor


class PatchDefense(nn.Module):
    """A ViT behind double masking: images (B 3 H W) in [0,1] to logits (B K) whose largest is the label.

    Their softmax is halfway between the mean probabilities of the first round and the label that the rule
    gives.
    """

    def __init__(self, model: Model, patch: int, *, windows: int | tuple[int, int] = 3) -> None:
        super().__init__()
        self.dropping = TokenDropping(model)
        self.cover: Cover = cover(model.input_size, self.dropping.token, patch, windows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answers = self.asked(x)
        return scores(answers.single(), self.decide(answers).label)

    def exportable(self) -> nn.Module:
        """The same logits without a branch, so that `torch.export` and ONNX take it; it asks all pairs."""
        return StraightDefense(self.dropping, self.cover).eval()

    def asked(self, x: torch.Tensor) -> Answers:
        """Images (B 3 H W) of which windows can be dropped; what was answered once is not asked again."""
        return Answers(self.dropping, self.cover, x)

    @torch.no_grad()
    def classify(self, x: torch.Tensor) -> Defended:
        """Labels, and which of them the first round disputed."""
        return self.decide(self.asked(x))

    @torch.no_grad()
    def certify(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Which labels y (B,) no patch can change: those that all pairs of windows agree on. (B,) bool."""
        return self.safe(self.asked(x), y)

    @torch.no_grad()
    def decide(self, answers: Answers) -> Defended:
        """The rule; pairs are asked only where the first round disagrees, and until someone disputes."""
        if bool((answers.label.diagonal(dim1=1, dim2=2) == UNKNOWN).any()):
            answers.single()
        first = answers.label.diagonal(dim1=1, dim2=2)
        image, window = (first != majority(first)[:, None]).nonzero().unbind(1)
        for other in range(len(self.cover.windows)):
            agree = answers(image, window, torch.full_like(window, other)) == first[image, window]
            image, window = image[agree], window[agree]
        return rule(answers.label)  # what was not asked is under an answer that is disputed already

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
    """Double masking in a straight line: all pairs of windows are asked of every image."""

    def __init__(self, dropping: TokenDropping, cover: Cover) -> None:
        super().__init__()
        self.dropping = dropping
        pairs = cover.pairs
        kept = [cover.kept(*pair) for pair in pairs]
        lengths = sorted({len(tokens) for tokens in kept})
        order = [n for length in lengths for n, tokens in enumerate(kept) if len(tokens) == length]
        place = {pairs[n]: position for position, n in enumerate(order)}
        count = range(len(cover.windows))
        table = [[place[min(i, j), max(i, j)] for j in count] for i in count]
        self.register_buffer("table", torch.tensor(table), persistent=False)
        for length in lengths:
            some = torch.tensor([tokens for tokens in kept if len(tokens) == length])
            self.register_buffer(f"kept_{length}", some, persistent=False)
        self.lengths = lengths

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
        return scores(every[:, table.diagonal()], rule(every.argmax(-1)[:, table]).label)


def majority(first: torch.Tensor) -> torch.Tensor:
    """The most frequent of the answers (B M) to single windows: (B,)."""
    votes = (first[:, :, None] == first[:, None]).sum(2)
    return first.gather(1, votes.argmax(1, keepdim=True))[:, 0]


def rule(table: torch.Tensor) -> Defended:
    """The label from the answers to all pairs of windows (B M M), single ones on the diagonal."""
    first = table.diagonal(dim1=1, dim2=2)
    most = majority(first)
    minority = first != most[:, None]
    stands = minority & (table == first[:, :, None]).all(2)
    # Two that stand have the same label, which their common pair gives.
    winner = first.gather(1, stands.int().argmax(1, keepdim=True))[:, 0]
    return Defended(torch.where(stands.any(1), winner, most), minority.any(1))


def scores(first: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Logits (B K) from those of the first round (B M K) and the label (B,) that the rule gives."""
    mean = first.softmax(-1).mean(1)
    return ((mean + F.one_hot(label, mean.shape[-1])) / 2).clamp_min(1e-30).log()


def defend_patches(model: Model, patch: int, *, windows: int | tuple[int, int] = 3) -> PatchDefense:
    """A model behind double masking, whose certified answers no square patch of so many pixels can change.

    model: a plain ViT with a classifier (ViT, DeiT, DINOv2, CLIP).
    patch: the side of the patch in pixels of the model's input.
    windows: so many along each side, or rows and columns of them; more hide less and cost more passes.
    """
    return PatchDefense(model, patch, windows=windows)
