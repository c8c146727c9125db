"""Recipes, protocols and studies as they were typed, checked before torch is loaded.

Like `checks`: the rooms check again what they are given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from robvit import names
from robvit.budget import check_budget, parse_number
from robvit.cli.checks import check_file
from robvit.errors import InputError
from robvit.files import YAML_BYTES, parse_yaml, read_text
from robvit.registry import unknown
from robvit.settings import check_like, check_setting, parse_settings

if TYPE_CHECKING:
    from robvit.training.recipe import Recipe


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
