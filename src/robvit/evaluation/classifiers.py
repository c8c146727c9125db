"""Anything that classifies images, made ready to be judged.

    robvit-mini, dinov2-small, vit_tiny_patch16_224    a name that `robvit.load` knows, or a checkpoint
    torchvision:resnet18                               torchvision's network with its default weights
    model.onnx, model.torchscript                      a black box: only its answers can be had
    hf:facebook/dinov2-small, local-dir:PATH           a folder of transformers' or timm's, on the hub or here
    package.module:function                            a function of yours; it is imported and called

The last runs the code of that module, so name only modules you trust. It returns a model of robvit's, a
network of timm's, which is normalised as it says, or any callable from pixels in [0,1] to logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robvit import plugins
from robvit.attacks.core import modules_of
from robvit.backbones import validate as checked
from robvit.backbones import weights, zoo
from robvit.backbones.model import Model
from robvit.backbones.programs import is_program, program_file
from robvit.backbones.zoo import TORCHVISION
from robvit.data import ImageDataset
from robvit.errors import DataError, InputError, Unsupported, WeightsUnavailable
from robvit.evaluation.black_boxes import (
    STATISTICS,
    BlackBox,
    Normalised,
    Statistics,
    open_black_box,
    statistics_of,
)
from robvit.evaluation.probe import answers_digest
from robvit.files import sha256
from robvit.loading import brought, load, says_normalisation
from robvit.registry import unknown
from robvit.tensor_files import tensors_sha256

BLACK_BOX = "answers only"  # what a record says of access to the model
OUT_OF_PLAY = -1e4  # the logit of classes a set has no images of: finite, so that losses stay numbers


@dataclass(frozen=True)
class Classifier:
    """A network on pixels (B 3 H W) in [0,1] to logits (B K) with what names it.

    `identity` is a checksum of weights and all else that decides the output, as far as it can be seen;
    `size` is the side of the images it takes, or None for any.
    """

    net: nn.Module
    name: str
    identity: str
    size: int | None = None
    file_sha256: str = ""  # of the file that was named by its path
    doubt: str = ""  # a reason to think that it is not judged as it was meant

    @property
    def black_box(self) -> bool:
        """Whether only its answers can be had, so that no gradient attack is possible."""
        return isinstance(self.net, BlackBox)

    @property
    def hardened(self) -> bool:
        """Whether it is a model with secret tokens."""
        return isinstance(self.net, Model) and self.net.extra is not None


class CallableModule(nn.Module):
    """Any callable as a module; the networks inside it come along."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.inner = nn.ModuleList(modules_of(function))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class ClassSubset(nn.Module):
    """A classifier that may only answer with some of its classes, as ImageNet-A and -R want it."""

    absent: torch.Tensor

    def __init__(self, net: nn.Module, classes: list[int], total: int) -> None:
        super().__init__()
        self.net = net
        absent = torch.ones(total, dtype=torch.bool)
        absent[classes] = False
        self.register_buffer("absent", absent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(x)
        return logits.masked_fill(self.absent, OUT_OF_PLAY)


# What can be judged: a name, a checkpoint, a classifier that is open already, or any callable to logits.
Judged = str | Path | Classifier | Callable[[torch.Tensor], torch.Tensor]


def open_classifier(
    model: Judged,
    *,
    arch: str | None = None,
    img_size: int | None = None,
    normalise: str | Statistics | None = None,
    **own: Any,
) -> Classifier:
    """A classifier from a name, an ONNX or TorchScript file, `module:function`, any callable; or itself.

    `normalise` is "imagenet", "none" or (mean, std), where the model does not say so itself. `own` are the
    options of `robvit.load` (tokens, head) and are refused by what is no model of robvit's.
    """
    if isinstance(model, Classifier):
        return model
    if isinstance(model, Model):
        return _ours(model)
    if not isinstance(model, str | Path):
        return _foreign(_normalised(model, normalise), name_of(model), img_size)
    text = str(model)
    given = sorted(name for name, value in own.items() if value is not None)
    if is_program(text):
        _refuse([*given, *(["arch"] if arch else [])], text)
        return _program(program_file(text), img_size, normalise)
    if text.startswith(TORCHVISION) or (arch or "").startswith(TORCHVISION):
        _refuse([*given, *(["normalise"] if normalise else [])], text)
        return _torchvision(text, arch, img_size)
    if plugins.is_spec(text) and not given and not zoo.is_folder(text):  # hf:NAME is no module
        made = plugins.made(text)
        says = isinstance(made, nn.Module) and says_normalisation(made)
        if isinstance(made, Model) or (says and normalise is None):
            return _ours(brought(made, text, "model", img_size))
        if not callable(made):
            raise InputError(
                f"{text} must return a callable from images to logits, got {type(made).__name__}"
            )
        return _foreign(_normalised(made, normalise), text, img_size)
    wishes = {**own, **({} if normalise is None else {"normalise": normalise})}
    ours = _ours(load(text, arch=arch, img_size=img_size, **wishes))
    file = Path(text).expanduser()
    return replace(ours, file_sha256=sha256(file)) if file.is_file() else ours


def model_facts(model: Classifier | Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """What a record tells of a model: its name, and what decides its output as far as that can be seen."""
    net = model.net if isinstance(model, Classifier) else model
    held = model if isinstance(model, Classifier) else None
    file = {"file_sha256": held.file_sha256} if held and held.file_sha256 else {}
    if isinstance(net, Model):
        return net.facts() | file
    facts = {"name": name_of(model), **({"identity": held.identity} if held else {}), **file}
    if isinstance(net, BlackBox):
        facts |= {"access": f"{BLACK_BOX} ({net.kind})", "normalise": net.statistics()}
    return facts


def name_of(model: object) -> str:
    """What to call a model in words."""
    return str(getattr(model, "name", None) or getattr(model, "__qualname__", type(model).__qualname__))


@torch.no_grad()
def check_fit(classifier: Classifier, images: ImageDataset, *, masks: bool = False) -> int:
    """K, the number of classes; images without labels, or of other classes, are refused.

    With `masks`, images with masks are taken too, for a model that returns a class for each pixel.
    """
    if images.kind != "labels" and not (masks and images.kind == "masks"):
        raise DataError(
            f"judging a classifier needs images with labels, these have {images.kind}; "
            "sort them into one folder a class"
        )
    device = next(iter(classifier.net.parameters()), torch.zeros(0)).device
    output = classifier.net(images[0][0][None].to(device))
    ndim, shape = (2, "(B K)") if images.kind == "labels" else (4, "(B K H W)")
    if not isinstance(output, torch.Tensor) or output.ndim != ndim or len(output) != 1 or output.shape[1] < 2:
        got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise InputError(f"{classifier.name} must return logits {shape} with K >= 2, got {got} for one image")
    total = int(output.shape[1])
    known = len(images.classes) or max(images.labels) + 1
    if images.class_map is not None and total == known:
        return total
    if max(images.labels) >= total or (images.classes and known != total):
        raise InputError(
            f"{classifier.name} tells {total} classes apart, the images have {known}; "
            "choose other images, or train a head on them (`robvit train head`)"
        )
    return total


def aligned(classifier: Classifier, images: ImageDataset) -> ImageDataset:
    """The images with their labels in the order of the model's classes, where both have names.

    Images of classes that the model does not know are refused: a number alone would mean another class.
    """
    known = list(getattr(classifier.net, "names", None) or []) if classifier.black_box else []
    if isinstance(classifier.net, Model):
        known = classifier.net.class_names
    if not known or images.kind != "labels" or not images.classes or known == images.classes:
        return images
    if missing := sorted({images.classes[label] for label in images.labels} - set(known)):
        raise InputError(
            f"{classifier.name} knows {', '.join(known[:5])}{' ...' if len(known) > 5 else ''}, "
            f"the images have {missing[0]!r}; choose other images, or train a head on these"
        )
    return images.in_order_of(known)


def fitted(net: nn.Module, images: ImageDataset) -> nn.Module:
    """The network as these images can judge it: where they cover some of its classes only, among those."""
    if images.class_map is None:
        return net
    return ClassSubset(net, images.class_map, len(images.classes)).eval()


def _ours(model: Model) -> Classifier:
    if model.classes == 0:
        raise InputError(f"{model.name} has no classifier; `robvit train head` makes one, then give --head")
    if model.pool is not None:
        raise Unsupported(
            f"{model.name} draws its tokens anew for every call, so no record of it could be repeated; "
            "judge one set of the pool at a time"
        )
    return Classifier(model.eval(), model.name, model.identity(), model.input_size[0])


def _program(path: Path, size: int | None, normalise: str | Statistics | None) -> Classifier:
    net, size, digest = open_black_box(path, img_size=size, normalise=normalise)
    # An ONNX file may keep its weights in other files, which its answers tell of.
    identity = f"file {digest} normalised {net.statistics()} answers {answers_digest(net, size)}"
    return Classifier(net, path.name, identity, size, digest)


def _normalised(
    function: Callable[[torch.Tensor], torch.Tensor], normalise: str | Statistics | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A network or function behind the normalisation that was asked for, if any was."""
    if normalise is None:
        return function
    net = function if isinstance(function, nn.Module) else CallableModule(function)
    return Normalised(net, *statistics_of(normalise))


def _foreign(function: Callable[[torch.Tensor], torch.Tensor], name: str, size: int | None) -> Classifier:
    """A network or function from elsewhere, named by its weights and what its code makes of fixed images."""
    net = (function if isinstance(function, nn.Module) else CallableModule(function)).eval()
    identity = f"{name} {tensors_sha256(net.state_dict())} answers {answers_digest(net, size)}"
    return Classifier(net, name, identity, size, doubt=_doubt(net))


def _doubt(net: nn.Module) -> str:
    """That a network of timm's gets pixels as they are, although it was trained on normalised ones."""
    known = getattr(net, "pretrained_cfg", None)
    mean, std = (known.get(name) if isinstance(known, dict) else None for name in ("mean", "std"))
    if not mean or not std or (not any(mean) and all(value == 1 for value in std)):
        return ""
    return (
        f"Doubtful normalisation: this network of timm's expects pixels normalised by mean {tuple(mean)} and "
        f"deviation {tuple(std)}, and gets them as they are; give --normalise, or wrap it by robvit.load."
    )


def _torchvision(name: str, arch: str | None, img_size: int | None) -> Classifier:
    """A network of torchvision's with its default weights, or with those of a checkpoint."""
    from torchvision import models

    known = (arch or name).removeprefix(TORCHVISION)
    if known not in models.list_models(module=models):
        raise unknown("network of torchvision", known, models.list_models(module=models))
    if arch is not None:
        net, size, (mean, std) = models.get_model(known, weights=None), 224, STATISTICS["imagenet"]
        tensors, _ = weights.state_dict(name)
        checked.load_strict(net, tensors, name)
    else:
        best = models.get_model_weights(known).DEFAULT
        try:
            net = models.get_model(known, weights=best)
        except OSError as error:  # no network, or a broken download
            raise WeightsUnavailable(
                f"torchvision's weights of {known} could not be had: {error}; "
                f"give a checkpoint's path and --arch {TORCHVISION}{known}"
            ) from error
        shown = best.transforms()
        size, mean, std = shown.crop_size[0], tuple(shown.mean), tuple(shown.std)
    wrapped = Normalised(net, mean, std).eval()
    return Classifier(wrapped, name, f"{known} {tensors_sha256(wrapped.state_dict())}", img_size or size)


def _refuse(given: list[str], name: str) -> None:
    if given:
        raise InputError(f"{given[0]} is for models of robvit's, {name} is none; leave it out")
