"""Fill the tables of measured figures in README and docs/ from the records in results/.

    python scripts/fill_docs.py           # write them; `make lab` does so after every study
    python scripts/fill_docs.py --check   # only say which pages are stale

A page says what it shows in a comment of YAML, a line a row with the record that it is taken from:

    <!-- results
    LoRA, rank 16: cifar10-112-lora16-linf2
    all weights: cifar10-112-full-linf2
    -->
    <!-- end of results -->

What stands between the two comments is written here and never by hand. A single study's record is shown
by its own tables: `table 2: rob-table2` shows the one whose title begins so, and `curve accuracy:
rob-attacker` draws the curve whose title begins so, into docs/figures. A record that is not there yet shows
no figure, and the page says so, unless a question mark stands behind its name. Tables of other kinds say in
a comment above what they are: figures of a paper (`published:`), counted by a file of the project
(`counted:`), or `no measurement`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import yaml

from robvit.drawing.charts import draw_charts
from robvit.drawing.images import save_png
from robvit.record import Curve, Table
from robvit.statistics import interval
from robvit.studies.kept import KeptResult, read_kept

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
FIGURES = ROOT / "docs" / "figures"
BLOCK = re.compile(r"<!-- results\n(?P<rows>.*?)-->\n(?P<shown>.*?)<!-- end of results -->", re.DOTALL)
CURVE = "curve "
Part = TypeVar("Part", Table, Curve)


def pages() -> list[Path]:
    """Every page that may show figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, page: Path) -> str:
    """A page with all its tables and figures of results as the records have them."""
    return BLOCK.sub(lambda block: _block(block["rows"], page), text)


def _block(rows: str, page: Path) -> str:
    wanted = {label: str(name).removesuffix("?") for label, name in yaml.safe_load(rows).items()}
    there = {label: name for label, name in wanted.items() if (RESULTS / name / "about.json").is_file()}
    chosen = {label: read_kept(name, RESULTS) for label, name in there.items()}
    told = [str(name) for name in yaml.safe_load(rows).values() if not str(name).endswith("?")]
    missing = dict.fromkeys(name for name in told if name not in there.values())
    shown = [*_tables(chosen), *_figures(chosen, page), *(_sources(list(chosen.values())) if chosen else [])]
    if missing:
        names = ", ".join(f"`results/{name}`" for name in missing)
        shown += [*([""] if shown else []), f"Not measured yet: {names} (`make lab`)."]
    return f"<!-- results\n{rows}-->\n\n" + "\n".join(shown) + "\n\n<!-- end of results -->"


def _tables(chosen: dict[str, KeptResult]) -> list[str]:
    lines: list[str] = []
    judged = {
        label: result
        for label, result in chosen.items()
        if result.record.kind == "evaluate" and not _begins(result.record.tables, label)
    }
    if judged:
        lines += _markdown(_accuracies(judged))
    for label, result in chosen.items():
        if label in judged or label.startswith(CURVE):
            continue
        found = _begins(result.record.tables, label)
        if not found:
            raise _none(result, "table", label, [t.title for t in result.record.tables])
        for table in found:
            lines += [*([""] if lines else []), f"{table.title}:", "", *_markdown(table)]
            lines += ["", table.note] if table.note else []
    return lines


def _begins(parts: Sequence[Part], label: str) -> list[Part]:
    """Those whose title begins with the label."""
    return [part for part in parts if part.title.lower().startswith(label.lower())]


def _figures(chosen: dict[str, KeptResult], page: Path) -> list[str]:
    """A line that shows each curve that is asked for."""
    lines = []
    for label, result in chosen.items():
        if not label.startswith(CURVE):
            continue
        wanted = label.removeprefix(CURVE).lower()
        found = _begins(result.record.curves, wanted)
        if not found:
            raise _none(result, "curve", wanted, [c.title for c in result.record.curves])
        place = os.path.relpath(_drawn(result.name, found), page.parent)
        lines += ["", f"![{found[0].title}]({place})"]
    return lines


def _drawn(name: str, curves: list[Curve]) -> Path:
    """The curves as an image, whose name changes with what they hold, so that a stale one is noticed."""
    content = json.dumps([asdict(curve) for curve in curves], sort_keys=True)
    place = FIGURES / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:8]}.png"
    if not place.exists():
        save_png(draw_charts(curves), place)
    return place


def _none(result: KeptResult, what: str, label: str, titles: list[str]) -> SystemExit:
    return SystemExit(
        f"{result.name} has no {what} that begins with {label!r}; it has: {'; '.join(titles) or 'none'}"
    )


def _accuracies(judged: dict[str, KeptResult]) -> Table:
    """A line a record: the clean accuracy and the worst case over all attacks, with their intervals."""
    rows = []
    for label, result in judged.items():
        clean, worst = result.record.clean(), result.record.still_correct()
        attacks = dict.fromkeys(t.attack for t in result.record.attacks())
        threat = result.record.headline().threat
        kept = "–" if clean is None else share(clean.correct)
        rows.append([label, threat, ", ".join(attacks), len(worst), kept, share(worst)])
    return Table("", ["", "budget", "attacks", "images", "clean, %", "worst case, %"], rows)


def share(correct: Sequence[bool]) -> str:
    """A share in per cent with its 95 % interval."""
    low, high = interval(sum(correct), len(correct))
    return f"{100 * sum(correct) / len(correct):.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _markdown(table: Table) -> list[str]:
    lines = [table.columns, ["---"] * len(table.columns)]
    lines += [[Table.cell(cell) for cell in row] for row in table.rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _sources(results: list[KeptResult]) -> list[str]:
    """Where the figures come from, and what they cost."""
    folders = ", ".join(dict.fromkeys(f"`results/{result.name}`" for result in results))
    seconds = sum({result.name: result.about["cpu_seconds"] for result in results}.values())
    minutes = max(1, round(seconds / 60))
    return ["", f"Records: {folders}; {minutes} processor minute{'s' * (minutes > 1)} in all."]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    asked = parser.parse_args()
    stale = [page for page in pages() if filled(page.read_text("utf-8"), page) != page.read_text("utf-8")]
    for page in stale:
        print(f"{'stale' if asked.check else 'filled'}: {page.relative_to(ROOT)}")
        if not asked.check:
            page.write_text(filled(page.read_text("utf-8"), page), "utf-8")
    return bool(stale and asked.check)


if __name__ == "__main__":
    sys.exit(main())
