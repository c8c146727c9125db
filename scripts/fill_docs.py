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
by its own tables: `table 2: rob-table2` shows the one whose title begins so.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from robvit.record import Record, Table
from robvit.statistics import interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
BLOCK = re.compile(r"<!-- results\n(?P<rows>.*?)-->\n(?P<shown>.*?)<!-- end of results -->", re.DOTALL)


@dataclass(frozen=True)
class Result:
    """What a study left in results/: its record, and how it was made."""

    name: str
    record: Record
    about: dict[str, Any]


def pages() -> list[Path]:
    """Every page that may show figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_result(name: str) -> Result:
    """The result of a study by its name."""
    packed, about = RESULTS / name / "record.json.gz", RESULTS / name / "about.json"
    if not packed.is_file() or not about.is_file():
        raise SystemExit(f"no result is called {name}: expected {packed.relative_to(ROOT)}; run `make lab`")
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder) / "record.json"
        unpacked.write_bytes(gzip.decompress(packed.read_bytes()))
        return Result(name, Record.load(unpacked), json.loads(about.read_text("utf-8")))


def filled(text: str) -> str:
    """A page with all its tables of results as the records have them."""
    return BLOCK.sub(lambda block: _block(block["rows"]), text)


def _block(rows: str) -> str:
    chosen = {label: read_result(name) for label, name in yaml.safe_load(rows).items()}
    shown = [*_tables(chosen), *_sources(list(chosen.values()))]
    return f"<!-- results\n{rows}-->\n\n" + "\n".join(shown) + "\n\n<!-- end of results -->"


def _tables(chosen: dict[str, Result]) -> list[str]:
    lines: list[str] = []
    judged = {label: result for label, result in chosen.items() if result.record.kind == "evaluate"}
    if judged:
        lines += _markdown(_accuracies(judged))
    for label, result in chosen.items():
        if label in judged:
            continue
        found = [t for t in result.record.tables if t.title.lower().startswith(label.lower())]
        if not found:
            titles = "; ".join(t.title for t in result.record.tables)
            raise SystemExit(f"{result.name} has no table that begins with {label!r}; it has: {titles}")
        for table in found:
            lines += [*([""] if lines else []), f"{table.title}:", "", *_markdown(table)]
            lines += ["", table.note] if table.note else []
    return lines


def _accuracies(judged: dict[str, Result]) -> Table:
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


def _sources(results: list[Result]) -> list[str]:
    """Where the figures come from, and what they cost."""
    folders = ", ".join(dict.fromkeys(f"`results/{result.name}`" for result in results))
    seconds = sum({result.name: result.about["cpu_seconds"] for result in results}.values())
    return ["", f"Records: {folders}; {max(1, round(seconds / 60))} processor minutes in all."]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    asked = parser.parse_args()
    stale = [page for page in pages() if filled(page.read_text("utf-8")) != page.read_text("utf-8")]
    for page in stale:
        print(f"{'stale' if asked.check else 'filled'}: {page.relative_to(ROOT)}")
        if not asked.check:
            page.write_text(filled(page.read_text("utf-8")), "utf-8")
    return bool(stale and asked.check)


if __name__ == "__main__":
    sys.exit(main())
