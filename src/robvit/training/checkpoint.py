"""The state of a training on disk: one safetensors file with JSON beside the tensors, and no pickle.

It is written aside and renamed, so a kill, a crash or a full disk leaves the last whole state.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.errors import InputError
from robvit.files import parse_json, written_whole
from robvit.tensor_files import read_tensors

FORMAT = "robvit-training-1"
Tensors = dict[str, torch.Tensor]


def write_tensors(path: Path, tensors: Tensors, facts: dict[str, str]) -> None:
    """Write tensors and facts, whole or not at all."""
    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    with written_whole(path) as aside:
        save_file(plain, aside, facts)


def save_state(path: Path, parts: dict[str, Tensors], facts: dict[str, Any]) -> None:
    """Keep everything a training needs to resume: named parts of tensors, and facts."""
    tensors = {f"{part}/{name}": tensor for part, held in parts.items() for name, tensor in held.items()}
    write_tensors(path, tensors, {"format": FORMAT, "facts": json.dumps(facts)})


def load_state(path: Path) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """The parts and facts of a state that `save_state` wrote."""
    tensors, about = read_tensors(path, "the state of a training")
    if about.get("format") != FORMAT:
        raise InputError(f"{path} is not a training's state of format {FORMAT}; choose another folder")
    parts: dict[str, Tensors] = {}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = tensor
    return parts, parse_json(about.get("facts", "null"), path, "the state of a training")


def restore(module: nn.Module, tensors: Tensors, path: Path) -> None:
    """Put a part of a state into a module; another architecture's is refused."""
    try:
        module.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        lines = " ".join(line.strip() for line in str(error).splitlines()[1:4])
        raise InputError(
            f"{path} holds the state of another architecture: {lines[:300]}; choose another folder"
        ) from None


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """What the optimiser remembers of each parameter, by its number; rates are no state here."""
    state = optimizer.state_dict()["state"]
    return {f"{i}/{name}": t for i, held in state.items() for name, t in held.items() if t is not None}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Give an optimiser back what it remembered."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def save_model(model: nn.Module, path: Path, about: dict[str, Any]) -> None:
    """Write weights that `robvit.load(path)` opens without further words; any module's are kept by name.

    `about` says how a robvit model is built: `arch`, `patch_size`; the `names` of its classes; and where it
    comes from: how its images became square (`resize`), `original`, the fingerprint of the weights it was
    tuned from, whose heads it takes, and the `settings` of that tuning.
    """
    if not isinstance(model, Model):
        write_tensors(path, dict(model.state_dict()), {"format": "plain"})
        return
    classes, names = int(getattr(model.net, "num_classes", 0)), about.get("names") or []
    build = {
        "num_classes": classes,
        "img_size": list(model.input_size),
        "patch_size": about.get("patch_size"),
        "normalise": [model.mean.flatten().tolist(), model.std.flatten().tolist()],
        "resize": about.get("resize") or fitting(model, None),
        "original": about.get("original"),
        "names": names if len(names) == classes else None,
    }
    facts = {
        "timm_name": str(about.get("arch") or model.name),
        "build": json.dumps(build),
        "licence": "yours",
    }
    if about.get("settings"):
        facts["settings"] = json.dumps(about["settings"])
    write_tensors(path, dict(model.net.state_dict()), facts)
