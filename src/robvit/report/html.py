"""Records as one page that opens from disk: no network, light and dark, made for print too.

Every string of a record is taken for hostile: text is escaped, data stands in JSON blocks that no
`</script>` can end, the page's script builds text nodes only, and a content policy forbids every
script but that one.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from robvit.budget import Budget
from robvit.drawing.images import data_url
from robvit.errors import InputError
from robvit.evaluation.compare import comparison_table
from robvit.files import written_whole
from robvit.record import LEVELS, Curve, Finding, Record, Table
from robvit.report import charts
from robvit.report.defences import defence_table
from robvit.report.figure import Figure
from robvit.report.gallery import GalleryItem, gallery
from robvit.report.summary import (
    OUTCOMES,
    AttackerSummary,
    Labels,
    Share,
    attacker_summaries,
    class_rows,
    headlines,
    share,
    title,
)
from robvit.report.verdict import Review

SCRIPTS = ("charts.js", "surface.js", "gallery.js", "page.js")
_NUMBER = re.compile(r"[-+−±<>≤≥~]?\s?\d[\d.,]*(e[-+]?\d+)?\s?(%|s|dB|±.*|\(.*\))?")


def write_report(
    records: Record | Sequence[Record],
    path: str | Path,
    *,
    galleries: Sequence[Iterable[GalleryItem]] = (),
    images: Sequence[Path] = (),
    figures: Sequence[Figure] = (),
    review: Review | None = None,
) -> None:
    """Write one self-contained page for a record or several.

    records: a record, or several that are compared.
    path: the HTML file.
    galleries: for each record its images; of all at most a thousand are shown, so that the page stays
        under fifteen megabytes.
    images: PNG files that are shown as they are, such as a sheet.
    figures: those of the first record.
    review: the verdict to begin with.
    """
    records = [one.without_places() for one in ([records] if isinstance(records, Record) else records)]
    if not records:
        raise InputError("a report needs at least one record")
    if galleries and len(galleries) != len(records):
        raise InputError(f"expected images for each of {len(records)} records, got {len(galleries)}")
    room = 1 / max(1, sum(bool(items) for items in galleries))
    parts = [
        _part(f"r{i}", record, galleries[i] if galleries else (), room) for i, record in enumerate(records)
    ]
    if (side_by_side := defence_table(records)) is not None:
        parts[0]["lead"].insert(0, side_by_side)
    paired = paired_comparison(records)
    parts[0]["figures"] = [_figure(f"r0-{figure.name}", figure) for figure in figures]
    sheets = [_png(file) for file in images]
    values = {"parts": parts, "outcomes": OUTCOMES, "sheets": sheets, "review": review, "paired": paired}
    page = _environment().get_template("page.html").render(**values, style=_static("page.css"), **_script())
    with written_whole(path) as aside:
        aside.write_text(page, encoding="utf-8")


def paired_comparison(records: Sequence[Record]) -> Table | None:
    """Models against each other, image by image; None unless all were judged on the same images."""
    if not 2 <= len(records) <= 26 or any(record.kind == "doctor" for record in records):
        return None
    try:
        return comparison_table(records)
    except InputError:  # other images, or no attack in common
        return None


def _part(key: str, record: Record, items: Iterable[GalleryItem], room: float) -> dict[str, Any]:
    """Everything that the template needs to know of one record."""
    summaries = attacker_summaries(record)
    labels = Labels(record)
    quoted = headlines(record, summaries)
    worst = [s for s in summaries if s.is_worst and s.threat == quoted[0].threat]
    curves = [*charts.budget_curves(record), *charts.step_curves(record), *record.curves]
    images = gallery(record, summaries, items, room=room)
    return {
        "key": key,
        "record": record,
        "title": title(record),
        "clean": _clean(record, summaries),
        "summaries": summaries,
        "findings": sorted(record.findings, key=_severity),
        "sequences": [s for s in summaries if len(s.stages) > 1],
        "headlines": quoted,
        "classes": [(s, rows) for s in worst if (rows := class_rows(record, s, labels))],
        "curves": [_drawn(f"{key}-curve-{i}", curve) for i, curve in enumerate(curves)],
        "training": [_drawn(f"{key}-run-{i}", c) for i, c in enumerate(charts.history_curves(record))],
        "lead": [table for table in record.tables if table.lead],
        "tables": [table for table in record.tables if table.title != LEVELS and not table.lead],
        "gallery": images if images.items else None,
        "figures": [],
        "model": facts(record.model),
        "data": facts(record.data),
        "protocol": facts(_protocol(record.protocol)),
        "metrics": [[name, metric(name, value)] for name, value in record.metrics.items()],
        "machine": facts(record.machine),
    }


def _clean(record: Record, summaries: list[AttackerSummary]) -> Share | None:
    """Clean accuracy of the judged model, be it attacked or not."""
    scenarios = [s.scenario for s in summaries if not s.control] or record.scenarios()
    trial = record.clean(scenarios[0]) if scenarios else None
    return share(trial.correct) if trial else None


def _severity(finding: Finding) -> int:
    """Red findings come first; what is no status of ours comes with them."""
    return {"amber": 1, "green": 2, "skipped": 3}.get(finding.status, 0)


def _drawn(key: str, curve: Curve) -> dict[str, Any]:
    lines = {str(name): points for name, points in curve.lines.items()}
    data = {"x": curve.x, "y": curve.y, "lines": lines, "percent": curve.percent}
    return {"key": key, "curve": curve, "data": finite(data)}


def _figure(key: str, figure: Figure) -> dict[str, Any]:
    """A figure whose tiles are in the page and whose charts and surfaces are drawn there."""
    return {
        "key": key,
        "figure": figure,
        "grid": figure.grid and figure.grid.data(),
        "curves": [_drawn(f"{key}-curve-{i}", curve) for i, curve in enumerate(figure.curves)],
        "surfaces": [finite(surface.data()) for surface in figure.surfaces],
    }


def finite(value: Any) -> Any:
    """The value for JSON as browsers read it, where NaN and infinity are no numbers but null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return value


def _protocol(rules: dict[str, Any]) -> dict[str, Any]:
    """The rules without the attacks, which the page lists by themselves; the threat as people write it."""
    threat = rules.get("threat")
    if isinstance(threat, dict) and isinstance(threat.get("eps"), float) and threat.get("psnr") is None:
        rules = rules | {"threat": str(Budget(str(threat.get("norm", "")), threat["eps"]))}
    return {name: value for name, value in rules.items() if name != "attacks"}


def metric(name: str, value: Any) -> Any:
    """A metric for people: an accuracy in per cent as everywhere else on the page."""
    is_share = "accuracy" in name and isinstance(value, float) and math.isfinite(value)
    return percent(value) if is_share else value


def facts(values: dict[str, Any]) -> dict[str, str]:
    """A mapping for people: long lists by their length, nothing left out but what is empty."""
    texts = {}
    for name, value in _with_budgets(values).items():
        if isinstance(value, list) and len(value) > 8:
            texts[str(name)] = f"{len(value)} entries in the record"
        elif value not in (None, "", [], {}):
            texts[str(name)] = cell(value)
    return texts


def _with_budgets(values: dict[str, Any]) -> dict[str, Any]:
    """Settings whose eps is in grey levels, as people write it."""
    eps = values.get("eps")
    if not isinstance(eps, float):
        return values
    return values | {"eps": Budget(str(values.get("norm", "linf")), eps).amount}


def cell(value: Any) -> str:
    """A cell of a table: numbers to four digits, nothing as a dash, anything else as it reads."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{k}={cell(v)}" for k, v in _with_budgets(value).items() if v is not None)
    if isinstance(value, list | tuple):
        return ", ".join(cell(v) for v in value)
    return str(value)


def table_cell(value: Any) -> str:
    """A cell of a record's table, as the command line prints it."""
    return Table.cell(finite(value))


def numeric_columns(rows: Sequence[Sequence[Any]]) -> list[bool]:
    """For each column, whether it holds numbers only and is aligned to the right."""
    texts = [[table_cell(value) for value in row] for row in rows]
    wide = max(map(len, texts), default=0)
    return [all(is_number(row[i]) for row in texts if i < len(row)) for i in range(wide)]


def is_number(text: str) -> bool:
    """Whether a cell is a number."""
    return text == "–" or _NUMBER.fullmatch(text) is not None


def prose(text: str) -> Markup:
    """A sentence whose `commands` are set as such; everything else is escaped."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other half
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("robvit", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # lines keep the record's order
    for function in (cell, table_cell, numeric_columns, percent, duration, finite, prose):
        environment.filters[function.__name__] = function
    return environment


def _png(file: Path) -> str:
    return data_url(file.read_bytes())


def _static(name: str) -> Markup:
    """A file of ours that is part of the page as it stands."""
    return Markup(resources.files("robvit.report").joinpath("templates", name).read_text("utf-8"))  # noqa: S704


def _script() -> dict[str, Any]:
    """The page's script and the hash by which its content policy knows it."""
    script = Markup("\n").join(_static(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"script": script, "script_hash": f"sha256-{digest}"}
