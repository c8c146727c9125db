"""AutoAttack's parts, their full length, and whether what was run may be called by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from robvit.audit import Audit
    from robvit.record import Trial

NAME = "autoattack"
STEPS, TARGETS, QUERIES = 100, 9, 5000
PARTS = ("apgd_ce", "apgd_t", "fab_t", "square")  # in their order
RAND = ("apgd_ce", "apgd_dlr")  # for randomised models
SCREENING = "apgd"  # goes before the others where a sample is audited; it only breaks more
SCREENED, AUDITED = (SCREENING, "apgd_ce", "apgd_t"), ("fab_t", "square")


def part_settings(
    sparse: bool, steps: int = STEPS, targets: int = TARGETS, queries: int = QUERIES
) -> dict[str, dict[str, Any]]:
    """The settings of each part; in a sparse norm APGD has five starts and at most five targets."""
    return {
        "apgd_ce": {"steps": steps, "restarts": 5 if sparse else 1},
        "apgd_t": {"steps": steps, "targets": min(targets, 5) if sparse else targets},
        "fab_t": {"steps": steps, "targets": targets},
        "square": {"steps": queries},
    }


def is_audited(attack: object, settings: Mapping[str, Any]) -> bool:
    """Whether this is AutoAttack's audited version as one attack, given by its name or as a function."""
    return getattr(attack, "__name__", attack) == NAME and settings.get("version") == "audited"


def is_autoattack(trials: Iterable[Trial], audits: Sequence[Audit] = ()) -> bool:
    """Whether AutoAttack is among these attacks, as one or as all of its parts, nothing shortened.

    Its audited version counts beside the audits that say what it left open.
    """
    full = {trial.attack for trial in trials if _is_full(trial, audits)}
    return NAME in full or full >= {*PARTS}


def _is_full(trial: Trial, audits: Sequence[Audit]) -> bool:
    """Whether an attack is AutoAttack or a part of it at full length; shorter ones publish nothing."""
    if trial.attack == NAME:
        bounded = is_audited(NAME, trial.settings) and bool(audits)
        if trial.settings.get("version", "standard") != "standard" and not bounded:
            return False
        least = {"steps": STEPS, "targets": TARGETS, "queries": QUERIES}
        return all(trial.settings.get(name, least[name]) >= least[name] for name in least)
    if trial.attack not in PARTS:
        return False
    given = {"restarts": 1, **trial.settings}
    wanted = part_settings(trial.threat is not None and trial.threat.norm == "l1")[trial.attack]
    return all(given.get(name, 0) >= least for name, least in wanted.items())
