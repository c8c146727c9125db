"""What was typed of attacks and budgets, checked before torch is loaded."""

from __future__ import annotations

import math
from importlib.metadata import entry_points
from pathlib import Path

from robvit import names
from robvit.budget import check_budget, parse_number
from robvit.certification.windows import patch_side, window_counts
from robvit.cli.checks import dataset_of
from robvit.errors import DataError, InputError
from robvit.registry import unknown
from robvit.settings import check_setting, parse_settings


def check_threat(norm: str, eps: str, *, usable: bool = False) -> None:
    """Refuse a budget that is no number, negative, or meant in grey levels; with `usable` zero too."""
    check_budget(norm, parse_number(eps), usable=usable)


def check_patch(patch: str | None, windows: str, model: str) -> None:
    """Refuse a patch that is no number of pixels or share of an image, windows that are none, and a known
    model that cannot do without some of its tokens."""
    window_counts(windows)
    if patch is None:
        return
    if patch_side(patch, (224, 224)) < 1:
        raise InputError(f"--patch must be 1 pixel or more, got {patch}")
    known = names.facts("model")
    if not known.get(model, {}).get("drops_tokens", True):
        able = ", ".join(name for name, about in known.items() if about["drops_tokens"] and about["classes"])
        raise InputError(
            f"nothing can be certified by dropping tokens of {model}: it is no plain ViT, or tokens share "
            f"pixels; take {able}, or a DINOv2 with a head"
        )


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


def check_output(attack: str, model: str, head: Path | None) -> None:
    """Refuse an attack on something else than what a known model without another head returns."""
    about, known = names.facts("attack").get(attack), names.facts("model").get(model)
    if about is None or known is None or head is not None:
        return
    returned = "classes" if known["classes"] else "features"
    if about["task"] != returned:
        raise InputError(
            f"{attack} attacks {about['task']}, {model} returns {returned}; leave --attack out or give a head"
        )


def check_task(attack: str, settings: list[str] | None, data: str) -> None:
    """Refuse an attack on masks where a dataset has labels, and the other way round."""
    about, dataset = names.facts("attack").get(attack), names.facts("dataset").get(dataset_of(data))
    if about is None or dataset is None or dataset["masks"] is None:
        return
    wanted = about["task"] == "pixels" or "loss=pixel_cross_entropy" in (settings or [])
    if wanted and not dataset["masks"]:
        raise DataError(f"{attack} needs masks, {data} has none; take shapes, or masks:PATH for your own")
    if dataset["masks"] and not wanted:
        raise DataError(f"{attack} needs labels, {data} has masks (masks are attacked by segpgd)")


def check_target(target: str | None, attack: str, model: str, data: str, own: bool) -> None:
    """Refuse a class to aim at that is none of the data's; `own` says that the model brings names."""
    if target is None or attack not in names.facts("attack"):
        return
    able = [name for name, about in names.facts("attack").items() if "targeted" in about["defaults"]]
    if attack not in able:
        raise InputError(f"{attack} aims at no class; these attacks do: {', '.join(able)}")
    classes = names.facts("dataset").get(dataset_of(data), {}).get("classes")
    if own or not classes or model not in names.facts("model"):
        return
    rules = list(names.facts("target"))
    if target not in [*rules, *classes] and not (target.isdecimal() and int(target) < len(classes)):
        raise unknown("target", target, [*rules, *classes])


def check_compiler(name: str | None) -> None:
    """Refuse a compiler that torch does not have, as far as its files tell."""
    if name is None:
        return
    backend, files = name.removesuffix("/padded"), names.sources("torch", "_dynamo/backends")
    offered = {found.name for found in entry_points(group="torch_dynamo_backends")}
    if files and backend not in offered and not names.mentioned(backend, files):
        raise InputError(f"torch has no compiler called {name!r}; the usual one is inductor")
