"""ImageNet-A, -R and -C for the slides' columns, and other networks to stand beside TORA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from robvit.backbones.model import Model
from robvit.data import ImageDataset, open_data
from robvit.data.corruptions import SEVERITIES
from robvit.errors import InputError
from robvit.evaluation.classifiers import fitted
from robvit.evaluation.corruptions import ALEXNET_ERRORS, mean_corruption_error
from robvit.loading import load
from robvit.studies.judging import CLEAN, judge, per_cent
from robvit.studies.tora.common import AdapterBench
from robvit.studies.tora.efforts import TableEffort

COLUMNS = ["ImageNet-A", "ImageNet-R", "mCE"]


class VariantFigures(NamedTuple):
    """Accuracy on ImageNet-A and -R and the mCE of ImageNet-C, in per cent; None without a folder."""

    a: float | None = None
    r: float | None = None
    mce: float | None = None


@dataclass(frozen=True)
class ImageNetVariants:
    """The folders of ImageNet-A, -R and -C; empty where a set is not at hand."""

    a: str = ""
    r: str = ""
    c: str = ""

    def measure(self, at: AdapterBench, model: nn.Module, identity: str = "") -> VariantFigures:
        """What a network of the 1,000 classes reaches; on each set so many images as the study judges."""
        name = identity or _identity(model)
        sets = (("imagenet-a", self.a), ("imagenet-r", self.r))
        a, r = (self._accuracy(at, model, name, kind, folder) for kind, folder in sets)
        return VariantFigures(a, r, self._mce(at, model, name) if self.c else None)

    def _accuracy(
        self, at: AdapterBench, model: nn.Module, identity: str, kind: str, folder: str
    ) -> float | None:
        if not folder:
            return None
        images = at.sized(open_data(f"{kind}:{folder}", limit=len(at.judged)))
        return 100 - _error(at, model, identity, images, kind)

    def _mce(self, at: AdapterBench, model: nn.Module, identity: str) -> float:
        """The true mCE: every corruption at all severities of ImageNet-C's files, over AlexNet's errors."""
        errors: dict[str, list[float]] = {}
        names: list[str] | None = None
        for corruption in ALEXNET_ERRORS:
            for severity in SEVERITIES:
                split = f"{corruption}/{severity}"
                limit = len(at.judged) if names is None else None
                found = open_data(f"imagenet-c:{self.c}", split=split, subset=names, limit=limit)
                names = found.names  # the same images under every corruption
                error = _error(at, model, identity, at.sized(found), split)
                errors.setdefault(corruption, []).append(error / 100)
        return 100 * mean_corruption_error(errors)


def variants_of(effort: TableEffort) -> ImageNetVariants:
    """The folders that a table's settings name."""
    return ImageNetVariants(effort.imagenet_a, effort.imagenet_r, effort.imagenet_c)


def others(at: AdapterBench, names: Sequence[str]) -> Iterator[tuple[str, Model]]:
    """Networks by any name that `load` takes, at the judged images' size and for their classes."""
    for name in names:
        model = load(name, img_size=at.model.input_size[0])
        if model.classes != len(at.judged.classes):
            raise InputError(
                f"{name} has {model.classes} classes, the judged images {len(at.judged.classes)}; name "
                "networks for these classes"
            )
        yield name, model


def _error(at: AdapterBench, model: nn.Module, identity: str, images: ImageDataset, scenario: str) -> float:
    """The share of images that are misclassified, in per cent, among the classes that the set has."""
    name = f"{identity} {scenario}"
    (trial,) = judge(at.context, fitted(model, images), images, [CLEAN], scenario=scenario, identity=name)
    return 100 - per_cent(trial)


def _identity(model: nn.Module) -> str:
    assert isinstance(model, Model)
    return model.identity()
