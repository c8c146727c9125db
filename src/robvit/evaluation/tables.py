"""Records as tables for elsewhere: CSV, Markdown, LaTeX, plain text, or rows of values."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from robvit.errors import InputError
from robvit.evaluation.seeds import over_seeds
from robvit.record import Record
from robvit.texts import markdown_text, spreadsheet_cell

FORMATS = ("text", "csv", "markdown", "latex")
COLUMNS = ("model", "data", "images", "scenario", "attack", "threat", "accuracy", "low", "high")
SEED_COLUMNS = (
    "data",
    "images",
    "scenario",
    "attack",
    "threat",
    "seeds",
    "mean",
    "deviation",
    "low",
    "high",
)
FIGURES = {"images", "seeds", "accuracy", "mean", "deviation", "low", "high"}  # flush right in LaTeX
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}


def rows_of(records: Sequence[Record]) -> list[dict[str, Any]]:
    """A row for each line of each record's table: shares in per cent with their 95 % interval."""
    rows = []
    for record in records:
        about = {
            "model": record.model.get("name", ""),
            "data": record.data.get("spec", ""),
            "images": record.data.get("count", 0),
        }
        for row in record.rows():
            shares = {name: 100 * getattr(row, name) for name in ("low", "high")}
            line = {"scenario": row.scenario, "attack": row.attack, "threat": row.threat}
            rows.append({**about, **line, "accuracy": 100 * row.share, **shares})
    return rows


def seed_rows(records: Sequence[Record]) -> list[dict[str, Any]]:
    """A row for each line that trainings with several seeds share: mean, deviation, interval of the mean."""
    about = {"data": records[0].data.get("spec", ""), "images": records[0].data.get("count", 0)}
    rows = []
    for row in over_seeds(records):
        line = dict(zip(("scenario", "attack", "threat"), row.line, strict=True))
        shares = {name: 100 * getattr(row, name) for name in ("mean", "deviation", "low", "high")}
        rows.append({**about, **line, "seeds": len(row.shares), **shares})
    return rows


def formatted(records: Sequence[Record], style: str = "text", *, seeds: bool = False) -> str:
    """The records' lines in one of `FORMATS`; columns in which nothing stands are left out.

    With `seeds` the records are of one setting trained with several seeds, and the lines are over these.
    """
    if style not in FORMATS:
        raise InputError(f"format must be one of {', '.join(FORMATS)}, got {style!r}")
    rows = seed_rows(records) if seeds else rows_of(records)
    if not rows:
        raise InputError(
            "these records hold no attack, so there is no table; give those of evaluate or attack"
        )
    wanted = SEED_COLUMNS if seeds else COLUMNS
    columns = [name for name in wanted if any(row[name] not in ("", None) for row in rows)]
    if style == "csv":
        return _csv(columns, rows)
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    return {"markdown": _markdown, "latex": _latex, "text": _text}[style](columns, cells)


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _csv(columns: list[str], rows: list[dict[str, Any]]) -> str:
    """Every digit is kept; a cell that a spreadsheet would run as a formula is made text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = [row[name] for name in columns]
        writer.writerow([spreadsheet_cell(value) for value in values])
    return text.getvalue()


def _markdown(columns: list[str], cells: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *cells]
    escaped = [[markdown_text(cell) for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def _latex(columns: list[str], cells: list[list[str]]) -> str:
    """A tabular for booktabs."""
    kinds = "".join("r" if name in FIGURES else "l" for name in columns)
    body = [" & ".join(_escaped(cell) for cell in line) + r" \\" for line in (columns, *cells)]
    lines = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", ""])


def _escaped(text: str) -> str:
    return "".join({**_LATEX, "\\": "\\textbackslash{}"}.get(c, c) for c in text)


def _text(columns: list[str], cells: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = (columns, *cells)
    padded = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join([*padded, ""])
