"""What the registries hold, by name and without torch, so that a wrong name is refused at once.

`names.json` is written from the registries by `make names`; a test compares them. A name that is missing
there but defined in the room's files, as a new attack is, is left to the registry.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from robvit import plugins
from robvit.registry import REGISTRIES, unknown

# What is registered, and the folder whose files register it.
ROOMS = {
    "attack": "attacks",
    "check": "diagnosis",
    "corruption": "data",
    "dataset": "data",
    "head": "backbones",
    "loss": "attacks",
    "study": "studies",
    "training loss": "training",
}
PACKAGE = Path(__file__).parent


@cache
def facts(kind: str) -> dict[str, dict[str, Any]]:
    """The names of a kind, in the registry's order, with what the command line tells of each."""
    table = json.loads(PACKAGE.joinpath("names.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = table[kind]
    return found


def check_name(kind: str, name: str, hint: str = "") -> None:
    """Refuse a name that nothing of this kind has, neither in the package nor filed by a running program."""
    if any(registry.kind == kind and name in registry for registry in REGISTRIES):
        return
    if kind in plugins.GROUPS and plugins.is_spec(name):
        plugins.check_there(name)
        return
    if kind in plugins.GROUPS and plugins.is_offered(kind, name):
        return
    if name not in facts(kind) and not mentioned(name, PACKAGE.joinpath(ROOMS[kind]).rglob("*.py")):
        raise unknown(kind, name, list(facts(kind)), hint)


def mentioned(name: str, files: Iterable[Path]) -> bool:
    """Whether Python files define a function of this name, or have the name in quotes."""
    forms = (f"def {name}(", f'"{name}"', f"'{name}'")
    texts = (file.read_text(encoding="utf-8") for file in files)
    return any(form in text for text in texts for form in forms)


def declared(file: str, name: str) -> list[str]:
    """The fields that a dataclass in a file of the package declares; nothing is imported."""
    tree = ast.parse(PACKAGE.joinpath(file).read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    fields = [node.target for node in found.body if isinstance(node, ast.AnnAssign)]
    return [field.id for field in fields if isinstance(field, ast.Name)]


def files_named(folder: str, suffix: str = ".yaml") -> list[str]:
    """The names of the files in a folder of the package, such as training/recipes, without their suffix."""
    return sorted(path.stem for path in PACKAGE.joinpath(folder).glob(f"*{suffix}"))


def sources(package: str, folder: str = "") -> list[Path]:
    """The Python files of an installed package, which is not imported; none if it is not there."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        return []
    return sorted(Path(found.submodule_search_locations[0], folder).rglob("*.py"))
