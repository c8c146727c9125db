"""Whether a record's trials are those that its protocol asks for; and what a verification finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from robvit import plugins
from robvit.errors import InputError
from robvit.evaluation.attackers import ATTACKERS
from robvit.evaluation.protocol import Attack, Protocol, find, names
from robvit.record import Record, Trial


@dataclass
class Verification:
    """What was checked: claims that hold, those that do not, and what could not be checked."""

    holds: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether something was checked, and all of it holds."""
        return bool(self.holds) and not self.broken

    def note(self, claim: str, why_not: str = "") -> None:
        """File a claim as one that holds, or with the reason why it does not."""
        if why_not:
            self.broken.append(f"{claim}: {why_not}")
        else:
            self.holds.append(claim)


def check_protocol(record: Record, found: Verification) -> Protocol | None:
    """The rules are those of the digest, a bundled name stands for the bundled rules, and all attacks ran."""
    name, digest = record.protocol.get("name"), record.protocol.get("digest")
    if not name:
        return None
    if code := _code_in(record.protocol):
        why = f"{code} is somebody's code, which a record does not make anyone run"
        if name in names():
            found.note(f"protocol {name}", f"the bundled protocol has no attack {code}")
        else:
            found.unchecked.append(f"protocol {name}: {why}")
        return None
    held = {key: value for key, value in record.protocol.items() if key in Protocol.model_fields}
    try:
        rules = find(Protocol(**held))
    except (InputError, ValueError) as error:
        found.note(f"protocol {name}", " ".join(str(error).split())[:200])
        return None
    if digest:
        same = rules.digest() == digest
        found.note(f"protocol {name}", "" if same else "its rules are not those of its digest")
    else:
        found.unchecked.append(f"protocol {name}: the record does not carry its digest")
    for entry in rules.attacks:
        claim = f"{entry.attack} of the {entry.attacker} attacker ran as the protocol says"
        found.note(claim, _not_run(entry, rules, record))
    if any(entry.audited for entry in rules.attacks):
        found.note("the audit tried as many images as the protocol says", _audit_flaw(rules, record))
    return rules


def _code_in(rules: dict[str, Any]) -> str:
    """The first attack that is module:function: reading it as a protocol would import it."""
    attacks = rules.get("attacks")
    entries = attacks if isinstance(attacks, list) else []
    found = (str(entry.get("attack", "")) for entry in entries if isinstance(entry, dict))
    return next(filter(plugins.is_spec, found), "")


def _not_run(entry: Attack, rules: Protocol, record: Record) -> str:
    """Why no trial whose outcome counts is the one that the protocol asks for, or nothing."""
    ran = [t for t in record.attacks() if t.attack == entry.attack and t.attacker == entry.attacker]
    wanted = entry.ready(0).items()
    ran = [t for t in ran if all(t.settings.get(k) == v for k, v in wanted if k != "seed")]
    if not ran:
        return "no trial that counts has these settings"
    for seed in rules.seeds:
        used = {t.surrogate for t in ran if t.settings.get("seed", 0) == seed}
        least = ATTACKERS.info(entry.attacker).surrogates(rules.attacker_budget)
        if len(used) < least:
            return f"seed {seed} of the protocol ran on {len(used)} models, {least} are wanted"
    budget = rules.threat_of(entry).budget
    if all(trial.threat != budget for trial in ran):
        return f"the protocol wants {budget}, the record has {ran[0].strength}"
    return ""


def _audit_flaw(rules: Protocol, record: Record) -> str:
    """Why fewer survivors were tried than the protocol wants, or nothing."""
    size = min([rules.audit, *(audit.size for audit in record.audits)])  # fewer may be asked for, and told
    for entry in (entry for entry in rules.attacks if entry.audited):
        counted = record.attacks()
        mine = [t for t in counted if t.attack == entry.attack]
        before = [t for t in counted if t.attack not in {e.attack for e in rules.attacks if e.audited}]
        if not mine or not before:
            return f"{entry.attack} has no trial, or none before it"
        survivors = sum(before[-1].correct)
        never = set[int].intersection(*(set(trial.unseen) for trial in mine))
        if (tried := survivors - len(never)) < min(size, survivors):
            return f"{entry.attack} tried {tried} of {survivors} survivors, {size} are wanted"
    return ""


def left_out_flaw(trial: Trial, before: list[Trial], rules: Protocol | None) -> str:
    """Why images that an attack did not see may not count as they do, or nothing."""
    earlier = [t for t in before if t.scenario == trial.scenario and not t.control]
    for i in trial.skipped:
        if trial.correct[i] or all(t.correct[i] or i in t.not_attacked for t in earlier):
            return f"image {i} is said to have been wrong before, and no trial before says so"
    audited = [entry.attack for entry in rules.attacks if entry.audited] if rules else []
    if trial.unseen and trial.attack not in audited:
        return (
            f"{len(trial.unseen)} correct images were left out, and the protocol has no audit by this attack"
        )
    return ""
