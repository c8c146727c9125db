"""What came of an attack, image by image."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from robvit.audit import Audit


@dataclass(frozen=True)
class Outcome:
    """What an attack did: images `adv` (B 3 H W), and for each what the judged model makes of it.

    `predicted` and `clean_predicted` are its classes (B,) after and before, or masks (B H W), or -1 where
    it returns features; `success` (B,) says that it errs on `adv`, `clean_correct` (B,) that it was right
    before. With `targets` (B,), the classes aimed at, success is to be classified so, and `labels` (B,) say
    what is `correct`. `distance` (B,) is in the threat's norm. Passes are sums over images and include the
    clean pass and the final judgement; `warnings` holds the names of warning classes, `audits` what an attack
    that tried a sample only says of the rest.
    """

    adv: torch.Tensor
    success: torch.Tensor
    predicted: torch.Tensor
    clean_correct: torch.Tensor
    clean_predicted: torch.Tensor
    distance: torch.Tensor
    forward: int = 0
    backward: int = 0
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    targets: torch.Tensor | None = None
    labels: torch.Tensor | None = None
    audits: tuple[Audit, ...] = ()

    @property
    def correct(self) -> torch.Tensor:
        """Which images (B,) are still classified correctly."""
        if self.targets is None or self.labels is None:
            return ~self.success
        return self.predicted == self.labels

    @property
    def robust_accuracy(self) -> float:
        """The share of images that are still classified correctly."""
        return float(self.correct.float().mean())

    def __repr__(self) -> str:
        return (
            f"Outcome({len(self.adv)} images, {int(self.clean_correct.sum())} correct before, "
            f"{int((~self.success).sum())} not misclassified after; {self.forward} forward and "
            f"{self.backward} backward passes, {self.seconds:.1f} s)"
        )
