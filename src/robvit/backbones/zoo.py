"""What a model's name means: an alias of the table, a timm name, a file or a folder; nothing is fetched."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robvit.backbones.known import Known as Known
from robvit.backbones.known import RegistryFile as RegistryFile
from robvit.backbones.programs import PROGRAMS
from robvit.backbones.table import ALIASES as ALIASES
from robvit.backbones.table import TABLE as TABLE
from robvit.backbones.table import UNTRAINED as UNTRAINED
from robvit.backbones.table import robust_variants as robust_variants
from robvit.errors import InputError, UnknownName
from robvit.names import mentioned, sources
from robvit.registry import unknown
from robvit.revisions import split_name

if TYPE_CHECKING:
    from torch import nn

HUB, LOCAL = ("hf:", "hf-hub:"), "local-dir:"  # before a repository on the hub, or a folder
CHECKPOINTS = (".safetensors", ".pt", ".pth", ".pth.tar")  # endings of local files that robvit reads

TORCHVISION = "torchvision:"  # before the name of a network of torchvision's
_ON_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+")


def is_path(name: str) -> bool:
    """Whether a name means a file: it has a separator or a checkpoint's ending."""
    return "/" in name or "\\" in name or name.lower().endswith((*CHECKPOINTS, *PROGRAMS))


def is_folder(name: str) -> bool:
    """Whether a name means a folder with a network, on the hub or here."""
    if name.startswith((*HUB, LOCAL)):
        return True
    try:
        return is_path(name) and Path(name).expanduser().joinpath("config.json").is_file()
    except (OSError, ValueError, RuntimeError):  # longer than any file's name, or in nobody's home
        return False


def local_file(name: str) -> Path | None:
    """The file a name means, or nothing if it is not a path; a path without a file is refused."""
    if not is_path(name) or is_folder(name):
        return None
    path = Path(name)
    try:
        path = path.expanduser()
        there = path.is_file()
    except (OSError, ValueError, RuntimeError):  # longer than any file's name, or in nobody's home
        there = False
    if not there:
        on_hub = f", or hf:{name} if it is on the model hub" if _ON_HUB.fullmatch(name) else ""
        raise InputError(
            f"no file at {name}; give a checkpoint's path or a name from `robvit weights list`{on_hub}"
        )
    if not path.name.lower().endswith(CHECKPOINTS):
        raise InputError(
            f"expected a checkpoint ending in {', '.join(CHECKPOINTS)}, got {path.name}; "
            "ONNX and TorchScript files are for `check`, `evaluate`, `attack`, `review`, `doctor` and "
            "`verify`"
        )
    return path


def check_name(name: str) -> None:
    """Refuse what is no alias, no checkpoint's path or folder and no name of timm's, without loading timm."""
    if name.startswith(LOCAL) and not Path(name.removeprefix(LOCAL)).expanduser().is_dir():
        raise InputError(
            f"no folder at {name.removeprefix(LOCAL)}; expected one that timm or transformers wrote"
        )
    if name in ALIASES or is_folder(name) or local_file(name):
        return
    name, commit = split_name(name)
    if name in ALIASES:
        _at(ALIASES[name], commit)
        return
    timm = sys.modules.get("timm")  # loaded, it knows what this very program registered; it ignores a tag
    if timm and "." not in name and timm.is_model(name):
        return
    files = sources("timm", "models")
    if not files or mentioned(name, [*files, Path(__file__).with_name("mini.py")]):
        return
    networks, tagged = _published()
    network, dot, _ = name.partition(".")
    if dot and network in networks and not any(known.startswith(f"{network}.") for known in tagged):
        return  # timm makes this network's tags in a loop, so that only timm itself knows them
    raise _unknown(name, [*networks, *tagged])


def timm_networks() -> list[str]:
    """The networks that timm's files register, in the order of their names; timm itself is not loaded."""
    return list(_published()[0])


@cache
def _published() -> tuple[list[str], list[str]]:
    """The networks in timm's files, and their names with a tag; all files are read once."""
    text = "".join(file.read_text(encoding="utf-8") for file in sources("timm", "models"))
    found = re.findall(r"^@register_model\s*\ndef (\w+)\(", text, flags=re.MULTILINE)
    found.sort(key=lambda name: [int(n) if n.isdigit() else n for n in re.split(r"(\d+)", name)])
    return found, re.findall(r"['\"](\w+\.\w+)['\"]:", text)


def _unknown(name: str, published: list[str]) -> UnknownName:
    there = os.path.isdir(name)  # noqa: PTH112  also of names that are too long for a file's
    hint = "(see `robvit models`)" + (f" Or, for the folder that is here, ./{name}" if there else "")
    return unknown("model", name, [*ALIASES, *published], hint, listed=list(ALIASES))


def resolve(name: str) -> Known:
    """What is known of an alias or a timm name; any other name is refused with the nearest ones."""
    if name in ALIASES:
        return ALIASES[name]
    if is_path(name):
        raise InputError(
            f"expected a model's name, got the path {name!r}; check that the file is there, "
            "or choose a name from `robvit weights list`"
        )
    plain, commit = split_name(name)
    if commit:
        return _at(resolve(plain), commit)
    import timm  # slow, and aliases do not need it

    published = timm.list_pretrained()
    if not timm.is_model(name) or ("." in name and name not in published):
        raise _unknown(name, [*timm.list_models(), *published])
    settings = timm.get_pretrained_cfg(name)
    hub, _, revision = ((settings and settings.hf_hub_id) or "").partition("@")
    return Known(
        alias=name,
        timm_name=name,
        family=name.split("_")[0],
        licence=(settings and settings.license) or "see its model card",
        params=0.0,
        hub=hub,
        revision=revision,
    )


def _at(known: Known, commit: str) -> Known:
    """The same model from this commit of its repository, and from nowhere else."""
    if not known.hub:
        raise InputError(f"{known.alias} is not on the model hub, so it has no revision; leave @{commit} out")
    return replace(known, alias=f"{known.alias}@{commit}", revision=commit, registry=None)


def build(known: Known, **overrides: Any) -> nn.Module:
    """The model with random weights, as timm builds it; `overrides` win over the known options."""
    import timm

    import robvit.backbones.mini  # noqa: F401  registers robvit_mini with timm

    model: nn.Module = timm.create_model(known.timm_name, pretrained=False, **{**known.options, **overrides})
    return model
