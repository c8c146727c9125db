"""Networks by folder: of the model hub, or of this machine; written by transformers, or by timm.

hf:facebook/dinov2-small        a repository on the hub, with @COMMIT behind it if a certain one is meant
hf-hub:timm/vit_tiny_...        the same, as timm writes it
local-dir:PATH, PATH            a folder with config.json and model.safetensors
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from robvit import fetch
from robvit.backbones import download, zoo
from robvit.backbones.huggingface.config import CONFIG, PREPROCESSOR, read_config, read_object
from robvit.backbones.huggingface.reading import (
    SHARDS,
    WEIGHTS,
    Opened,
    open_transformers,
    read_weights,
    shards_in,
)
from robvit.backbones.model import Model
from robvit.backbones.normalising import Normalise, statistics
from robvit.backbones.validate import as_timm_fits, check_size, load_strict
from robvit.errors import InputError, Unsupported, WeightsUnavailable
from robvit.revisions import settle, settled, split_name

REPOSITORY = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?(@[\w./-]{1,96})?")


def open_folder(
    name: str,
    *,
    normalise: Normalise = "model",
    img_size: int | tuple[int, int] | None = None,
    pos_embed: str = "timm",
) -> Model:
    """The model of a folder on pixels, with its classifier as a head where transformers wrote it.

    Positions for another image size are interpolated as the library that wrote the folder does.
    """
    if pos_embed != "timm":
        raise InputError(f"{name} is interpolated as the library that wrote it does; leave pos_embed out")
    side = img_size if img_size is None or isinstance(img_size, int) else img_size[0]
    if isinstance(img_size, tuple) and img_size[0] != img_size[1]:
        raise Unsupported(f"{name} is opened for square images, got {img_size}")
    folder = place_of(name)
    stored = read_object(folder / CONFIG)
    opened = _open_timm(folder, stored, side) if "architecture" in stored else open_transformers(folder, side)
    own = (opened.mean, opened.std) if opened.mean and opened.std else None
    mean, std = statistics(opened.net, normalise, own)
    size = None if opened.side is None else (opened.side, opened.side)
    names = () if opened.classifier else opened.names
    model = Model(
        opened.net,
        name=name,
        mean=mean,
        std=std,
        input_size=size,
        names=names,
        usual_resize=opened.resize,
        revision=download.commit_of(folder / CONFIG) if name.startswith(zoo.HUB) else "",
    )
    head = opened.head(model.fingerprint())
    return (model if head is None else model.replace(head=head)).eval()


def architecture(name: str) -> str:
    """timm's name of the network in a folder; of transformers' one that is built alike, if timm has any."""
    folder = place_of(name)
    stored = read_object(folder / CONFIG)
    return str(stored["architecture"]) if "architecture" in stored else read_config(folder, stored).twin()


def place_of(name: str) -> Path:
    """The folder that a name means, fetched from the hub if it is there; it has a config.json."""
    start = next((one for one in zoo.HUB if name.startswith(one)), "")
    if start:
        return hub_folder(name.removeprefix(start))
    folder = Path(name.removeprefix(zoo.LOCAL)).expanduser()
    if not (folder / CONFIG).is_file():
        what = f"{folder} has no {CONFIG}" if folder.is_dir() else f"no folder at {folder}"
        raise InputError(f"{what}; expected one that transformers' save_pretrained or timm wrote")
    return folder


def refuse(name: str, **options: Any) -> None:
    """Refuse options of `load` that a folder decides by itself."""
    if options.pop("pretrained") is None:
        raise InputError(f"{name} is opened with its weights; leave pretrained=False out")
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{name} says itself what network it is; leave {option} out")


def hub_folder(text: str) -> Path:
    """The files of a repository that are needed, in the hub's own cache."""
    if not REPOSITORY.fullmatch(text) or ".." in text:
        raise InputError(f"expected OWNER/NAME or OWNER/NAME@COMMIT after hf:, got {text[:80]!r}")
    repository, asked = split_name(text)
    config = _fetched(repository, CONFIG, asked or settled(repository))
    folder: Path = config.parent
    revision = asked or settled(repository) or download.commit_of(config)
    if not asked:  # all other files are taken from the same commit, and so is everything the next time
        settle(repository, revision, f"hf:{repository}@{revision}")
    stored = read_object(config)
    _fetched(repository, PREPROCESSOR, revision, needed=False)
    if _fetched(repository, WEIGHTS, revision, needed=False) is None:
        if _fetched(repository, SHARDS, revision, needed=False) is None:
            if "architecture" in stored:  # timm's older ones; only tensors are read of it
                _fetched(repository, download.HUB_FILES[1], revision)
                return folder
            raise WeightsUnavailable(f"{repository} on the hub has no {WEIGHTS}, and pickles are not opened")
        for shard in shards_in(folder):
            _fetched(repository, shard, revision)
    return folder


def _fetched(repository: str, name: str, revision: str, *, needed: bool = True) -> Any:
    """Where a file of the hub lies; none if the hub has no such file and it is not needed."""
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(repository, name, revision=revision or None)
    if isinstance(cached, str):
        return Path(cached)
    if problem := download.hub_problem():
        if not needed:
            return None
        raise WeightsUnavailable(f"{repository} is not on this machine, and {problem}")
    if name == CONFIG:
        fetch.tell(f"taking {repository} from the model hub; its page says under which licence")
    path = fetch.hub_file(repository, name, revision)
    if path is None and needed:
        raise WeightsUnavailable(f"{repository} on the hub has no {name}")
    return path


def _open_timm(folder: Path, stored: Mapping[str, Any], side: int | None) -> Opened:
    """A network that timm wrote with its config."""
    arguments, shown = stored.get("model_args") or {}, stored.get("pretrained_cfg") or stored
    if not isinstance(arguments, dict) or not isinstance(shown, dict):
        raise InputError(f"{folder / CONFIG} is damaged: model_args and pretrained_cfg must be settings")
    if strange := [key for key in arguments if key in ("pretrained", "checkpoint_path", "cache_dir")]:
        raise InputError(f"{folder / CONFIG} is damaged: {strange[0]} is no setting of a network")
    classes = stored.get("num_classes", shown.get("num_classes"))
    options = dict(arguments) | ({"num_classes": classes} if isinstance(classes, int) else {})
    known = zoo.resolve(str(stored["architecture"]).partition(".")[0])
    known = zoo.Known(str(folder), known.timm_name, known.family, "", 0.0, options=options)
    tensors = _timm_tensors(folder)
    native = shown.get("input_size")
    own = native[-1] if isinstance(native, list) and native and isinstance(native[-1], int) else None
    wanted = side or own
    try:
        check_size(known, tensors, str(folder))
        net = zoo.build(known, **({} if wanted is None else {"img_size": wanted}))
    except TypeError:  # a network for any size
        net = zoo.build(known)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise Unsupported(f"timm cannot build the network of {folder}: {error}") from None
    load_strict(net, as_timm_fits(net, tensors), str(folder))
    colours = (shown.get("mean"), shown.get("std"))
    mean, std = (tuple(map(float, c)) if c and _is_colour(c) else () for c in colours)
    labels = shown.get("label_names")
    names = tuple(map(str, labels)) if isinstance(labels, list) and len(labels) == classes else ()
    return Opened(net, mean, std, "", wanted, names=names)


def _timm_tensors(folder: Path) -> dict[str, torch.Tensor]:
    pickled = folder / download.HUB_FILES[1]
    if (folder / WEIGHTS).is_file() or not pickled.is_file():
        return read_weights(folder)
    from robvit.backbones.weights import read_local

    return read_local(pickled)[0]


def _is_colour(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(one, int | float) for one in value)
