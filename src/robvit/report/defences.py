"""Defences side by side, attacker by attacker: what a defender reads first."""

from __future__ import annotations

from collections.abc import Sequence

from robvit.evaluation.attackers import ATTACKERS, WHITE_BOX
from robvit.record import Record, Table
from robvit.report.summary import attacker_summaries

TITLE = "Defences by attacker"
NONE = "no defence"


def defence_of(record: Record) -> str:
    """What protects the judged model: tokens, tuned weights, both, adapters, or nothing."""
    model = record.model
    parts = {
        "tokens": model.get("tokens"),
        "tuned": model.get("tuned from"),
        "adapters": "trade-off" in model,
    }
    return " and ".join(name for name, there in parts.items() if there) or NONE


def defence_table(records: Sequence[Record]) -> Table | None:
    """Accuracy under each attacker, one column a defence; nothing unless two or more on the same images.

    A cell is the worst case of the attacker's attacks, image by image, with its 95 % interval; None where no
    record says. Records of one defence are one column, and the least of their figures counts.
    """
    digests = {str(r.data.get("digest")) for r in records}
    columns = list(dict.fromkeys(defence_of(r) for r in records))
    if len(columns) < 2 or len(digests) != 1:
        return None
    found: dict[tuple[str, str, str], dict[str, tuple[float, str]]] = {}
    for record in records:
        for summary in attacker_summaries(record):
            if summary.control:
                continue
            lines = [("clean", "", "none", summary.clean)] if summary.clean else []
            name = summary.attacker or WHITE_BOX
            knows = ATTACKERS.info(name).knows if name in ATTACKERS else ""
            lines.append((name, knows, summary.threat, summary.worst))
            for *key, one in lines:
                cells = found.setdefault((key[0], key[1], key[2]), {})
                text = f"{one.share:.1%} ({one.low:.1%} to {one.high:.1%})"
                kept = cells.get(defence_of(record))
                cells[defence_of(record)] = min(kept, (one.share, text)) if kept else (one.share, text)
    order = ["clean", *ATTACKERS]
    keys = sorted(found, key=lambda key: (order.index(key[0]) if key[0] in order else len(order), key[2]))
    rows = [
        [name, knows, threat, *(found[name, knows, threat].get(c, (0, None))[1] for c in columns)]
        for name, knows, threat in keys
    ]
    count = len(next(t.correct for r in records for t in r.trials))
    note = (
        f"{count} images, the same for all; the worst case of each attacker's attacks, with 95 % intervals. "
        "Tuned weights hide nothing, so attackers who lack a secret are of no account to them."
    )
    return Table(TITLE, ["attacker", "knows", "threat", *columns], rows, note)
