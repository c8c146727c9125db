"""Losses on embeddings instead of classes: FARE and TeCoA, and what the label-free tuning shares with them.

Legend for shapes: B batch, K classes, D width.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from robvit.attacks import losses as objectives
from robvit.attacks.losses import Loss as AttackLoss
from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.tensor_files import read_tensors
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import LOSSES, Loss


class _Embedding(Loss):
    """What feature losses share: the model's output is an embedding (B D), compared with the original's."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # What went on from an earlier tuning is no longer the original, and knows it.
        original = (getattr(model, "original", None) or copy.deepcopy(model)).eval().requires_grad_(False)
        self.original = functools.partial(_without_gradients, original)  # no submodule: it is no state


def _without_gradients(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(x)
        return output


@LOSSES.add("fare")
class Fare(_Embedding):
    """FARE (2402.12336): attacked embeddings stay at the original's clean ones; no labels are needed.

    A network with a classifier should be loaded without it; what chooses the checkpoint is the cosine
    of attacked embeddings with the original's clean ones.
    """

    needs_labels = False
    needs_classifier = False
    attack_loss: str | AttackLoss = "embedding_l2"
    measure = "cosine"

    def __init__(self, model: nn.Module, images: ImageDataset) -> None:
        super().__init__(model)

    def target(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.original(x)

    def judge(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cosine_similarity(output, target, dim=-1)

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        anchor = self.original(x)
        adv = attack(model, x, anchor, "embedding_l2")
        return objectives.embedding_l2(model(adv), anchor).mean()


@LOSSES.add("tecoa")
class Tecoa(_Embedding):
    """TeCoA-style (2212.07016): attacked embeddings are classified by their cosine with class embeddings.

    `classes` is a safetensors file whose tensor "classes" (K D) holds one text embedding a class; left
    out, a class is the mean of the original's embeddings of its training images.
    """

    needs_classifier = False
    classes: torch.Tensor

    def __init__(
        self,
        model: nn.Module,
        images: ImageDataset,
        *,
        classes: str | None = None,
        scale: float = 100.0,
        most: int = 2000,
    ) -> None:
        super().__init__(model)
        self.scale = scale
        held = _from_file(Path(classes)) if classes else class_means(self.original, model, images, most)
        self.register_buffer("classes", F.normalize(held, dim=1))
        self.attack_loss = self._wrongness

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Scaled cosines with the classes: (B D) -> (B K)."""
        return self.scale * F.normalize(output, dim=1) @ self.classes.T

    def judge(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (self.logits(output).argmax(1) == target).float()

    def forward(
        self, model: nn.Module, x: torch.Tensor, y: torch.Tensor, attack: InnerAttack
    ) -> torch.Tensor:
        adv = attack(model, x, y, self._wrongness)
        return F.cross_entropy(self.logits(model(adv)), y)

    def _wrongness(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return objectives.cross_entropy(self.logits(output), target)


def class_means(
    embed: Callable[[torch.Tensor], torch.Tensor], model: nn.Module, images: ImageDataset, most: int
) -> torch.Tensor:
    """The mean embedding (K D) of each class over at most `most` images, evenly spread."""
    device = next(model.parameters()).device
    some = images.take(range(0, len(images), -(-len(images) // most)))
    sums, counts = torch.zeros(0), torch.zeros(len(images.classes))
    for x, y in some.batches(64):
        output = F.normalize(embed(x.to(device)), dim=1).cpu()
        sums = sums if len(sums) else torch.zeros(len(images.classes), output.shape[1])
        sums.index_add_(0, y, output)
        counts += torch.bincount(y, minlength=len(counts))
    if bool((counts == 0).any()):
        absent = images.classes[int((counts == 0).nonzero()[0])]
        raise InputError(f"class {absent!r} has no image among {len(some)}; give class embeddings in a file")
    return (sums / counts[:, None]).to(device)


def _from_file(path: Path) -> torch.Tensor:
    tensors, _ = read_tensors(path, "a file of class embeddings")
    if "classes" not in tensors or tensors["classes"].ndim != 2:
        raise InputError(f'{path} must hold a tensor "classes" (K D), got {", ".join(tensors)}')
    return tensors["classes"].float()
