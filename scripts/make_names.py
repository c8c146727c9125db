"""Write the names that the registries hold, and their settings, to src/robvit/names.json."""

from __future__ import annotations

import json
from typing import Any, get_args

import torch
from pydantic import BaseModel

from robvit.attacks import ATTACKS
from robvit.attacks.losses import LOSSES as ATTACK_LOSSES
from robvit.attacks.targets import RULES
from robvit.backbones import zoo
from robvit.backbones.families import patch_side
from robvit.backbones.heads import HEADS
from robvit.backbones.model import Model
from robvit.certification.dropping import TokenDropping
from robvit.data import CORRUPTIONS, DATASETS
from robvit.data.opening import dataset_options
from robvit.defenses.recipe import PRESETS
from robvit.diagnosis.doctor import CHECKS
from robvit.errors import Unsupported
from robvit.evaluation.protocol import Protocol
from robvit.exporting import SUFFIXES
from robvit.names import PACKAGE
from robvit.registry import Registry
from robvit.studies import STUDIES
from robvit.training import LOSSES
from robvit.training.recipe import Recipe

# The registries, and what of their facts the command line tells or checks without torch.
REGISTRIES: dict[Registry[Any, Any], tuple[str, ...]] = {
    ATTACKS: ("kind", "norms", "paper", "task", "defaults"),
    CHECKS: ("title",),
    CORRUPTIONS: (),
    DATASETS: ("about", "example", "splits", "classes", "masks"),
    HEADS: (),
    ATTACK_LOSSES: (),
    STUDIES: ("paper", "title", "defaults"),
    LOSSES: (),
}


def table() -> dict[str, dict[str, dict[str, Any]]]:
    """Kind to name to facts, as JSON has them."""
    found = {}
    for registry, told in REGISTRIES.items():
        own = [entry for entry in registry if entry.name not in registry.brought]
        found[registry.kind] = {e.name: {fact: getattr(e.info, fact) for fact in told} for e in own}
    found[LOSSES.kind] = dict(sorted(found[LOSSES.kind].items()))  # their modules are loaded in any order
    for name, facts in found[HEADS.kind].items():
        facts["learns_from"] = HEADS[name].learns_from
    options = dataset_options()
    for name, facts in found[DATASETS.kind].items():
        facts["options"] = options[name]
    found["model"] = {known.alias: _backbone(known) for known in zoo.ALIASES.values()}
    found["target"] = {rule: {} for rule in RULES}
    found["format"] = {name: {"suffix": suffix} for name, suffix in SUFFIXES.items()}
    found["preset"] = {name: {} for name in PRESETS}
    found["key of a recipe"] = {key: {} for key in _keys(Recipe)}
    found["key of a protocol"] = {key: {} for key in Protocol.model_fields}
    plain: dict[str, dict[str, dict[str, Any]]] = json.loads(json.dumps(found))
    return plain


def _backbone(known: zoo.Known) -> dict[str, int | bool]:
    """What a network's weights do not decide; it is built without memory for them."""
    with torch.device("meta"):
        net = zoo.build(known)
    model = Model(net)
    return {
        "patch": patch_side(net),
        "depth": model.depth,
        "classes": model.classes,
        "drops_tokens": _drops_tokens(model),
    }


def _drops_tokens(model: Model) -> bool:
    try:
        TokenDropping(model)
    except Unsupported:
        return False
    return True


def _keys(part: type[BaseModel], above: str = "") -> list[str]:
    """The keys of a recipe, a dot before those of its parts."""
    found = []
    for name, field in part.model_fields.items():
        found.append(above + name)
        for inside in (field.annotation, *get_args(field.annotation)):
            if isinstance(inside, type) and issubclass(inside, BaseModel):
                found += _keys(inside, f"{above}{name}.")
    return found


def text() -> str:
    """The table with one name a line, so that a change is one line."""
    kinds = []
    for kind, names in table().items():
        lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(facts)}" for name, facts in names.items())
        kinds.append(f"  {json.dumps(kind)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    place = PACKAGE / "names.json"
    place.write_text(text(), encoding="utf-8")
    print(f"written: {place}")
