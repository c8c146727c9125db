"""What may be claimed from a record, in plain words that follow from its numbers."""

from __future__ import annotations

from robvit.attacks import ATTACKS
from robvit.autoattack import is_autoattack
from robvit.evaluation.attackers import ATTACKERS, knows_all
from robvit.evaluation.protocol import NO_TOKENS
from robvit.record import LEVELS, Record, Table, Trial
from robvit.statistics import share_of
from robvit.verdict import Verdict, claim_of, power_of

TRANSFER, BLACK_BOX, WHITE_BOX = "transfer", "black box", "white box"  # where an attacker's images come from
CHANCE_REMEDY = "Check normalisation, image size, channel order and the order of classes"


def knowledge_of(trial: Trial) -> str:
    """What an attacker of this trial needed: another model, answers, or the model itself."""
    if trial.surrogate:
        return TRANSFER
    attacker = ATTACKERS.info(trial.attacker).gradients if trial.attacker in ATTACKERS else True
    attack = ATTACKS.info(trial.attack).gradients if trial.attack in ATTACKS else True
    return WHITE_BOX if attacker and attack else BLACK_BOX


def judged_by_autoattack(record: Record) -> bool:
    """Whether AutoAttack's attacks at full length attacked in the white box, on all survivors or a sample."""
    return is_autoattack((t for t in record.attacks() if knows_all(t.attacker)), record.audits)


def attacker_levels(record: Record) -> list[Table]:
    """The scenarios from the outside in: accuracy on clean images and in the worst case of each scenario."""
    scenarios = record.scenarios()
    if len(scenarios) < 2:
        return []
    rows: list[list[object]] = []
    for scenario in scenarios:
        first = next(t for t in record.trials if t.scenario == scenario)
        clean, worst = (share_of(correct) for correct in (first.correct, record.still_correct(scenario)))
        rows.append([scenario, "control" if first.control else first.attacker, *clean[:1], *worst])
    columns = ["scenario", "attacker", "clean accuracy", "attacked accuracy", "low", "high"]
    known = dict.fromkeys(t.attacker for t in record.attacks() if t.attacker in ATTACKERS)
    knowledge = "; ".join(f"{name}: {ATTACKERS.info(name).knows}" for name in known)
    note = (
        "Attacked accuracy is the worst case of the scenario's attacks, image by image; low to high is 95 %. "
        f"What attackers know: {knowledge}."
    )
    return [Table(LEVELS, columns, rows, note)]


def claims(record: Record) -> list[str]:
    """The headline, what it rests on, and what it does not say."""
    attacks, clean = record.attacks(), record.clean()
    if clean is None:
        return []
    share, low, high = share_of(clean.correct)
    notes = [
        f"Clean accuracy {share:.1%} of {len(clean.correct)} images (95 % interval {low:.1%} to {high:.1%})."
    ]
    if attacks:
        notes += _robust(clean, attacks)
        notes += [str(audit) for audit in record.audits]
        notes += [*_by_attacker(record, attacks), *_may_claim(record)]
        if "trade-off" in record.model:
            notes.append(
                "The attacks aim at the mean of both heads; `robvit reproduce tora-table1` also attacks each "
                "head and the gates, and the accuracy under those attacks is the number to claim."
            )
        if any(t.skipped for t in attacks):
            notes.append(
                "Each attack saw only the images on which none before it succeeded; others count as wrong."
            )
    notes += chance_notes(record)
    wanted = (record.protocol.get("subset") or {}).get("count")
    if wanted and wanted > len(clean.correct):
        name = record.protocol["name"]
        notes.append(
            f"A part of {name}: {len(clean.correct)} of its {wanted:,} images. "
            "Small sample: see the confidence intervals."
        )
    wanted = record.protocol.get("audit", 0)
    notes += [
        f"A part of {record.protocol['name']}: its audit tried {audit.audited} survivors, {wanted} are "
        "wanted."
        for audit in record.audits
        if audit.size < wanted and audit.audited < audit.survivors and not audit.switched
    ]
    for name in sorted({name for t in attacks for name in t.warnings}):
        notes.append(f"Doubtful: an attack warned of {name}. `robvit doctor` looks into it.")
    return notes


def _robust(clean: Trial, attacks: list[Trial]) -> list[str]:
    """The accuracy under all attacks, a sentence for each budget."""
    notes = []
    for threat in dict.fromkeys(t.strength for t in attacks):
        under = [clean.correct, *(t.correct for t in attacks if t.strength == threat)]
        share, low, high = share_of([all(outcome) for outcome in zip(*under, strict=True)])
        notes.append(
            f"Robust accuracy {share:.1%} (95 % interval {low:.1%} to {high:.1%}) under {threat}: an image "
            "counts only if it stays correct under every attack."
        )
    return notes


def near_chance(record: Record) -> float | None:
    """The accuracy of guessing, where the clean accuracy is hardly better; else None.

    Hardly better is below twice that, or, with few classes, a tenth of the way from there to all.
    """
    clean = record.clean()
    classes = len(record.data.get("classes") or set(record.data.get("labels") or ()))
    if clean is None or classes < 2:
        return None
    chance = 1 / classes
    return chance if clean.accuracy < min(2 * chance, chance + 0.1 * (1 - chance)) else None


def chance_notes(record: Record) -> list[str]:
    """A warning where the model hardly recognises clean images."""
    chance, clean = near_chance(record), record.clean()
    if chance is None or clean is None:
        return []
    return [
        f"Doubtful: clean accuracy {clean.accuracy:.1%} is near chance ({chance:.1%}), so no figure means "
        f"anything. {CHANCE_REMEDY}."
    ]


def _by_attacker(record: Record, attacks: list[Trial]) -> list[str]:
    """The accuracy under each attacker's attacks, where several were tried; who knows most decides."""
    known = {
        name: ATTACKERS.info(name) for name in dict.fromkeys(t.attacker for t in attacks) if name in ATTACKERS
    }
    if all(info.knows_all for info in known.values()):
        return ["The attacker knew everything about the model."]
    notes = []
    for name, info in sorted(known.items(), key=lambda item: item[1].knows_all):
        scenario = next(t.scenario for t in attacks if t.attacker == name)
        notes.append(f"Accuracy under attack {record.robust_accuracy(scenario):.1%} {info.claim}.")
    if not any(info.knows_all for info in known.values()):
        notes.append(
            "No attacker had the model itself, so no white-box claim can be made: an attacker who has it "
            "does better."
        )
    return notes


def _may_claim(record: Record) -> list[str]:
    """Against which attackers secret tokens help, image by image, and how much they may at most elsewhere."""
    attacked = (t for t in record.trials if t.kind == "attack" and t.control and t.scenario == NO_TOKENS)
    if (bare := next(attacked, None)) is None:
        return []
    helped, bounded = list[str](), list[str]()
    for scenario, attacker in dict.fromkeys((t.scenario, t.attacker) for t in record.attacks()):
        claim = claim_of(scenario, record.still_correct(scenario), bare.correct)
        who = ATTACKERS.info(attacker).scenario
        if claim.verdict is Verdict.SEEN:
            helped.append(who)
        else:
            bounded.append(f"{who} ({claim.wording})")
    notes = []
    if helped:
        notes.append(f"A defender may claim that tokens help where the {'; the '.join(helped)}.")
    if bounded:
        notes.append(
            f"Nothing may be claimed over a model without tokens where the {'; the '.join(bounded)}: "
            f"McNemar, 5 %; {power_of(len(bare.correct))}."
        )
    return notes
