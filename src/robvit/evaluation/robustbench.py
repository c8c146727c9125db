"""A record in the form of RobustBench's `model_info` files."""

from __future__ import annotations

from typing import Any

from robvit.autoattack import NAME, PARTS, SCREENING, is_autoattack
from robvit.errors import InputError
from robvit.record import Record

NORMS = {"linf": "Linf", "l2": "L2"}  # as RobustBench writes them


def model_info(record: Record) -> dict[str, Any]:
    """The fields of a `model_info` file; numbers are text there, and what a record can't know is empty.

    `autoattack_acc` is left out unless the attacks are AutoAttack's and no others, none of them shortened,
    all of them on every survivor.
    """
    attacks, clean = record.attacks(), record.clean()
    if not attacks or clean is None:
        raise InputError("RobustBench's form wants an attack, this record has none; choose another protocol")
    budgets = list(dict.fromkeys(t.threat for t in attacks if t.threat is not None))
    norms = dict.fromkeys(NORMS.get(budget.norm, budget.norm) for budget in budgets)
    found = {
        "link": "",
        "name": record.model["name"],
        "authors": "",
        "additional_data": None,
        "number_forward_passes": 1,
        "dataset": record.data["spec"],
        "venue": "",
        "architecture": record.model["name"],
        "threat_model": ", ".join(norms),
        "eps": ", ".join(budget.amount for budget in budgets),
        "clean_acc": f"{100 * sum(clean.correct) / len(clean.correct):.2f}",
        "reported": f"{100 * record.headline().share:.2f}",
    }
    names = {t.attack for t in attacks}
    # The screening before an audit only breaks more; a bound above zero is not AutoAttack's own accuracy.
    own = {NAME, *PARTS, *([SCREENING] if record.audits else [])}
    whole = is_autoattack(attacks, record.audits) and not any(audit.bound for audit in record.audits)
    if names <= own and whole:
        found["autoattack_acc"] = found["reported"]
    count, rules = len(clean.correct), record.protocol.get("name", "")
    about = f"Judged by robvit's {rules} on {count} images (digest {record.data['digest'][:12]})."
    found["footnote"] = " ".join([about, *map(str, record.audits)])
    return found
