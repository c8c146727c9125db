"""Linear classification on frozen features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from robvit.backbones.families import Tokens
from robvit.backbones.heads.base import HEADS, Batches, FeatureHead, check_classes, collect, pooled
from robvit.backbones.model import Model
from robvit.progress import Advance, silent


@HEADS.add("linear")
class LinearHead(FeatureHead):
    """Logistic regression on class token beside mean patch: Tokens -> (B K)."""

    kind = "linear"

    def __init__(self, width: int, classes: int, fingerprint: str, names: list[str] | None = None) -> None:
        super().__init__(classes, fingerprint, names)
        self.linear = nn.Linear(width, classes)

    def forward(self, tokens: Tokens, size: tuple[int, int]) -> torch.Tensor:
        out: torch.Tensor = self.linear(pooled(tokens))
        return out

    @classmethod
    def fit(
        cls,
        model: Model,
        batches: Batches,
        classes: int,
        *,
        names: list[str] | None = None,
        weight_decay: float = 1e-3,
        progress: Advance = silent,
    ) -> LinearHead:
        """Fit to convergence by L-BFGS on standardised features; the scaling is folded into the weights.

        `weight_decay` is the ridge on standardised weights, so it means the same for every backbone.
        """
        x, y = collect(model, batches, progress)
        check_classes(y, classes)
        head = cls(x.shape[1], classes, model.fingerprint(), names)
        mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
        z = (x - mean) / std
        weight = torch.zeros(classes, x.shape[1], requires_grad=True)
        bias = torch.zeros(classes, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(F.linear(z, weight, bias), y) + weight_decay * weight.square().sum() / 2
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            head.linear.weight.copy_(weight / std)
            head.linear.bias.copy_(bias - (weight / std) @ mean)
        return head.eval()
