"""Linear classification on frozen features."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from robvit.backbones.families import Tokens
from robvit.backbones.heads.base import HEADS, Batches, FeatureHead, check_classes, collect, pooled
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.errors import InputError, Unsupported
from robvit.progress import Advance, silent
from robvit.tensor_files import is_dense, read_pickled, read_tensors


@HEADS.add("linear")
class LinearHead(FeatureHead):
    """Logistic regression on class token beside mean patch: Tokens -> (B K)."""

    kind = "linear"

    def __init__(self, width: int, classes: int, fingerprint: str, names: list[str] | None = None) -> None:
        super().__init__(classes, fingerprint, names)
        self.linear = nn.Linear(width, classes)

    @staticmethod
    def pool(tokens: Tokens) -> torch.Tensor:
        """What the head sees of an image."""
        return pooled(tokens)

    def forward(self, tokens: Tokens, size: tuple[int, int]) -> torch.Tensor:
        out: torch.Tensor = self.linear(self.pool(tokens))
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
        x, y = collect(model, batches, progress, cls.pool)
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
        head.trained_on = TrainedOn(model.input_size)
        return head.eval()


@HEADS.add("linear-class")
class ClassTokenHead(LinearHead):
    """Logistic regression on the class token alone: Tokens -> (B K)."""

    kind = "linear-class"

    @staticmethod
    def pool(tokens: Tokens) -> torch.Tensor:
        if not tokens.prefix.shape[1]:
            raise Unsupported("this network has no class token; take a head on the mean patch, linear-mean")
        return tokens.prefix[:, 0]


@HEADS.add("linear-mean")
class MeanPatchHead(LinearHead):
    """Logistic regression on the mean patch token alone: Tokens -> (B K)."""

    kind = "linear-mean"

    @staticmethod
    def pool(tokens: Tokens) -> torch.Tensor:
        return tokens.patch.mean(1)


@HEADS.add("linear-prefix")
class PrefixHead(LinearHead):
    """Logistic regression on class token and registers, or DeiT's distillation token: Tokens -> (B K)."""

    kind = "linear-prefix"

    @staticmethod
    def pool(tokens: Tokens) -> torch.Tensor:
        return tokens.prefix.flatten(1)


def import_linear(
    path: str | Path, model: Model, *, on: str | None = None, names: list[str] | None = None
) -> LinearHead:
    """A head from a saved `nn.Linear` of yours, safetensors or torch's format, for this backbone.

    on: what it sees: "class" token, "mean" patch, or "both" side by side in this order; told by its width if
        left out, the class token where two are possible. A network without one has the mean patch alone.
    names: what its classes are called, in their order.
    """
    weight, bias = _linear_in(path)
    widths = {"mean": model.width}
    if model.has_class_token:
        widths = {"class": model.width, "mean": model.width, "both": 2 * model.width}
    elif on in ("class", "both"):
        raise InputError(
            f"{model.name} has no class token, got on={on!r}; a head on it sees the mean patch: on='mean' "
            "(--on mean)"
        )
    on = on or next((name for name, width in widths.items() if width == weight.shape[1]), next(iter(widths)))
    if on not in widths or weight.shape[1] != widths[on]:
        there = ", ".join(f"{width} for {name}" for name, width in widths.items())
        raise InputError(f"{path} takes {weight.shape[1]} features; {model.name} has {there}; got on={on!r}")
    kinds = {"class": ClassTokenHead, "mean": MeanPatchHead, "both": LinearHead}
    head = kinds[on](weight.shape[1], len(weight), model.fingerprint(), names)
    with torch.no_grad():
        head.linear.weight.copy_(weight)
        head.linear.bias.copy_(bias)
    head.trained_on = TrainedOn(model.input_size, model.resize)
    return head.eval()


def _linear_in(path: str | Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight (K D) and bias (K,) of the one linear layer in a file."""
    if str(path).endswith(".safetensors"):
        tensors, _ = read_tensors(path, "a linear layer")
    else:
        tensors = read_pickled(path, "a linear layer")
    if not isinstance(tensors, dict):
        raise InputError(f"{path}: expected the state dict of an nn.Linear, got {type(tensors).__name__}")
    weights = [key for key, value in tensors.items() if is_dense(value) and value.ndim == 2]
    if len(weights) != 1 or not str(weights[0]).endswith("weight"):
        raise InputError(f"{path}: expected the weight of one linear layer, got {len(weights)} matrices")
    weight = tensors[weights[0]].float()
    bias = tensors.get(str(weights[0])[: -len("weight")] + "bias", torch.zeros(len(weight)))
    if not is_dense(bias) or bias.shape != (len(weight),):
        raise InputError(f"{path}: the bias must be ({len(weight)},), one number a class")
    return weight, bias.float()
