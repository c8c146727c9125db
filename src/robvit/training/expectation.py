"""What a tuning may be expected to reach, from results that were recorded; nothing is guessed.

The package carries what the project's records say (`recorded.json`, written by scripts/fill_docs.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from robvit.backbones.model import Model
from robvit.budget import Budget
from robvit.evaluation.attackers import WHITE_BOX
from robvit.record import PROCESSOR, Record
from robvit.training.tuning import ONLY_FEATURES, Tuning

RECORDED = "recorded.json"
# Besides network, size and method: what another tuning differs in, whose figures say nothing of this one.
ALIKE = ("rank", "blocks", "class_weight", "loss", "hide")
Known = list[dict[str, Any]]


def expected(model: Model, tuning: Tuning, known: Known | None = None) -> str:
    """What the nearest recorded tuning of these weights at this size kept under attack, in words."""
    nothing = f"nothing is recorded for {_what(model, tuning)}, so nothing can be said of what it will reach"
    return recorded(model, tuning, known) or nothing


def _what(model: Model, tuning: Tuning) -> str:
    return f"{model.name} at {model.input_size[0]} pixels, method {tuning.method}"


def recorded(model: Model, tuning: Tuning, known: Known | None = None) -> str:
    """The same, or nothing where no record tells of it; nearest is by eps, then by how long it was tuned."""
    tuning = tuning.settled(model)
    mine = {"fingerprint": model.fingerprint(), "input": list(model.input_size), "method": tuning.method}
    mine |= {name: getattr(tuning, name) for name in ALIKE}
    alike = [
        one
        for one in (_shipped() if known is None else known)
        if all(one[name] == value for name, value in mine.items())
    ]
    if not alike:
        return ""
    wanted = tuning.steps * tuning.batch
    near = min(alike, key=lambda one: (abs(one["eps"] - tuning.eps), abs(math.log(_seen(one) / wanted))))
    kept = (
        f"{one['share']:.0%} ({one['low']:.0%} to {one['high']:.0%}) of {one['images']} images{one['data']} "
        f"at {one['threat']}"
        for one in near["judged"]
    )
    before = f" after {near['steps before']} before" if near["steps before"] else ""
    eps = Budget("linf", near["eps"]).amount
    on = f" on {near['tuned on']}" if near["tuned on"] else ""
    done = f"{near['steps']} steps of {near['batch']} images{before}, eps {eps}"
    minutes = near[PROCESSOR] / 60
    return (
        f"recorded for {_what(model, tuning)}: after {minutes:.0f} processor minutes{on} ({done}) correct "
        f"under every attack tried were {'; '.join(kept)}"
    )


def _seen(one: dict[str, Any]) -> int:
    """The images of all steps, those before a start included."""
    return int((one["steps"] + one["steps before"]) * one["batch"])


@lru_cache(1)
def _shipped() -> Known:
    text = resources.files("robvit.training").joinpath(RECORDED).read_text("utf-8")
    found: Known = json.loads(text)
    return found


def summary(records: Sequence[Record]) -> Known:
    """Every recorded tuning that was judged under attack, as much of it as is told to who tunes.

    The records must tell the processor time of each tuning, and of those it started from.
    """
    found = []
    for one in records:
        if one.kind != "robustify" or "tuned fingerprint" not in one.model:
            continue
        judged = [
            r
            for r in records
            if r.kind == "evaluate"
            and _knows_all(r)
            and r.model.get("fingerprint") == one.model["tuned fingerprint"]
            and not r.model.get("tokens")
        ]
        if judged:
            found.append(_facts(one) | {"judged": [_verdict(r) for r in judged]})
    return found


def _knows_all(record: Record) -> bool:
    """Whether it was attacked, and by nobody who knows less than all: what a black box leaves says little."""
    attacks, everything = record.attacks(), ("", WHITE_BOX)
    return bool(attacks) and all(one.attacker in everything and not one.surrogate for one in attacks)


def _facts(one: Record) -> dict[str, Any]:
    settings, more = one.model["settings"], one.data.get("extra") or {}
    before = settings.get("start") or {"steps": 0, PROCESSOR: 0}
    return {
        **{name: one.model[name] for name in ("fingerprint", "input")},
        **{name: settings[name] for name in ("method", "eps", "steps", "batch")},
        **{name: settings.get(name, ONLY_FEATURES.get(name)) for name in ALIKE},
        "tuned on": " and ".join(filter(None, (one.data.get("spec"), more.get("spec")))),
        "steps before": before["steps"],
        PROCESSOR: round(one.metrics[PROCESSOR] + before[PROCESSOR]),
    }


def _verdict(record: Record) -> dict[str, Any]:
    row = record.headline()
    shares = {name: round(getattr(row, name), 4) for name in ("share", "low", "high")}
    spec = str(record.data.get("spec") or "")
    data = f" of {spec}" if spec else ""
    return {"data": data, "threat": row.threat, "images": len(record.still_correct()), **shares}
