"""What was typed, checked before torch is loaded, so that a slip is answered at once.

The rooms check again what they are given; here is only what can be known from names, numbers and files.
"""

from __future__ import annotations

import math
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robvit import names, plugins
from robvit.backbones import zoo
from robvit.backbones.programs import is_program, program_file
from robvit.budget import check_budget, parse_number
from robvit.errors import DataError, InputError
from robvit.explanation.figures import NAMES
from robvit.files import YAML_BYTES, given_path, parse_yaml, read_text
from robvit.record import Record
from robvit.registry import unknown
from robvit.settings import check_like, check_setting, parse_settings
from robvit.specs import CORRUPTION, FOLDER, PARTS, SPLITS, check_split, parse_spec, split_corruption

if TYPE_CHECKING:
    from robvit.training.recipe import Recipe

MAKERS = {
    "head": "`robvit train head` makes one",
    "tokens": "`robvit robustify` makes them",
    "lora": "`robvit robustify --method lora` makes them",
    "adapters": "`robvit train tora` makes them",
}


def check_model(
    name: str | None, arch: str | None = None, *, programs: bool = False, **files: Path | None
) -> None:
    """Refuse an unknown model, and files that are not there: `head`, `tokens`, `lora` or `adapters`.

    With `programs` ONNX and TorchScript files are taken too.
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
    for what, path in files.items():
        if path is None or str(path).startswith(zoo.HUB) or given_path(path / "config.json").is_file():
            continue  # of the hub, or a folder of save_pretrained
        check_file(path, what)


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
        raise InputError(f"no {what} at {path}; {MAKERS.get(what, 'check the path')}")


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


def check_threat(norm: str, eps: str, *, usable: bool = False) -> None:
    """Refuse a budget that is no number, negative, or meant in grey levels; with `usable` zero too."""
    check_budget(norm, parse_number(eps), usable=usable)


def check_figures(figures: list[str] | None) -> None:
    """Refuse a figure that nobody draws."""
    for name in figures or []:
        if name not in NAMES:
            raise unknown("figure", name, list(NAMES))


def check_attack(attack: str, norm: str, eps: str, settings: list[str] | None = None) -> None:
    """Refuse an attack that nobody knows, a norm it does not work in, and settings it does not have."""
    check_threat(norm, eps)
    names.check_name("attack", attack, "(see `robvit attacks`)")
    facts = names.facts("attack").get(attack)
    if facts is None:
        return  # too new for the table
    if norm not in facts["norms"]:
        raise InputError(f"{attack} works in {', '.join(facts['norms'])}, got {norm}")
    if facts["kind"] == "budget" and not math.isfinite(parse_number(eps)):
        raise InputError(f"{attack} needs a finite eps, got {eps}; fab and cw_l2 search without one")
    for name, value in parse_settings(settings or [], facts["defaults"], attack).items():
        check_setting(name, value, facts["defaults"][name])
        if name == "loss":
            names.check_name("loss", value)


def check_compiler(name: str | None) -> None:
    """Refuse a compiler that torch does not have, as far as its files tell."""
    if name is None:
        return
    backend, files = name.removesuffix("/padded"), names.sources("torch", "_dynamo/backends")
    offered = {found.name for found in entry_points(group="torch_dynamo_backends")}
    if files and backend not in offered and not names.mentioned(backend, files):
        raise InputError(f"torch has no compiler called {name!r}; the usual one is inductor")


def check_study(study: str, settings: list[str] | None) -> dict[str, Any]:
    """The settings of a study; an unknown study or setting is refused."""
    names.check_name("study", study, "(see `robvit reproduce`)")
    facts = names.facts("study").get(study)
    if facts is None:
        return {}  # too new for the table
    found = parse_settings(settings or [], facts["defaults"], study)
    for name, value in found.items():
        check_like(name, value, facts["defaults"][name])
    return found


def check_protocol(protocol: str) -> None:
    """Refuse a protocol that is neither one of the package's nor a YAML file that is there."""
    known = names.files_named("evaluation/protocols")
    if protocol not in known and not protocol.endswith((".yaml", ".yml")):
        raise unknown("protocol", protocol, known, "Or give the path of a .yaml file.")
    if protocol not in known:
        check_file(Path(protocol), "protocol")
        _check_protocol_file(Path(protocol))


def check_robustbench(place: Path | None, protocol: str | None) -> None:
    """Refuse to write RobustBench's form of a protocol that attacks nothing."""
    if place is None or protocol is None:
        return
    known = protocol in names.files_named("evaluation/protocols")
    path = names.PACKAGE / "evaluation" / "protocols" / f"{protocol}.yaml" if known else Path(protocol)
    if not parse_yaml(read_text(path, "a protocol", YAML_BYTES), path).get("attacks"):
        raise InputError(f"RobustBench's form wants attacks, {protocol} has none; leave --robustbench out")


def _check_protocol_file(path: Path) -> None:
    """Refuse keys nobody knows, a budget that is none, unknown attacks and settings they do not have."""
    content = parse_yaml(read_text(path, "a protocol", YAML_BYTES), path)
    keys = list(names.facts("key of a protocol"))
    for key in content:
        if key not in keys:
            raise unknown(f"key of {path}", str(key), keys)
    threat = content.get("threat")
    if isinstance(threat, dict) and isinstance(threat.get("norm"), str) and "eps" in threat:
        check_budget(threat["norm"], parse_number(str(threat["eps"])))
    entries = content.get("attacks")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("attack"), str):
            continue  # the protocol itself says what is wrong with it
        name, settings = entry["attack"], entry.get("settings")
        names.check_name("attack", name, "(see `robvit attacks`)")
        known: dict[str, Any] = names.facts("attack").get(name, {}).get("defaults") or {}
        for key, value in (settings if known and isinstance(settings, dict) else {}).items():
            if key not in known:
                raise unknown(f"setting of {name}", str(key), list(known))
            if not isinstance(value, str):  # fractions such as 2/255 are numbers by then
                check_setting(key, value, known[key])


def check_recipe(recipe: str, settings: list[str] | None) -> Recipe:
    """The recipe with its changes; an unknown one, unknown keys and impossible values are refused."""
    known = names.files_named("training/recipes")
    if recipe not in known and not recipe.endswith((".yaml", ".yml")):
        raise unknown("recipe", recipe, known, "Or give the path of a .yaml file.")
    if recipe not in known:
        check_file(Path(recipe), "recipe")
    _check_keys(settings, list(names.facts("key of a recipe")), recipe)
    from robvit.training.recipe import ASCENT, changes_of, load_recipe

    chosen = load_recipe(recipe, **changes_of(settings or []))
    names.check_name("training loss", chosen.loss)
    if chosen.inner.attack != ASCENT:
        names.check_name("attack", chosen.inner.attack, "(see `robvit attacks`)")
    return chosen


def check_tuning(settings: list[str] | None) -> None:
    """Refuse what is neither a setting of a fine-tuning nor a key of a recipe."""
    own = names.declared("training/tuning.py", "Tuning")
    _check_keys(settings, [*own, *names.facts("key of a recipe")], "robustify")


def _check_keys(settings: list[str] | None, keys: list[str], owner: str) -> None:
    for item in settings or []:
        key, equals, _ = item.partition("=")
        if not equals:
            raise InputError(f"a change looks like lr=1e-3 or inner.eps=4/255, got {item!r}")
        if key not in keys and not key.startswith(("loss_settings.", "inner.settings.")):
            raise unknown(f"key of {owner}", key, keys)
