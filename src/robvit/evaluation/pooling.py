"""An evaluation in parts: each judges a share of the images, on any machine or day; all become one record."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

from robvit.audit import Audit, pooled
from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.evaluation.claims import attacker_levels, claims
from robvit.evaluation.protocol import Protocol
from robvit.locks import kept_in
from robvit.record import Record, Trial

PART, OF, WHOLE = "part", "parts", "whole"  # what the record of a part tells of its images besides
OVER_IMAGES = ("correct", "predicted", "distance", "targets")
PLACES = ("skipped", "unseen")
SUMS = ("forward", "backward", "seconds")
PART_NOTE = r"Part \d+ of \d+, "  # the beginning of what a part says of itself
NOTHING: dict[str, Any] = {"forward": 0, "backward": 0, "seconds": 0.0, "warnings": []}


class Part(NamedTuple):
    """One of so many shares of the images, which follow each other in their order."""

    number: int = 1
    parts: int = 1

    def checked(self, rules: Protocol) -> Part:
        """This part; one that there is not, or of what has to be judged on all images, is refused."""
        if not 1 <= self.number <= self.parts:
            raise InputError(f"a part must be one of those from (1, N) to (N, N), got {tuple(self)}")
        if self.parts > 1 and rules.corruptions is not None:
            raise InputError(f"{rules.name} sums up over all images; judge it without parts")
        return self

    def audit(self, rules: Protocol) -> int | None:
        """The share of the protocol's audit that this part has: together they try no fewer."""
        audited = self.parts > 1 and any(entry.audited for entry in rules.attacks)
        return -(-rules.audit // self.parts) if audited else None

    def of(self, images: ImageDataset) -> ImageDataset:
        """The images of this part."""
        if self.parts > len(images):
            raise InputError(f"{len(images)} images cannot be judged in {self.parts} parts; take fewer")
        first, end = ((self.number - shift) * len(images) // self.parts for shift in (1, 0))
        return images.take(range(first, end))

    def notes(self, images: ImageDataset) -> list[str]:
        """What a record of this part says first, so that nobody takes it for the whole."""
        if self.parts == 1:
            return []
        own = len(self.of(images))
        return [
            f"Part {self.number} of {self.parts}, {own} of {len(images)} images: --pool makes one record."
        ]

    def facts(self, images: ImageDataset) -> dict[str, Any]:
        """What a record tells of the images of this part, and with which others they belong together."""
        own = self.of(images).facts()
        if self.parts == 1:
            return own
        known = images.facts()
        whole = {key: known[key] for key in ("digest", "pixels", "count")}
        return own | {PART: self.number, OF: self.parts, WHOLE: whole}


def pool(records: Sequence[Record], *, out: str | Path | None = None, command: str = "") -> Record:
    """All parts of one evaluation as one record: every image's outcome, and the bound of all audits.

    Adversarial images stay with the parts, so it is they that can be verified. Metrics in which parts
    differ are left out.

    Args:
        records: one for each part, of one model by one protocol.
        out: a folder for the record.
        command: what the record is to say about how it was made.
    """
    ordered = _checked(records)
    first = ordered[0]
    record = Record(
        "evaluate",
        first.model,
        _data(ordered),
        [_joined(trials) for trials in zip(*_side_by_side(ordered), strict=True)],
        metrics={k: v for k, v in first.metrics.items() if all(one.metrics.get(k) == v for one in ordered)},
        audits=_audits(ordered),
        protocol=first.protocol,
        machine=first.machine,
        command=command,
        versions=first.versions,
    )
    record.tables = attacker_levels(record)
    doubts = [note for one in ordered for note in one.notes if note not in claims(one)]
    own = [note for note in dict.fromkeys(doubts) if not re.match(PART_NOTE, note)]
    record.notes = [*own, *claims(record), f"Judged in {len(ordered)} parts, each apart."]
    if out is not None:
        with kept_in(out) as folder:
            record.save(folder / "record.json")
    return record


def _checked(records: Sequence[Record]) -> list[Record]:
    """The parts in their order; refused unless they are all parts of one evaluation, each once."""
    if not records:
        raise InputError("pooling takes a record of each part, got no record")
    for record in records:
        if record.kind != "evaluate" or not _is_part(record.data):
            raise InputError(
                "only parts of an evaluation can be put together (robvit evaluate --part 1/2), got a "
                f"record of {record.kind} that is none"
            )
    ordered = sorted(records, key=lambda record: record.data[PART])
    first, numbers = ordered[0], [record.data[PART] for record in ordered]
    for record in ordered[1:]:
        if differing := sorted(k for k, v in _common(first).items() if _common(record)[k] != v):
            raise InputError(f"the parts are not of one evaluation: they differ in {', '.join(differing)}")
    parts = first.data[OF]
    if numbers != list(range(1, parts + 1)):
        raise InputError(f"expected each of the parts 1 to {parts} once, got {', '.join(map(str, numbers))}")
    return ordered


def _is_part(data: dict[str, Any]) -> bool:
    whole = data.get(WHOLE)
    counts = [data.get(PART), data.get(OF), whole.get("count") if isinstance(whole, dict) else None]
    return all(isinstance(count, int) for count in counts)


def _common(record: Record) -> dict[str, Any]:
    """All that the parts of one evaluation have in common."""
    apart = {"batch", "precision", "wanted precision", "warnings"}
    rules = {k: v for k, v in record.protocol.items() if k not in apart}
    # Names are of one machine's files; identity, digest and pixels say what was behind them.
    model = {k: v for k, v in record.model.items() if k != "name" or "identity" not in record.model}
    images = {k: record.data.get(k) for k in ("split", "classes", "size", "resize", OF, WHOLE)}
    return {
        "the model": model,
        "the protocol": rules,
        "the precision (give all the same --precision)": record.protocol.get("precision"),
        "the images": images,
        "versions": record.versions,
    }


def _data(records: Sequence[Record]) -> dict[str, Any]:
    """What the parts' records together tell of the images."""
    first = records[0].data
    lists = {key: [*chain(*(one.data[key] for one in records))] for key in ("names", "labels")}
    whole: dict[str, Any] = first[WHOLE]
    if len(lists["names"]) != whole["count"] or len(set(lists["names"])) < whole["count"]:
        raise InputError(
            f"the parts hold {len(set(lists['names']))} images, all together are {whole['count']}"
        )
    return {k: v for k, v in first.items() if k not in (PART, OF, WHOLE)} | whole | lists


def _side_by_side(records: Sequence[Record]) -> list[list[Trial]]:
    """The trials of every part, of the same attacks.

    Where an audit's sample fell its attacks went on with the rest, in trials of their own at the end; a part
    that had tried all from the start has none, and gets them as trials that saw no image.
    """
    longest = max((record.trials for record in records), key=len)
    return [
        [*record.trials, *(_unattacked(one, record.trials[-1]) for one in longest[len(record.trials) :])]
        for record in records
    ]


def _unattacked(trial: Trial, before: Trial) -> Trial:
    """An attack that saw none of the images of a part."""
    lists = {name: getattr(before, name) for name in OVER_IMAGES}
    wrong, right = (
        [i for i, correct in enumerate(before.correct) if correct is is_] for is_ in (False, True)
    )
    return replace(trial, **lists, skipped=wrong, unseen=right, **NOTHING)


def _joined(trials: Sequence[Trial]) -> Trial:
    """One attack on all images, from what it did to the images of each part."""
    first = trials[0]
    if any(_line(trial) != _line(first) for trial in trials):
        raise InputError(f"the parts were not attacked alike: {first.title} is not in all of them")
    lists: dict[str, Any] = {
        name: [*chain(*(getattr(trial, name) for trial in trials))] for name in OVER_IMAGES
    }
    begins = [0, *accumulate(len(trial.correct) for trial in trials)]
    for name in PLACES:
        each = zip(begins, trials, strict=False)
        lists[name] = [begin + place for begin, trial in each for place in getattr(trial, name)]
    sums = {name: sum(getattr(trial, name) for trial in trials) for name in SUMS}
    warned = sorted({name for trial in trials for name in trial.warnings})
    return replace(first, **lists, **sums, warnings=warned, shards="", shards_sha256="")


def _line(trial: Trial) -> tuple[Any, ...]:
    """Which attack by whom on what."""
    told = (trial.attack, trial.variant, trial.threat, trial.settings, trial.severity)
    return (*told, trial.scenario, trial.attacker, trial.surrogate, trial.control)


def _audits(records: Sequence[Record]) -> list[Audit]:
    """One audit of all parts; where one part's sample fell, a sample says nothing of the others' either."""
    audits = [audit for record in records for audit in record.audits]
    if not audits:
        return []
    together = pooled(audits)
    return [_whole(audits) if any(audit.switched or audit.successes for audit in audits) else together]


def _whole(audits: Sequence[Audit]) -> Audit:
    """An audit that left nothing open in any part."""
    total = sum(audit.survivors for audit in audits)
    reason = next((audit.switched for audit in audits if audit.switched), "")
    return replace(pooled(audits), survivors=total, audited=total, switched=reason)
