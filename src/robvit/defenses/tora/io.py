"""Adapters as a thing to keep: put on a backbone, saved apart from its weights, refused by others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file

from robvit.backbones.heads import ClassTokenHead
from robvit.backbones.model import Model
from robvit.backbones.trained_on import TrainedOn
from robvit.backbones.validate import load_strict
from robvit.defenses.tora.modules import Adapters, AdapterShape, Branch, check_backbone
from robvit.errors import InputError, WrongBackbone
from robvit.files import written_whole
from robvit.tensor_files import FORMATS, check_format, described, read_tensors

ABOUT = {
    "width": int,
    "depth": int,
    "classes": int,
    "tuning": str,
    "bottleneck": int,
    "trades": list,
    "fusion": str,
    "wiring": str,
    "fingerprint": str,
    "settings": dict,
}


def fresh(model: Model, classes: int | None = None, **shape: Any) -> Adapters:
    """Adapters for a backbone, with which it answers as before; `shape` holds tuning, fusion, trades.

    Where neither the backbone nor the head that it was given has a classifier for so many classes that reads
    the class token, the new heads have something to learn first.
    """
    check_backbone(model)
    count = classes or model.classes
    if not count:
        raise InputError(f"{model.name} has no classes of its own; say how many there are: classes=10")
    made = Adapters(AdapterShape(model.width, model.depth, count, **shape), model.fingerprint())
    device = next(model.parameters()).device
    made.to(device).start_from(model.net, torch.zeros(1, 3, *model.input_size, device=device))
    if isinstance(model.head, ClassTokenHead) and model.head.classes == count:
        for side in made.sides.values():
            cast(Branch, side).head.load_state_dict(model.head.linear.state_dict())
    return made


def adapted(model: Model, adapters: Adapters) -> Model:
    """The same weights and tokens, shared, with these adapters; the backbone is frozen and in eval mode."""
    check(adapters, model)
    twin = model.replace(head=None, adapters=adapters)
    twin.net.requires_grad_(False)
    return twin.eval()


def check(adapters: Adapters, model: Model) -> None:
    """Refuse a backbone with other weights than those the adapters belong to."""
    check_backbone(model)
    for name, ours, theirs in (
        ("width", adapters.shape.width, model.width),
        ("depth", adapters.shape.depth, model.depth),
    ):
        if ours != theirs:
            raise WrongBackbone(f"these adapters are for {name} {ours}, {model.name} has {theirs}")
    if adapters.fingerprint != model.fingerprint():
        raise WrongBackbone(
            f"these adapters belong to weights {adapters.fingerprint[:12]}, those of {model.name} are "
            f"{model.fingerprint()[:12]}; adapters only work on the exact weights they were trained on"
        )
    adapters.trained_on.check("set of adapters", model)


def save_adapters(adapters: Adapters, path: str | Path, settings: dict[str, Any] | None = None) -> None:
    """Write adapters as safetensors, with the backbone's fingerprint and how they came about."""
    stored = (settings or {}) | adapters.trained_on.settings() | {"names": adapters.names}
    about = {**adapters.shape._asdict(), "fingerprint": adapters.fingerprint, "settings": stored}
    tensors = {name: t.detach().cpu().contiguous() for name, t in adapters.state_dict().items()}
    with written_whole(path) as aside:
        save_file(tensors, aside, {"format": FORMATS["adapters"].word, "about": json.dumps(about)})


def load_adapters(path: str | Path) -> Adapters:
    """Adapters from the file that `save_adapters` wrote."""
    tensors, facts = read_tensors(path, "a file of adapters")
    check_format(path, facts, "adapters")
    about = described(facts, "about", path, ABOUT)
    fields = {name: about[name] for name in AdapterShape._fields}
    shape = AdapterShape(**fields | {"trades": tuple(about["trades"])})
    numbers = (shape.width, shape.depth, shape.classes)
    if min(numbers) < 1 or max(shape.depth, len(shape.trades)) > len(tensors) or shape.bottleneck < 0:
        raise InputError(f"{path} is damaged: it holds no adapters of the shape it tells; train them again")
    try:
        with torch.device("meta"):  # what it claims takes no memory before the tensors agree
            made = Adapters(shape, about["fingerprint"])
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{path} is damaged: {error}; train the adapters again") from None
    load_strict(made, tensors, str(path), assign=True)
    made.trained_on = TrainedOn.told_by(about["settings"])
    made.names = _names(about["settings"].get("names"), shape.classes, path)
    return made.eval().requires_grad_(False)


def _names(stored: Any, classes: int, path: str | Path) -> list[str]:
    """The names of the classes; older files have none."""
    if not stored:
        return []
    if (
        not isinstance(stored, list)
        or len(stored) != classes
        or not all(isinstance(one, str) for one in stored)
    ):
        raise InputError(f"{path} is damaged: it must name all of its {classes} classes, or none")
    return stored
