"""What may be claimed from a record, in plain words that follow from its figures."""

from __future__ import annotations

from robvit.record import Record, Table, Trial
from robvit.statistics import interval

LADDER = "Threat ladder"  # the title of the table; the report draws the same from the trials

# What holds only if an attacker of this kind is the strongest there is.
ASSUMED = {
    "no-tokens": "the tokens stay secret and nobody trains tokens of their own",
    "black-box": "attackers see nothing but answers, and few of them",
    "own-tokens": "attackers train tokens as the defender did, but never see the real ones",
    "leak": "features were given away, from which attackers recovered tokens",
}


def ladder(record: Record) -> list[Table]:
    """The scenarios from the outside in: accuracy on clean images and in the worst case of each scenario."""
    scenarios = record.scenarios()
    if len(scenarios) < 2:
        return []
    rows: list[list[object]] = []
    for scenario in scenarios:
        trials = [t for t in record.trials if t.scenario == scenario]
        clean, worst = (_share(verdicts) for verdicts in (trials[0].correct, record.still_correct(scenario)))
        rows.append([scenario, "control" if trials[0].control else trials[0].attacker, *clean[:1], *worst])
    columns = ["scenario", "attacker", "clean accuracy", "attacked accuracy", "low", "high"]
    note = (
        "Attacked accuracy is the worst case of the scenario's attacks, image by image; low to high is 95 %."
    )
    return [Table(LADDER, columns, rows, note)]


def claims(record: Record) -> list[str]:
    """The headline, what it rests on, and what it does not say."""
    attacks, clean = record.attacks(), record.clean()
    if clean is None:
        return []
    share, low, high = _share(clean.correct)
    notes = [
        f"Clean accuracy {share:.1%} of {len(clean.correct)} images (95 % interval {low:.1%} to {high:.1%})."
    ]
    if attacks:
        row = record.headline()
        notes.append(
            f"Robust accuracy {row.share:.1%} (95 % interval {row.low:.1%} to {row.high:.1%}) under "
            f"{row.threat}: an image counts only if it withstands every attack."
        )
        notes += _secrecy(record, attacks)
        if "trade-off" in record.model:
            notes.append(
                "The attacks aim at the mean of both heads; `robvit reproduce tora-table1` also attacks each "
                "head and the gates, and what that leaves is the figure to claim."
            )
        if any(t.skipped for t in attacks):
            notes.append(
                "Each attack saw only what those before it left standing; the rest counts as broken."
            )
    wanted = (record.protocol.get("subset") or {}).get("count")
    if wanted and wanted > len(clean.correct):
        name = record.protocol["name"]
        notes.append(f"A part of {name}: {len(clean.correct)} of its {wanted:,} images. Mind the intervals.")
    for name in sorted({name for t in attacks for name in t.warnings}):
        notes.append(f"Doubtful: an attack warned of {name}. `robvit doctor` looks into it.")
    return notes


def _secrecy(record: Record, attacks: list[Trial]) -> list[str]:
    """What each attacker leaves, where several were tried; the one who knows most decides."""
    known = list(dict.fromkeys(t.attacker for t in attacks))
    if set(known) <= {"white-box"}:
        return ["The attacker knew everything about the model."]
    notes = []
    for attacker in known:
        if attacker in ASSUMED:
            scenario = next(t.scenario for t in attacks if t.attacker == attacker)
            notes.append(f"{record.robust_accuracy(scenario):.1%} is left if {ASSUMED[attacker]}.")
    if "white-box" not in known:
        return [*notes, "No attacker knew everything, so this is transfer only and no claim of robustness."]
    scenario = next(t.scenario for t in attacks if t.attacker == "white-box")
    return [
        *notes,
        f"{record.robust_accuracy(scenario):.1%} is left once the attacker knows everything: "
        "only this may be claimed without a word about secrets.",
    ]


def _share(correct: list[bool]) -> tuple[float, float, float]:
    return sum(correct) / len(correct), *interval(sum(correct), len(correct))
