"""A model card in Markdown, from the record of a tuning and the records of what judged its result.

Nothing here is a new measurement: every number comes from a record, and what no record says is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robvit.budget import Budget
from robvit.errors import InputError
from robvit.evaluation.attack import SEGMENTED
from robvit.evaluation.claims import judged_by_autoattack
from robvit.record import PROCESSOR, Record
from robvit.report.summary import Share, attacker_summaries, headlines
from robvit.sharing_card import table
from robvit.texts import Markdown, markdown_code, markdown_text

TUNED = "tuned fingerprint"


def model_card(records: Sequence[Record], *, name: str = "") -> str:
    """The card of a tuned model as Markdown.

    records: that of `robvit robustify --method lora | full`, and those of evaluations of its result and of
        the original, which stands beside it for comparison
    name: what the model is called; the backbone's name with "-robust" if left out
    """
    records = [record.without_places() for record in records]
    tunings = [r for r in records if r.kind == "robustify" and "settings" in r.model]
    if len(tunings) != 1:
        raise InputError(
            f"a card is made from the record of one tuning (`robvit robustify --method lora`) and those of "
            f"its evaluations, got {len(tunings)} tunings among {len(records)} records"
        )
    tuning = tunings[0]
    judged = [r for r in records if r is not tuning]
    for record in judged:
        _belongs(record, tuning)
    title = name or f"{tuning.model['name']}-robust"
    parts = [
        f"# {markdown_text(title)}",
        _summary(tuning),
        "## How it was made",
        table(("", ""), _making(tuning)),
        "## How it was judged",
        _judged(judged, tuning),
        "## What its held-out images said",
        table(("measured while tuning", "value"), _measured(tuning)),
        "## Limits",
        "\n".join(f"- {markdown_text(line)}" for line in _limits(tuning, judged)),
    ]
    return "\n\n".join(parts) + "\n"


def _belongs(record: Record, tuning: Record) -> None:
    """Refuse the record of another network: a card tells of one."""
    known = {tuning.model.get(TUNED), tuning.model["fingerprint"]}
    if record.model.get("fingerprint") not in known:
        raise InputError(
            f"the record of {record.model.get('name')} ({record.created}) judges weights "
            f"{str(record.model.get('fingerprint'))[:12]}, neither this tuning's result nor its original"
        )


def _is_original(record: Record, tuning: Record) -> bool:
    return bool(record.model.get("fingerprint") == tuning.model["fingerprint"])


def _summary(tuning: Record) -> str:
    settings = tuning.model["settings"]
    labels = "with labels" if settings.get("loss", "features") != "features" else "without labels"
    name = markdown_text(str(tuning.model["name"]))
    return (
        f"{name} tuned {labels} against attacks up to {_eps(settings)} ({settings['norm']}) by someone who "
        "has all of it; how many images survive them stands below. Heads that were learned on the original's "
        "features fit; what they lose stands below too. It is no secret."
    )


def _making(tuning: Record) -> list[tuple[str, str]]:
    settings, data, model = tuning.model["settings"], tuning.data, tuning.model
    images = _with_code(f"{data.get('spec') or 'in memory'}, {data['count']} images, digest", data["digest"])
    rows = [
        ("backbone", _with_code(f"{model['name']}, weights", model["fingerprint"])),
        ("result", _with_code(f"{model['result']}, weights", model.get(TUNED, ""))),
        ("image size", "x".join(map(str, model["input"]))),
        ("data", images),
        ("objective", _objective(tuning)),
        ("eps", f"{_eps(settings)} ({settings['norm']})"),
        ("inner attack", f"{settings['inner_steps']} steps of {settings['step']:g} eps"),
        ("steps", f"{settings['steps']} of {settings['batch']} images"),
        ("cost", _cost(tuning)),
        ("made", tuning.created),
    ]
    if more := data.get("extra"):
        words = (
            f"{settings['extra_share']:.0%} of each batch from {more['spec'] or 'memory'}, {more['count']} "
        )
        rows.insert(4, ("and", _with_code(f"{words}images, digest", more["digest"])))
    if start := settings.get("start"):
        rows.insert(2, ("started from", _with_code(f"factors of {start['steps']} steps,", start["digest"])))
    return [*rows, ("command", Markdown(markdown_code(tuning.command)))] if tuning.command else rows


def _measured(tuning: Record) -> list[tuple[str, str]]:
    return [(k, f"{v:.3f}") for k, v in tuning.metrics.items() if k not in ("seconds", PROCESSOR)]


def _cost(tuning: Record) -> str:
    """Processor minutes of a tuning and of those it started from; a clock counts other work along."""
    own, start = tuning.metrics.get(PROCESSOR), tuning.model["settings"].get("start")
    device = tuning.machine.get("device", "cpu")
    if own is None or device != "cpu":  # a GPU's work is not the processor's
        return f"{tuning.metrics['seconds'] / 60:.1f} minutes by the clock on {device}"
    if not start:
        return f"{own / 60:.1f} processor minutes"
    if (before := start.get(PROCESSOR)) is None:
        return f"{own / 60:.1f} processor minutes, and what its start had cost, which is not recorded"
    return f"{(own + before) / 60:.1f} processor minutes, {before / 60:.1f} of them for its start"


def _with_code(text: str, checksum: object) -> Markdown:
    """Text and the beginning of a checksum."""
    return Markdown(f"{markdown_text(text)} {markdown_code(str(checksum)[:12])}")


def _judged(records: list[Record], tuning: Record) -> str:
    if not records:
        return "No record of an evaluation was given, so nothing is claimed."
    rows = []
    for record in records:
        who = "original" if _is_original(record, tuning) else "tuned"
        data = f"{record.data.get('spec') or record.data.get('name', '')}"
        rules = str(record.protocol.get("name", record.kind))
        found = headlines(record, attacker_summaries(record)) if record.trials else []
        rows += [
            (who, data, rules, line.threat, str(line.worst.total), _percent(line.clean), _percent(line.worst))
            for line in found
        ]
        n = str(record.data.get("count", ""))
        rows += [(who, data, rules, *line) for line in (() if found else _measures(record, n))]
    head = ("network", "data", "protocol", "threat or measure", "n", "clean", "worst case")
    note = "Accuracy with its 95 % interval; an image counts only if it stays correct under every attack."
    return f"{table(head, rows)}\n\n{note}"


def _measures(record: Record, n: str) -> list[tuple[str, str, str, str]]:
    """What was measured other than by classes: of what, how many images, clean and attacked."""
    dense = next((t for t in record.tables if t.title == SEGMENTED), None)
    if dense is None:
        return [(what, n, "", f"{value:.3f}") for what, value in record.metrics.items()]
    clean, attacked = ([float(cell) for cell in row[2:]] for row in dense.rows)
    (miou, *pixels), (miou_after, *pixels_after) = clean, attacked
    under = str(dense.rows[1][0])
    return [
        (f"mIoU, {under}", n, f"{miou:.1f}%", f"{miou_after:.1f}%"),
        (f"pixel accuracy, {under}", n, _points(pixels), _points(pixels_after)),
    ]


def _points(values: list[float]) -> str:
    share, low, high = values
    return f"{share:.1f}% ({low:.1f}% to {high:.1f}%)"


def _limits(tuning: Record, records: list[Record]) -> list[str]:
    own = [r for r in records if not _is_original(r, tuning)]
    lines = []
    if not any(judged_by_autoattack(record) for record in own):
        lines.append("AutoAttack has not judged it: the figures compare choices and are no verdict.")
    lines += [str(audit) for record in own for audit in record.audits]
    sets = sorted({str(r.data.get("spec")) for r in own if r.data.get("digest")})
    lines.append(
        f"Judged on {', '.join(sets) or 'nothing'} at {tuning.model['input'][0]} pixels and nothing else."
    )
    lines.append(f"Tuned against {_eps(tuning.model['settings'])}; larger budgets break more.")
    lines += [f"{f.check}: {f.evidence}" for f in tuning.findings if f.status in ("amber", "red")]
    labels = "No labels" if _objective(tuning) == "features" else "Labels"
    return [*lines, f"{labels} were used."]


def _objective(tuning: Record) -> str:
    """What was minimised; records of the first tunings do not say, and theirs were features."""
    return str(tuning.model["settings"].get("loss", "features"))


def _percent(one: Share | None) -> str:
    return "" if one is None else f"{one.share:.1%} ({one.low:.1%} to {one.high:.1%})"


def _eps(settings: dict[str, Any]) -> str:
    return Budget(settings["norm"], float(settings["eps"])).amount
