"""The card of something that is passed on, in Markdown: what it is, what judged it, and its limits.

Nothing here is a new measurement: every number comes from a record, and what no record says is named.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from robvit.places import data_without_places
from robvit.texts import code_line, markdown_text
from robvit.verdict import Verdict

if TYPE_CHECKING:
    from robvit.record import Record

WHAT = {
    "lora": "Low-rank factors that make a frozen Vision Transformer robust; merged, they cost nothing.",
    "head": "A head on a frozen backbone's features.",
    "tokens": "Robustness tokens for a frozen Vision Transformer.",
    "pool": "Several sets of robustness tokens for a frozen Vision Transformer.",
    "adapters": "TORA adapters for a frozen Vision Transformer.",
    "model": "A Vision Transformer.",
    "record": "The record of an evaluation with robvit: every image's outcome under every attack.",
}
USE = {
    "lora": 'robvit.load("MODEL", lora="hf:{}")',
    "head": 'robvit.load("MODEL", head="hf:{}")',
    "tokens": 'robvit.load("MODEL", tokens="hf:{}")',
    "pool": 'robvit.load("MODEL", tokens="hf:{}")',
    "adapters": 'robvit.load("MODEL", adapters="hf:{}")',
    "model": 'robvit.load("hf:{}")',
    "record": 'robvit.Record.from_pretrained("{}")',
}


def card_of(
    kind: str, facts: dict[str, Any], records: Sequence[Record], name: str = "", warning: str = ""
) -> str:
    """The card; `facts` are what its config tells."""
    title = code_line(name or f"robvit {kind}")
    facts, records = data_without_places(facts), [record.without_places() for record in records]
    shown = {key: value for key, value in facts.items() if value not in ("", [], {}, None)}
    rows = [(key.replace("_", " "), _text(value)) for key, value in shown.items()]
    parts = [
        metadata(kind),
        f"# {markdown_text(title)}",
        WHAT[kind],
        *([f"**Warning: {warning}; whoever has this folder has them.**"] if warning else []),
        table(("", ""), rows) if rows else "",
        f"```python\nimport robvit\n\n{USE[kind].format(title)}\n```",
        "## How it was judged",
        judged(records),
        "## Limits",
        "\n".join(f"- {markdown_text(line)}" for line in limits(records)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def metadata(kind: str) -> str:
    """What the hub reads at the top of a card."""
    tags = ["robvit", "adversarial-robustness", f"robvit-{kind}"]
    return "---\nlibrary_name: robvit\ntags:\n" + "".join(f"- {tag}\n" for tag in tags) + "---"


def judged(records: Sequence[Record]) -> str:
    """Every row of the records: model, data, attack, threat, number of images, accuracy with its interval."""
    rows = []
    for record in records:
        if not record.trials:
            continue
        data = str(record.data.get("spec") or "in memory").replace("\\", "/").rpartition("/")[2]
        named = (str(record.model.get("name", "")).rpartition("/")[2], data)
        rules = str(record.protocol.get("name", record.kind))
        n = str(len(record.trials[0].correct))
        rows += [
            (*named, rules, f"{row.scenario} {row.attack}".strip(), row.threat, n, _interval(row))
            for row in [*record.rows(), *([record.headline()] if record.attacks() else [])]
        ]
    if not rows:
        return "No record of an evaluation was given, so nothing is claimed."
    head = ("model", "data", "protocol", "attack", "threat", "n", "accuracy, 95 % interval")
    return table(head, list(dict.fromkeys(rows)))


def limits(records: Sequence[Record]) -> list[str]:
    """What the records do not show, and what they say against it."""
    own = [record for record in records if record.trials]
    if not own:
        return ["Nothing is known of its robustness: no record of an evaluation came with it."]
    threats = ", ".join(dict.fromkeys(t.strength for r in own for t in r.attacks())) or "no attack"
    lines = [f"Judged against {threats} and nothing else; larger budgets and other attacks break more."]
    lines += [str(claim) for r in own for claim in r.claims if claim.verdict is not Verdict.SEEN]
    lines += [f"{f.check}: {f.evidence}" for r in records for f in r.findings if f.status in ("amber", "red")]
    lines += [note for r in own for note in r.notes]
    return list(dict.fromkeys(lines))


def _interval(row: Any) -> str:
    return f"{row.share:.1%} ({row.low:.1%} to {row.high:.1%})"


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) > 8:
        return f"{len(value)}: {', '.join(map(str, value[:6]))} ..."
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, of text or of what is Markdown already."""

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(markdown_text(cell) for cell in cells)} |"

    return "\n".join([line(head), "|" + "---|" * len(head), *(line(row) for row in rows)])
