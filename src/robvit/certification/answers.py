"""What a ViT answers with windows of tokens dropped: asked many masks a pass, and each of them once.

Legend for shapes: B batch, M windows, K classes, n questions: an image by its row and two windows each.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import Cover

UNKNOWN = -1
# A share of the logits' range: the same tokens in a batch of another size may give logits that differ in
# their last digits, so that a certificate does not count on an answer that is nearer to a tie.
ROUNDING = 1e-4


class Answers:
    """The labels (B M M) of images with pairs of two windows dropped.

    `sure` tells where a label leads by more than rounding can do. `passes` counts images that went through
    the network, with whatever was dropped; `rows` of them go together, of any images and masks of a length.
    """

    def __init__(self, dropping: TokenDropping, cover: Cover, x: torch.Tensor, *, rows: int = 64) -> None:
        self.dropping, self.cover, self.rows = dropping, cover, rows
        self.embedded = dropping.embed(x)
        count = len(cover.windows)
        self.label = torch.full((len(x), count, count), UNKNOWN, device=x.device)
        self.sure = torch.zeros_like(self.label, dtype=torch.bool)
        self.passes = 0

    def first_round(self) -> torch.Tensor:
        """Logits (B M-1 K) with each pair of the first window dropped."""
        batch, count = self.label.shape[:2]
        image = torch.arange(batch, device=self.label.device).repeat_interleave(count - 1)
        other = torch.arange(1, count, device=self.label.device).repeat(batch)
        return self._ask(image, torch.zeros_like(other), other).view(batch, count - 1, -1)

    def whole(self, image: torch.Tensor) -> torch.Tensor:
        """Labels (n,) of images (n,) with nothing dropped."""
        if not len(image):
            return image
        self.passes += len(image)
        kept = torch.tensor(self.cover.kept(), device=image.device).expand(len(image), -1)
        return self.dropping.logits(self.embedded[image], kept).argmax(-1)

    def __call__(self, image: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Labels (n,) of images (n,) with the windows `first` and `second` (n,) dropped."""
        new = (self.label[image, first, second] == UNKNOWN).nonzero()[:, 0]
        if len(new):
            self._ask(image[new], first[new], second[new])
        return self.label[image, first, second]

    def _ask(self, image: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Logits (n K), whose labels are kept."""
        found: dict[int, torch.Tensor] = {}
        for numbers, kept in self._passes(first.tolist(), second.tolist()):
            logits = self.dropping.logits(self.embedded[image[numbers]], kept)
            self.passes += len(numbers)
            found.update(zip(numbers, logits, strict=True))
        logits = torch.stack([found[number] for number in range(len(image))])
        best = logits.topk(2, dim=1)
        lead, span = best.values[:, 0] - best.values[:, 1], logits.amax(1) - logits.amin(1)
        for one, other in ((first, second), (second, first)):
            self.label[image, one, other] = best.indices[:, 0]
            self.sure[image, one, other] = lead > ROUNDING * span
        return logits

    def _passes(self, first: list[int], second: list[int]) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Numbers of questions that go through the network together, and the tokens (n T) that each keeps."""
        kept = [self.cover.kept(*pair) for pair in zip(first, second, strict=True)]
        for length in sorted({len(tokens) for tokens in kept}):
            same = [number for number, tokens in enumerate(kept) if len(tokens) == length]
            for start in range(0, len(same), self.rows):
                numbers = same[start : start + self.rows]
                yield numbers, torch.tensor([kept[n] for n in numbers], device=self.embedded.device)
