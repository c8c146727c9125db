"""What may be called AutoAttack: it, or all of its parts, nothing shortened."""

from __future__ import annotations

from dataclasses import replace

from robvit.audit import Audit
from robvit.autoattack import PARTS, is_autoattack, part_settings
from robvit.budget import Budget
from robvit.record import Trial


def parts(norm: str) -> list[Trial]:
    """The parts of the standard version."""
    settings = part_settings(norm == "l1")
    return [Trial(name, Budget(norm, 0.1), settings[name], [True], [0], [0.0]) for name in PARTS]


def test_all_parts_in_full_are_autoattack_and_nothing_less() -> None:
    for norm in ("linf", "l1"):
        full = parts(norm)
        assert is_autoattack(full)
        assert not is_autoattack(full[:-1])
        for place, trial in enumerate(full):
            for name, value in trial.settings.items():
                shorter = replace(trial, settings={**trial.settings, name: value - 1})
                assert not is_autoattack([*full[:place], shorter, *full[place + 1 :]]), (norm, name)


def test_autoattack_as_one_is_its_defaults_or_longer() -> None:
    whole = replace(parts("linf")[0], attack="autoattack", settings={})
    assert is_autoattack([whole])
    assert not is_autoattack([replace(whole, settings={"targets": 3})])


def test_other_versions_are_autoattack_only_beside_their_audit() -> None:
    standard, audited, rand = (
        replace(parts("linf")[0], attack="autoattack", settings={"version": version})
        for version in ("standard", "audited", "rand")
    )
    audit = Audit(["fab_t", "square"], 300, 0, 400, 300, bound=0.01)
    assert is_autoattack([standard])
    assert not is_autoattack([audited])
    assert is_autoattack([audited], [audit])
    assert not is_autoattack([replace(audited, settings={"version": "audited", "steps": 9})], [audit])
    assert not is_autoattack([rand])
    assert not is_autoattack([rand], [audit])
