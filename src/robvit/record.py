"""The record: the one result format. A report, a table or a paired test never needs the model again.

JSON with a schema version; every image's outcome under every attack, seeds, versions and cost. This
file uses the standard library only, so that records can be read where no torch is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from robvit.audit import Audit
from robvit.budget import Budget
from robvit.errors import InputError
from robvit.files import parse_json, read_text, write_json
from robvit.places import command_without_places, data_without_places, prose_without_places
from robvit.record_checks import check_kinds, check_lengths, check_outcomes, check_plain
from robvit.sharing import Shareable
from robvit.sharing_card import card_of
from robvit.statistics import share_of
from robvit.trial import Trial as Trial
from robvit.verdict import Claim, Verdict
from robvit.versions import library_versions

SCHEMA = 3
LEVELS = "Attacker levels"  # the title of a table; a page draws the same from the trials
PROCESSOR = "processor seconds"  # a metric: what the work cost, whatever else the machine was doing


@dataclass(frozen=True)
class Table:
    """Figures side by side, ours and a paper's, say; a cell is text, a number, or None if not measured.

    A table that says the main thing is to `lead` the page.
    """

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""
    lead: bool = False

    def without_places(self) -> Table:
        """The table with local paths cut down to their last part."""
        told = prose_without_places
        title, *columns = map(told, [self.title, *self.columns])
        rows = [[told(cell) for cell in row] for row in self.rows]
        return replace(self, title=title, columns=columns, rows=rows, note=told(self.note))

    @staticmethod
    def cell(value: Any) -> str:
        """How a cell is printed: two decimals for a number, a dash for what was not measured."""
        if value is None:
            return "–"
        return f"{value:.2f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Curve:
    """Lines over a common axis: accuracy over budgets, a loss over steps, an activation over layers.

    `lines` maps a name to points [x, y] or [x, y, low, high]. With `percent` y is a fraction of one, which
    is best shown as a percentage.
    """

    title: str
    x: str
    y: str
    lines: dict[str, list[list[float]]]
    note: str = ""
    percent: bool = False

    def without_places(self) -> Curve:
        """The curve with local paths cut down to their last part."""
        told = prose_without_places
        lines = {told(name): points for name, points in self.lines.items()}
        return replace(self, title=told(self.title), lines=lines, note=told(self.note))


@dataclass(frozen=True)
class Finding:
    """What one check of the doctor found: its status is red, amber, green or skipped; `images` violate it.

    `title` says in plain words what should hold, `remedy` what to do where it does not.
    """

    check: str
    status: str
    evidence: str
    images: list[str] = field(default_factory=list)
    title: str = ""
    remedy: str = ""


class Row(NamedTuple):
    """A line of the table: a share of images with its 95 % interval."""

    scenario: str
    attack: str
    threat: str
    share: float
    low: float
    high: float


@dataclass
class Record(Shareable):
    """What was judged, on what, how, and what came of it; `history` holds the course of a training.

    `protocol` holds all rules of an evaluation, `machine` the device and threads it was done with.
    """

    shared_as: ClassVar[str] = "record"
    ending: ClassVar[str] = ".json"
    kind: str
    model: dict[str, Any]
    data: dict[str, Any]
    trials: list[Trial]
    metrics: dict[str, float] = field(default_factory=dict)
    history: dict[str, list[float]] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    audits: list[Audit] = field(default_factory=list)
    protocol: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: dict[str, str] = field(default_factory=library_versions)
    schema: int = SCHEMA

    def scenarios(self) -> list[str]:
        """The variants that were judged, in order."""
        return list(dict.fromkeys(trial.scenario for trial in self.trials))

    def clean(self, scenario: str | None = None) -> Trial | None:
        """The trial of no attack: of a scenario, or of the first that is no control."""
        found = (t for t in self.trials if t.kind == "clean")
        if scenario is None:
            return next((t for t in found if not t.control), None)
        return next((t for t in found if t.scenario == scenario), None)

    def attacks(self) -> list[Trial]:
        """The trials whose worst case counts: attacks, neither controls nor corruptions."""
        return [t for t in self.trials if t.kind == "attack" and not t.control]

    def still_correct(self, scenario: str | None = None) -> list[bool]:
        """For each image, whether it is correct under all attacks of a scenario, or all but controls."""
        chosen = [
            t.correct
            for t in self.trials
            if t.kind != "corruption" and (not t.control if scenario is None else t.scenario == scenario)
        ]
        if not chosen:
            raise InputError("this record holds no attack, so nothing can be said of robustness")
        return [all(outcome) for outcome in zip(*chosen, strict=True)]

    def robust_accuracy(self, scenario: str | None = None) -> float:
        """The mean over images of the worst attack, never the minimum of the attacks' means."""
        return share_of(self.still_correct(scenario))[0]

    def headline(self) -> Row:
        """The one figure to quote: the worst case of everything that was tried, controls aside."""
        return Row("", "worst case", _strengths(self.attacks()), *share_of(self.still_correct()))

    def rows(self) -> list[Row]:
        """The table: a row for each trial, and for each scenario with several attacks its worst case."""
        found = []
        for scenario in self.scenarios():
            trials = [t for t in self.trials if t.scenario == scenario]
            found += [Row(scenario, t.title, t.strength, *share_of(t.correct)) for t in trials]
            attacks = [t for t in self.attacks() if t.scenario == scenario]
            if len(attacks) > 1:
                worst = share_of(self.still_correct(scenario))
                found.append(Row(scenario, "worst case", _strengths(attacks), *worst))
        return found

    def table(self) -> str:
        """One line a row, each with its 95 % interval."""
        rows = self.rows()
        texts = [("", 10 * " ", 12 * " "), *((row.scenario, row.attack, row.threat) for row in rows)]
        scenario, attack, threat = (max(map(len, column)) + 2 for column in zip(*texts, strict=True))
        wide = scenario if scenario > 2 else 0
        lines = [f"{'':<{wide}}{'attack':<{attack}}{'threat':<{threat}}{'accuracy':>8}   95 % interval"]
        for row in rows:
            name = f"{row.scenario:<{wide}}{row.attack:<{attack}}{row.threat:<{threat}}"
            lines.append(f"{name}{row.share:>8.1%}   {row.low:.1%} to {row.high:.1%}")
        return "\n".join(lines)

    def to_dataframe(self) -> Any:
        """The table as a pandas DataFrame, shares in per cent; pandas is yours to install."""
        try:
            import pandas  # type: ignore[import-untyped,import-not-found,unused-ignore]
        except ImportError:
            raise InputError("a DataFrame needs pandas: pip install pandas, or use rows()") from None
        frame = pandas.DataFrame([row._asdict() for row in self.rows()])
        return frame.assign(**{name: 100 * frame[name] for name in ("share", "low", "high")})

    def without_places(self) -> Record:
        """The record with local paths cut down to their last part, in all that pages and files show of it."""
        cut, told = data_without_places, prose_without_places
        return replace(
            self,
            model=cut(self.model),
            data=cut(self.data),
            protocol=cut(self.protocol),
            command=command_without_places(self.command),
            trials=[
                replace(
                    trial,
                    surrogate=cut(trial.surrogate),
                    settings=cut(trial.settings),
                    scenario=told(trial.scenario),
                    variant=told(trial.variant),
                )
                for trial in self.trials
            ],
            findings=[replace(f, evidence=told(f.evidence), remedy=told(f.remedy)) for f in self.findings],
            claims=[replace(claim, text=told(claim.text)) for claim in self.claims],
            notes=[told(note) for note in self.notes],
            tables=[one.without_places() for one in self.tables],
            curves=[one.without_places() for one in self.curves],
        )

    def shared_facts(self) -> dict[str, Any]:
        about = {"kind": self.kind, "schema": self.schema, "created": self.created}
        names = {"model": self.model.get("name", ""), "fingerprint": self.model.get("fingerprint", "")}
        facts: dict[str, Any] = data_without_places(
            about | names | {"data digest": self.data.get("digest", "")}
        )
        return facts

    def card(self, records: Sequence[Record] = (), name: str = "") -> str:
        return card_of(self.shared_as, self.shared_facts(), [self, *records], name)

    def write_shared(self, path: Path) -> None:
        write_json(path, asdict(self.without_places()))

    @classmethod
    def read_shared(cls, path: Path) -> Record:
        return cls.load(path)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON, whole or not at all."""
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """A record from its file; one of another schema, or a broken one, is refused by the field."""
        content = parse_json(read_text(path, "a record"), path, "a record")
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            got = content.get("schema") if isinstance(content, dict) else type(content).__name__
            raise InputError(f"{path}: expected a record of schema {SCHEMA}, got {got}; write it anew")
        check_plain(content, path)
        known = {f.name for f in fields(cls)}
        if unknown := sorted(content.keys() - known):
            raise InputError(f"{path}: unknown field {unknown[0]!r}; fields are {', '.join(sorted(known))}")
        content.setdefault("audits", [])  # older records have none
        try:
            for name, part in PARTS.items():
                content[name] = [part(**_restored(entry)) for entry in content[name]]
            record = cls(**content)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: a field is missing or of another kind: {error}") from error
        for part in (*(p for name in PARTS for p in getattr(record, name)), record):
            check_kinds(part, path)
        check_lengths(record, path)
        check_outcomes(record, path, record.data.get("labels"))
        return record


# The fields that are lists of parts, for reading them back.
PARTS: dict[str, Any] = {
    "trials": Trial,
    "tables": Table,
    "curves": Curve,
    "findings": Finding,
    "claims": Claim,
    "audits": Audit,
}


def _strengths(attacks: Sequence[Trial]) -> str:
    """The budgets that attacks had, each once."""
    return ", ".join(dict.fromkeys(trial.strength for trial in attacks)) or "none"


def _restored(entry: dict[str, Any]) -> dict[str, Any]:
    """The fields of a part, with a trial's budget and a claim's verdict as such."""
    if isinstance(entry, dict) and isinstance(entry.get("threat"), dict):
        return {**entry, "threat": Budget(**entry["threat"])}
    if isinstance(entry, dict) and "verdict" in entry:
        return {**entry, "verdict": Verdict(entry["verdict"])}
    return entry
