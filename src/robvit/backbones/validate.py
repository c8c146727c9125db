"""Checkpoints of anybody's: what of them may be believed, and whether they fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import nn

from robvit.backbones import zoo
from robvit.backbones.zoo import Known
from robvit.errors import InputError
from robvit.files import parse_json
from robvit.tensor_files import is_dense

Tensors = dict[str, torch.Tensor]

# Keys under which training scripts keep the tensors; averaged ones if there are no others.
WRAPPERS = ("state_dict", "model", "model_state", "model_ema", "state_dict_ema", "ema")
PREFIXES = ("module.", "_orig_mod.")  # of DataParallel, averaged models and compiled ones
COUNTED = "n_averaged"  # what torch's AveragedModel keeps beside the tensors
Side = Annotated[int, Field(ge=1, le=4096)]
Colours = tuple[float, float, float]
SLACK = 8  # times as many values a network may have as a file of it: other sizes and heads are made to fit


class Build(BaseModel):
    """How a trained network differs from the one timm makes; a file may say anything."""

    num_classes: int | None = Field(default=None, ge=0)
    img_size: Side | tuple[Side, Side] | None = None
    patch_size: Side | None = None
    normalise: tuple[Colours, Colours] | None = None
    resize: Literal["squash", "crop"] | None = None  # how images become square
    names: list[str] | None = None  # of the classes
    original: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")  # fingerprint it was tuned from


# What timm calls the last layer of its networks.
CLASSIFIERS = ("head", "head.fc", "fc", "classifier")


def unwrapped(value: Any, path: Path) -> Tensors:
    """The tensors inside a training script's checkpoint, without the prefixes of what was around it."""
    for _ in WRAPPERS:  # not for ever: a pickled dictionary may hold itself
        if isinstance(value, dict):
            value = next((value[k] for k in WRAPPERS if isinstance(value.get(k), dict)), value)
    if not isinstance(value, dict) or not value or not all(isinstance(name, str) for name in value):
        raise InputError(f"expected a state dict of tensors in {path}, got {type(value).__name__}")
    if strange := [name for name, tensor in value.items() if not is_dense(tensor)]:
        raise InputError(
            f"expected a state dict of tensors in {path}, but {strange[0]!r} is no plain tensor "
            "that stores all of its values"
        )
    if len(value) > 1:
        value = {name: tensor for name, tensor in value.items() if name != COUNTED}
    for prefix in PREFIXES * 2:  # in either order
        if all(name.startswith(prefix) for name in value):
            value = {name.removeprefix(prefix): tensor for name, tensor in value.items()}
    return dict(value)


def build_of(facts: Mapping[str, str], tensors: Tensors, path: Path) -> dict[str, Any]:
    """What a checkpoint says of its network, if it can be true."""
    content = parse_json(facts.get("build", "{}"), path, "a checkpoint")
    try:
        build = Build.model_validate(content).model_dump(exclude_none=True)
    except ValidationError as error:
        flaw = error.errors()[0]
        place = ".".join(map(str, flaw["loc"])) or "build"
        raise InputError(f"{path} is damaged: {place}: {flaw['msg']}") from None
    rows = max((len(t) for t in tensors.values() if t.ndim), default=0)
    if build.get("num_classes", 0) > rows:
        raise InputError(
            f"{path} is damaged: it tells of {build['num_classes']} classes and holds no such head"
        )
    if len(build.get("names", ())) not in (0, build.get("num_classes")):
        raise InputError(f"{path} is damaged: it must name all of its classes, or none")
    return build


def check_size(known: Known, tensors: Mapping[str, torch.Tensor], name: str) -> None:
    """Refuse a file that cannot be of this network before memory is spent on it."""
    with torch.device("meta"):
        wanted = sum(t.numel() for t in zoo.build(known).state_dict().values())
    held = sum(t.numel() for t in tensors.values())
    if wanted > SLACK * held:
        raise InputError(
            f"the weights of {name} do not fit {known.timm_name}: {held} values are there, it has {wanted}; "
            "name the right network with arch="
        )


def load_strict(
    model: nn.Module, tensors: Mapping[str, torch.Tensor], name: str, *, assign: bool = False
) -> None:
    """Put tensors into a model; any missing, extra or differently shaped or typed one is refused.

    With `assign` they take the place of the model's own, which may be on no device yet.
    """
    own = model.state_dict()
    for key in own.keys() & tensors.keys():
        if own[key].is_floating_point() != tensors[key].is_floating_point():
            raise InputError(
                f"{key} of {name} must hold {own[key].dtype}, got {tensors[key].dtype}; "
                "the file is damaged, or of another network"
            )
    if assign:
        tensors = {key: t.to(own[key].dtype) if key in own else t for key, t in tensors.items()}
    try:
        model.load_state_dict(dict(tensors), strict=True, assign=assign)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:4]]
        raise InputError(
            f"the weights of {name} do not fit {type(model).__name__}: {' '.join(lines)[:400]}; "
            "expected the same architecture and size"
        ) from None


def as_timm_fits(net: nn.Module, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Weights for the network's size, positions interpolated and names changed as timm does for its own."""
    adapt: Any = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    return dict(tensors) if adapt is None else dict(adapt(dict(tensors), net))


def classes_in(tensors: Mapping[str, torch.Tensor]) -> int | None:
    """How many classes the classifier of a checkpoint tells apart; None where it cannot be seen."""
    for name in CLASSIFIERS:
        weight = tensors.get(f"{name}.weight")
        if weight is not None and weight.ndim == 2:
            return len(weight)
    return None
