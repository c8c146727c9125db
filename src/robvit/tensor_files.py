"""Files of tensors: read without trust, told apart by their format, and named by a checksum.

Nothing here loads torch but to read or hash tensors, so that a file of the wrong kind is refused at once.
"""

from __future__ import annotations

import hashlib
import hmac
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from robvit.errors import InputError
from robvit.files import check_plain, parse_json

if TYPE_CHECKING:
    import torch


class Format(NamedTuple):
    """A kind of file: the word that stands beside its tensors, what it holds, and what makes one."""

    word: str
    holds: str
    made_by: str


# What a model can carry, by the option that takes it; a pool goes where tokens go.
FORMATS = {
    "head": Format("robvit-head-1", "a head", "`robvit train head` makes one"),
    "tokens": Format(
        "robvit-tokens-1",
        "tokens",
        "`robvit robustify` makes them, published .pt files come in by `robvit tokens import`",
    ),
    "pool": Format("robvit-token-pool-1", "a pool of tokens", "`robvit robustify --pool` makes one"),
    "lora": Format("robvit-lora-1", "a LoRA", "`robvit robustify --method lora` makes one"),
    "adapters": Format("robvit-adapters-2", "adapters", "`robvit train tora` makes them"),
}


def kind_of(facts: Mapping[str, str]) -> str:
    """Which of FORMATS a file is, by what stands beside its tensors; nothing if it is none."""
    return next((kind for kind, one in FORMATS.items() if one.word == facts.get("format")), "")


def check_format(path: str | Path, facts: Mapping[str, str], kind: str) -> None:
    """Refuse a file of another kind than one of FORMATS."""
    wanted, found = FORMATS[kind], kind_of(facts)
    if found != kind:
        other = f"the format {facts['format']!r:.60}" if "format" in facts else "a file without a format"
        got = FORMATS[found].holds if found else other
        raise InputError(
            f"{path} does not hold {wanted.holds} of format {wanted.word}, got {got}; {wanted.made_by}"
        )


def read_facts(path: str | Path, what: str) -> dict[str, str]:
    """What stands beside the tensors of a safetensors file, read without torch; `what` names the file."""
    from safetensors import safe_open

    try:
        check_plain(path)
        with safe_open(path, "np") as file:
            return file.metadata() or {}
    except Exception as error:  # as when its tensors are read
        raise InputError(f"{path} is not {what} that can be read: {_first_line(error)}") from error


def read_tensors(path: str | Path, what: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a safetensors file and what stands beside them; `what` names it in the error."""
    from safetensors import safe_open

    try:
        check_plain(path)
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except Exception as error:  # a type torch does not know, say, is an AttributeError
        raise InputError(f"{path} is not {what} that can be read: {_first_line(error)}") from error


def read_pickled(path: str | Path, what: str) -> Any:
    """The plain values and tensors of a torch file; nothing in it is run, and nothing is inflated."""
    import argparse

    import torch

    try:
        check_plain(path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                promised = sum(info.file_size for info in archive.infolist())
            if promised > (held := Path(path).stat().st_size):  # torch compresses nothing
                raise ValueError(f"it promises {promised} bytes and holds {held}")
        # Training scripts keep their arguments beside the tensors; a Namespace can do nothing.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in whatever way it likes
        raise InputError(f"{path} is not {what} that can be read safely: {_first_line(error)}") from None


def is_dense(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether it is a plain tensor that stores all of its values: one number can claim to be a trillion."""
    import torch

    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def described(
    facts: Mapping[str, str], key: str, where: str | Path, kinds: Mapping[str, type], **missing: Any
) -> dict[str, Any]:
    """What stands as JSON beside the tensors of a file: these entries, each of its kind, and no others.

    `missing` are values for entries that older files do not have.
    """
    about = parse_json(facts.get(key, "null"), where, "a file of robvit's")
    if isinstance(about, dict):
        about = missing | about
    if not isinstance(about, dict) or about.keys() != kinds.keys():
        raise InputError(f"{where} is damaged: its {key} must tell {', '.join(kinds)}; make it again")
    for name, kind in kinds.items():
        if not isinstance(about[name], kind):
            got = type(about[name]).__name__
            raise InputError(f"{where} is damaged: {name} must be of type {kind.__name__}, got {got}")
    return about


def tensors_sha256(tensors: Mapping[str, torch.Tensor], salt: str = "") -> str:
    """The SHA-256 of named tensors: names, types, shapes and values, whatever file they came from.

    With a secret salt, in hexadecimal, only whoever has it can tell a right guess of the tensors from a wrong
    one.
    """
    import torch  # here, so that `import robvit` stays quick

    digest = hmac.new(bytes.fromhex(salt), digestmod="sha256") if salt else hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
