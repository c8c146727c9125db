"""What was typed, checked before torch is loaded, so that a slip is answered at once.

The rooms check again what they are given; here is only what can be known from names, numbers and files.
"""

from __future__ import annotations

import re
from pathlib import Path

from robvit import names, plugins
from robvit.backbones import zoo
from robvit.backbones.known import check_patches
from robvit.backbones.programs import is_program, program_file
from robvit.errors import DataError, InputError
from robvit.explanation.figures import NAMES
from robvit.files import given_path
from robvit.record import Record
from robvit.registry import unknown
from robvit.settings import check_layers, parse_layers
from robvit.specs import CORRUPTION, FOLDER, PARTS, SPLITS, check_split, parse_spec, split_corruption
from robvit.tensor_files import FORMATS, check_format, kind_of, read_facts


def check_model(
    name: str | None,
    arch: str | None = None,
    *,
    programs: bool = False,
    img_size: int | None = None,
    **files: Path | None,
) -> None:
    """Refuse an unknown model, an image size it cannot take, and files that are not what they are given as.

    With `programs` ONNX and TorchScript files are taken too. The files are a `head`, `tokens`, `lora` or
    `adapters`.
    """
    for known in filter(None, (name, arch)):
        if programs and known == name and is_program(known):
            program_file(known)
        elif known.startswith(zoo.TORCHVISION):
            network, files_of = known.removeprefix(zoo.TORCHVISION), names.sources("torchvision", "models")
            if files_of and not names.mentioned(network, files_of):
                raise InputError(f"torchvision has no network called {network!r}")
        elif plugins.is_spec(known) and not zoo.is_folder(known):  # hf:NAME is no module
            plugins.check_there(known)
        else:
            zoo.check_name(known)
    patch = names.facts("model").get(name or "", {}).get("patch")
    if img_size is not None and patch:
        check_patches(str(name), img_size, patch)
    for kind, path in files.items():
        check_part(path, kind)


def check_part(path: Path | None, kind: str) -> None:
    """Refuse a file that is not there, or not of this kind: head, tokens, lora or adapters."""
    if path is None or str(path).startswith(zoo.HUB) or given_path(path / "config.json").is_file():
        return  # of the hub, or a folder of save_pretrained
    check_file(path, kind)
    facts = read_facts(given_path(path), f"a file for --{kind}")
    check_format(path, facts, "pool" if kind == "tokens" and kind_of(facts) == "pool" else kind)


def check_classifier(
    model: str | None, data: str, head: Path | None = None, adapters: Path | None = None
) -> None:
    """Refuse a known model that has no classes, or others than the data, unless it is given a head."""
    known = names.facts("model").get(model or "")
    if known is None or head is not None or adapters is not None:
        return
    if not known["classes"]:
        raise InputError(f"{model} has no classifier; `robvit train head` makes one, then give --head")
    dataset = names.facts("dataset").get(dataset_of(data), {})
    classes = len(dataset.get("classes", ()))
    if classes not in (0, known["classes"]) and not dataset["masks"]:
        raise InputError(
            f"{model} tells {known['classes']} classes apart, the images have {classes}; choose other "
            "images, or train a head on them (`robvit train head`)"
        )


def check_tokens(
    model: str, data: str, layers: str | None, attacks: list[str], task: float, head: Path | None
) -> None:
    """Refuse blocks that a model does not have, and what needs labels or a head where there are none."""
    using = [name for name in attacks if names.facts("attack").get(name, {}).get("task") == "classes"]
    if (using or task) and names.facts("dataset").get(dataset_of(data), {}).get("masks"):
        raise DataError(f"{using[0] if using else '--task'} needs labels, {data} has masks")
    known = names.facts("model").get(model, {})
    if layers is not None and (chosen := parse_layers(layers)) != "all" and known:
        check_layers(chosen, known["depth"], model)
    if head is not None or not known:
        return
    if task:
        raise InputError(f"a linear head learns along; give {model} one by --head (`robvit train head`)")
    if using and not known["classes"]:
        raise InputError(f"{using[0]} attacks a classifier; give {model} a head by --head")


def parse_normalise(text: str | None) -> str | tuple[tuple[float, ...], tuple[float, ...]] | None:
    """What --normalise says: "imagenet", "none", or mean and deviation as numbers for each channel."""
    if text in (None, "imagenet", "none"):
        return text
    assert text is not None
    try:
        mean, std = ([float(value) for value in half.split(",")] for half in text.split("/"))
    except ValueError:
        mean, std = [], []
    if len(mean) not in (1, 3) or len(std) not in (1, 3) or any(not value > 0 for value in std):
        raise InputError(
            f"--normalise must be imagenet, none or MEAN/STD with one number or three each, such as 0.5/0.5, "
            f"got {text!r}"
        )
    return tuple(mean * (3 // len(mean))), tuple(std * (3 // len(std)))


def check_file(path: Path | None, what: str) -> None:
    """Refuse a file that is not there."""
    if path is not None and not given_path(path).is_file():
        remedy = FORMATS[what].made_by if what in FORMATS else "check the path"
        raise InputError(f"no {what} at {path}; {remedy}")


def check_record(place: Path) -> Path:
    """The record in a folder, or the file itself, which must be there."""
    path = place / "record.json" if given_path(place).is_dir() else place
    check_file(path, "record")
    return path


def read_record(place: Path) -> Record:
    """The record in a folder or file; what is none is refused."""
    return Record.load(check_record(place))


def check_out(folder: Path | None) -> None:
    """Refuse a file where a folder shall be."""
    if folder is not None and given_path(folder).exists() and not folder.is_dir():
        raise InputError(f"--out must be a folder, {folder} is a file; choose another")


def free_place(path: Path, force: bool) -> Path:
    """The path, unless something is there that was not given up with --force."""
    if given_path(path).exists() and not force:
        raise InputError(f"{path} is already there; choose another --out, or replace it with --force")
    return path


def check_data(spec: str | None, split: str | None = None) -> None:
    """Refuse a dataset that nobody knows, an option or split it does not have, and a folder not there."""
    head = (spec or "").partition("?")[0]
    if spec is None or plugins.is_offered("dataset", head.partition(":")[0]):
        return  # of an installed package
    known = names.facts("dataset")
    name = spec.partition("?")[0].partition(":")[0]
    could_be = name not in known and re.fullmatch(r"[a-z][\w-]+", name)
    if could_be and names.mentioned(name, names.PACKAGE.joinpath("data").glob("*.py")):
        return  # too new for the table
    name, place, options = parse_spec(spec, {name: facts["options"] for name, facts in known.items()})
    if name not in known:
        return  # module:function, which is imported when it is opened
    if CORRUPTION in options:
        check_corruption(options[CORRUPTION])
    if split is not None and (splits := known[name]["splits"]):
        check_split(name, split, splits)
    if ":PATH" not in known[name]["example"] or not place:
        return
    path = given_path(place)
    if not path.is_dir() and not (name == FOLDER and path.is_file()):
        what = "is a file" if path.exists() else "does not exist"
        raise DataError(f"expected a folder of images, got {path}, which {what}")
    usual = {one for alike in SPLITS.values() for one in alike} | {*PARTS, None}
    if split not in usual and not any((path / below / str(split)).is_dir() for below in ("", "images")):
        raise DataError(f"{path} has no split called {split!r}, nor a folder of that name")


def check_corruption(text: str) -> None:
    """Refuse a corruption that nobody knows in text such as fog:3."""
    if text:
        names.check_name("corruption", text.partition(":")[0])
        split_corruption(text)


def check_image(spec: str) -> None:
    """Refuse what is neither an image's file nor DATA:NUMBER."""
    if given_path(spec).is_file():
        return
    data, _, number = spec.rpartition(":")
    if not data or not number.isdecimal():
        raise DataError(
            f"expected an image's file, or DATA:NUMBER such as sample:3, got {spec!r}; "
            "`robvit data list` names the datasets"
        )
    check_data(data)


def check_figures(figures: list[str] | None) -> None:
    """Refuse a figure that nobody draws."""
    for name in figures or []:
        if name not in NAMES:
            raise unknown("figure", name, list(NAMES))


def check_head(kind: str, data: str) -> None:
    """Refuse an unknown kind of head, and one whose targets, labels or masks, a dataset does not have."""
    names.check_name("head", kind)
    wanted = names.facts("head").get(kind, {}).get("learns_from")
    masks = names.facts("dataset").get(dataset_of(data), {}).get("masks")
    if wanted is not None and masks is not None and masks != (wanted == "masks"):
        others = "segmentation" if masks else "linear or knn"
        raise DataError(f"a {kind} head learns from {wanted}, {data} has other targets; take --kind {others}")


def dataset_of(spec: str) -> str:
    """The name of a dataset in a spec."""
    return spec.partition("?")[0].partition(":")[0]
