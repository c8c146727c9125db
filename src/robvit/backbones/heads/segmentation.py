"""Linear segmentation on frozen patch features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from robvit.backbones.families import Tokens
from robvit.backbones.heads.base import HEADS, Batches, FeatureHead, check_classes
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.errors import IGNORE, InputError
from robvit.progress import Advance, silent


@HEADS.add("segmentation")
class SegmentationHead(FeatureHead):
    """One linear classifier for every patch, enlarged to the image: Tokens -> (B K H W)."""

    kind = "segmentation"
    learns_from = "masks"

    def __init__(self, width: int, classes: int, fingerprint: str, names: list[str] | None = None) -> None:
        super().__init__(classes, fingerprint, names)
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.linear = nn.Linear(width, classes)

    def forward(self, tokens: Tokens, size: tuple[int, int]) -> torch.Tensor:
        scores = self.linear(self.norm(tokens.patch.transpose(1, 2)).transpose(1, 2))  # (B N K)
        grid = scores.transpose(1, 2).unflatten(2, tokens.grid)  # (B K h w)
        return F.interpolate(grid, size=size, mode="bilinear", align_corners=False)

    @classmethod
    def fit(
        cls,
        model: Model,
        batches: Batches,
        classes: int,
        *,
        names: list[str] | None = None,
        epochs: int = 20,
        lr: float = 1e-2,
        seed: int = 0,
        progress: Advance = silent,
    ) -> SegmentationHead:
        """Adam on per-pixel cross-entropy over frozen patch features, which are computed once."""
        held: list[tuple[Tokens, torch.Tensor]] = []
        for x, masks in batches:
            with torch.no_grad():
                tokens = model.tokens(x.to(model.mean.device))
                prefix, extra, patch = (t.cpu() for t in tokens[:3])
                held.append((Tokens(prefix, extra, patch, tokens.grid), masks))
            progress(len(x))
        if not held:
            raise InputError("a head needs at least one labelled image, got none")
        check_classes(torch.cat([m.flatten() for _, m in held]), classes)
        torch.manual_seed(seed)
        head = cls(model.width, classes, model.fingerprint(), names)
        optimizer = torch.optim.AdamW(head.parameters(), lr=lr, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(held))
        for _ in range(epochs):
            for i in torch.randperm(len(held)).tolist():
                tokens, masks = held[i]
                size = (int(masks.shape[-2]), int(masks.shape[-1]))
                loss = F.cross_entropy(head(tokens, size), masks, ignore_index=IGNORE)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        head.trained_on = TrainedOn(model.input_size)
        return head.eval()
