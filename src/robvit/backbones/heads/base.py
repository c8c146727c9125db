"""Heads on frozen features: linear classification, k nearest neighbours, linear segmentation.

A head is a small module from final tokens to logits. It remembers the fingerprint of the backbone
it was trained on and refuses any other. To add one, write a class with `fit` in a file of its own,
register it in HEADS, and name it in `__init__.py`.

Legend for shapes: B batch, N patches, D width, K classes, H W image.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import nn

from robvit.backbones.families import Tokens
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.backbones.validate import load_strict
from robvit.errors import IGNORE, InputError, WrongBackbone
from robvit.files import parse_json, written_whole
from robvit.progress import Advance, silent
from robvit.registry import NoInfo, Registry
from robvit.sharing import Shareable
from robvit.tensor_files import FORMATS, check_format, described, read_tensors

HEADS: Registry[type[FeatureHead], NoInfo] = Registry("head", NoInfo)
ABOUT = {"kind": str, "classes": int, "fingerprint": str, "names": list, "img_size": list, "resize": str}
MOST_CLASSES = 100_000
LEARNED_FROM = "learned_from"  # in a file: the checksums of images
MOST_REMEMBERED = 20_000  # of them, 400 kB

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


def pooled(tokens: Tokens) -> torch.Tensor:
    """Class token beside mean patch token, as in the Robustness Tokens paper: (B 2D); (B D) without class."""
    return torch.cat((*tokens.prefix[:, :1].unbind(1), tokens.patch.mean(1)), dim=1)


class FeatureHead(nn.Module, Shareable):
    """What all heads share: named classes, the backbone's fingerprint, what it was trained on, saving."""

    shared_as = "head"
    kind: ClassVar[str]
    learns_from: ClassVar[str] = "labels"

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
        self.trained_on = TrainedOn()
        self.learned_from: tuple[str, ...] = ()  # checksums of the images, so that no test has them

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

    def shared_facts(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("kind", "classes", "names", "fingerprint")}
        return facts | self.trained_on.settings()

    def write_shared(self, path: Path) -> None:
        """Without checksums of the images, by which strangers could tell whether one was among them."""
        self._write(path, ())

    @classmethod
    def read_shared(cls, path: Path) -> FeatureHead:
        return load_head(path)

    def save(self, path: str | Path) -> None:
        """Write the head as safetensors, whole or not at all."""
        self._write(path, self.learned_from)

    def _write(self, path: str | Path, learned_from: Sequence[str]) -> None:
        facts = {"format": FORMATS["head"].word, "head": json.dumps(self.shared_facts())}
        if learned_from:
            facts[LEARNED_FROM] = json.dumps(learned_from)
        with written_whole(path) as aside:
            save_file(self.state_dict(), aside, facts)

    def check(self, model: Model) -> None:
        """Refuse a backbone other than the one this head was trained on, or one tuned from it."""
        if self.fingerprint not in (model.original_fingerprint, model.fingerprint()):
            raise WrongBackbone(
                f"this {self.kind} head was trained on a backbone with fingerprint {self.fingerprint[:12]}, "
                f"{model.name} has {model.fingerprint()[:12]}; train a head with `robvit train head`"
            )
        self.trained_on.check("head", model)


def load_head(path: str | Path) -> FeatureHead:
    """A head from the file that `save` wrote."""
    state, facts = read_tensors(path, "a head file")
    check_format(path, facts, "head")
    about = described(facts, "head", path, ABOUT, img_size=[], resize="")  # older files do not say
    try:
        trained_on = TrainedOn.told_by({name: about.pop(name) for name in ("img_size", "resize")})
        with torch.device("meta"):  # what it claims takes no memory before the tensors agree
            head = HEADS[about.pop("kind")].blank(state, **about)
    except (LookupError, TypeError, RuntimeError, InputError) as error:
        raise InputError(f"{path} is damaged: {error}; train the head again") from None
    load_strict(head, state, str(path), assign=True)
    head.check_state(str(path))
    head.trained_on = trained_on
    head.learned_from = _checksums(facts.get(LEARNED_FROM, "[]"), path)
    return head.eval()


def _checksums(text: str, path: str | Path) -> tuple[str, ...]:
    """The checksums of images in a file, which may say anything."""
    found = parse_json(text, path, "a file of robvit's")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise InputError(f"{path} is damaged: {LEARNED_FROM} must be a list of texts; train the head again")
    return tuple(found[:MOST_REMEMBERED])


@torch.no_grad()
def collect(
    model: Model, batches: Batches, progress: Advance, pool: Callable[[Tokens], torch.Tensor] = pooled
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled features and labels of all images: (n 2D), or of what `pool` gives, and (n,)."""
    features, labels = [], []
    for x, y in batches:
        features.append(pool(model.tokens(x.to(model.mean.device))).cpu())
        labels.append(y.cpu())
        progress(len(x))
    if not features:
        raise InputError("a head needs at least one labelled image, got none")
    return torch.cat(features), torch.cat(labels)


def check_classes(labels: torch.Tensor, classes: int) -> None:
    """Refuse labels that no head for so many classes can learn from."""
    valid = labels[labels != IGNORE] if labels.numel() else labels
    if valid.numel() == 0:
        raise InputError("a head needs labelled images; these have no labels")
    low, high = int(valid.min()), int(valid.max())
    if low < 0 or high >= classes:
        raise InputError(f"labels must lie in 0..{classes - 1}, got {low}..{high}")
    if low == high:
        raise InputError(f"a head needs at least two classes, all labels are {low}")
