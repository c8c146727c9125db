"""Heads on frozen features: linear classification, k nearest neighbours, linear segmentation.

A head is a small module from final tokens to logits. It remembers the fingerprint of the backbone
it was trained on and refuses any other. To add one, write a class with `fit` and register it in HEADS.

Legend for shapes: B batch, N patches, D width, K classes, H W image.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.backbones.validate import load_strict
from robvit.errors import IGNORE, InputError, WrongBackbone
from robvit.files import described, read_tensors, written_whole
from robvit.progress import Advance, silent
from robvit.registry import NoInfo, Registry

HEADS: Registry[type[FeatureHead], NoInfo] = Registry("head", NoInfo)
FORMAT = "robvit-head-1"
ABOUT = {"kind": str, "classes": int, "fingerprint": str, "names": list}
MOST_CLASSES = 100_000

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


def pooled(tokens: Tokens) -> torch.Tensor:
    """Class token beside mean patch token, as in the Robustness Tokens paper: (B 2D); (B D) without class."""
    return torch.cat((*tokens.prefix[:, :1].unbind(1), tokens.patch.mean(1)), dim=1)


class FeatureHead(nn.Module):
    """What all heads share: named classes, the backbone's fingerprint, saving."""

    kind: ClassVar[str]

    def __init__(self, classes: int, fingerprint: str, names: list[str] | None = None) -> None:
        super().__init__()
        if not 1 <= classes <= MOST_CLASSES or len(names or []) not in (0, classes):
            raise InputError(
                f"a head tells 1 to {MOST_CLASSES} classes apart and names all or none of them, "
                f"got {classes} classes and {len(names or [])} names"
            )
        self.classes = classes
        self.fingerprint = fingerprint
        self.names = names or []

    @classmethod
    @abstractmethod
    def fit(
        cls,
        model: Model,
        batches: Batches,
        classes: int,
        *,
        names: list[str] | None = None,
        progress: Advance = silent,
    ) -> FeatureHead:
        """Learn from batches of images (B 3 H W) with labels (B,) or masks (B H W)."""

    @classmethod
    def blank(cls, state: dict[str, torch.Tensor], **about: Any) -> FeatureHead:
        """A head of the right shape to load `state` into; most are one linear layer."""
        return cls(state["linear.weight"].shape[1], **about)

    def check_state(self, path: str) -> None:
        """Refuse tensors that no training can have left; shapes have been compared already."""

    def save(self, path: str | Path) -> None:
        """Write the head as safetensors, whole or not at all."""
        about = {name: getattr(self, name) for name in ABOUT}
        with written_whole(path) as aside:
            save_file(self.state_dict(), aside, {"format": FORMAT, "head": json.dumps(about)})

    def check(self, model: Model) -> None:
        """Refuse a backbone other than the one this head was trained on."""
        if self.fingerprint != model.fingerprint():
            raise WrongBackbone(
                f"this {self.kind} head was trained on a backbone with fingerprint {self.fingerprint[:12]}, "
                f"{model.name} has {model.fingerprint()[:12]}; train a head with `robvit train head`"
            )


def load_head(path: str | Path) -> FeatureHead:
    """A head from the file that `save` wrote."""
    state, facts = read_tensors(path, "a head file")
    if facts.get("format") != FORMAT:
        raise InputError(f"{path} is not a head of format {FORMAT}; train one with `robvit train head`")
    about = described(facts, "head", path, ABOUT)
    try:
        with torch.device("meta"):  # what it claims takes no memory before the tensors agree
            head = HEADS[about.pop("kind")].blank(state, **about)
    except (LookupError, TypeError, RuntimeError, InputError) as error:
        raise InputError(f"{path} is damaged: {error}; train the head again") from None
    load_strict(head, state, str(path), assign=True)
    head.check_state(str(path))
    return head.eval()


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
        x, y = _collect(model, batches, progress)
        _check_classes(y, classes)
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


@HEADS.add("knn")
class NearestHead(FeatureHead):
    """k nearest neighbours by cosine, softly voting: Tokens -> log-votes (B K), differentiable."""

    kind = "knn"
    bank: torch.Tensor
    labels: torch.Tensor

    def __init__(
        self,
        bank: torch.Tensor,
        labels: torch.Tensor,
        classes: int,
        fingerprint: str,
        names: list[str] | None = None,
        neighbours: int = 20,
        temperature: float = 0.07,
    ) -> None:
        super().__init__(classes, fingerprint, names)
        self.neighbours, self.temperature = neighbours, temperature
        self.register_buffer("bank", bank)
        self.register_buffer("labels", labels)

    @classmethod
    def blank(cls, state: dict[str, torch.Tensor], **about: Any) -> NearestHead:
        return cls(torch.empty_like(state["bank"]), torch.empty_like(state["labels"]), **about)

    def check_state(self, path: str) -> None:
        if self.bank.ndim != 2 or self.labels.shape != self.bank.shape[:1] or not len(self.labels):
            raise InputError(f"{path} is damaged: it needs a label for each of its features")
        try:
            _check_classes(self.labels, self.classes)
        except InputError as error:
            raise InputError(f"{path} is damaged: {error}") from None

    def forward(self, tokens: Tokens, size: tuple[int, int]) -> torch.Tensor:
        near, where = (F.normalize(pooled(tokens), dim=1) @ self.bank.T).topk(
            min(self.neighbours, len(self.bank)), dim=1
        )
        votes = F.one_hot(self.labels[where], self.classes) * (near / self.temperature).softmax(1)[:, :, None]
        return (votes.sum(1) + 1e-6).log()

    @classmethod
    def fit(
        cls,
        model: Model,
        batches: Batches,
        classes: int,
        *,
        names: list[str] | None = None,
        progress: Advance = silent,
    ) -> NearestHead:
        """Remember the normalised features of all training images."""
        x, y = _collect(model, batches, progress)
        _check_classes(y, classes)
        return cls(F.normalize(x, dim=1), y, classes, model.fingerprint(), names).eval()


@HEADS.add("segmentation")
class SegmentationHead(FeatureHead):
    """One linear classifier for every patch, enlarged to the image: Tokens -> (B K H W)."""

    kind = "segmentation"

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
                held.append((model.tokens(x), masks))
            progress(len(x))
        if not held:
            raise InputError("a head needs at least one labelled image, got none")
        _check_classes(torch.cat([m.flatten() for _, m in held]), classes)
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
        return head.eval()


@torch.no_grad()
def _collect(model: Model, batches: Batches, progress: Advance) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled features and labels of all images: (n 2D), (n,)."""
    features, labels = [], []
    for x, y in batches:
        features.append(pooled(model.tokens(x)).cpu())
        labels.append(y.cpu())
        progress(len(x))
    if not features:
        raise InputError("a head needs at least one labelled image, got none")
    return torch.cat(features), torch.cat(labels)


def _check_classes(labels: torch.Tensor, classes: int) -> None:
    valid = labels[labels != IGNORE] if labels.numel() else labels
    if valid.numel() == 0:
        raise InputError("a head needs labelled images; these have no labels")
    low, high = int(valid.min()), int(valid.max())
    if low < 0 or high >= classes:
        raise InputError(f"labels must lie in 0..{classes - 1}, got {low}..{high}")
    if low == high:
        raise InputError(f"a head needs at least two classes, all labels are {low}")
