"""Fill the tables of measured figures in README, docs/ and the bundled networks' card from results/.

    python scripts/fill_docs.py           # write them; `make lab` does so after every study
    python scripts/fill_docs.py --check   # only say which pages are stale

The cards of bundled tuned networks are written along, from the records of their tuning and its judges, and
what recorded tunings have reached (src/robvit/training/recorded.json).

A page says what it shows in a comment of YAML, a line a row with the record that it is taken from:

    <!-- results
    LoRA, rank 16: cifar10-112-lora16-linf2
    all weights: cifar10-112-full-linf2
    -->
    <!-- end of results -->

What stands between the two comments is written here and never by hand. A single study's record is shown by
its own tables: `table 2: rob-table2` shows the one whose title begins so, and `curve accuracy:
rob-attacker` draws the curve whose title begins so, into docs/figures. The record of a doctor is shown by
its findings. Several records below one label are one table: evaluations of a mapping are compared with the
first of them, image by image, and so are certificates, and retrieval by its first neighbours; of other
records the table whose title begins with the label is put together; and a list is shown defence by defence,
attacker by attacker. A record that is not there yet shows no figure, and the page says so, unless a question
mark stands behind its name. Tables of other kinds say in a comment above what they are: figures of a paper
(`published:`), counted by a file of the project (`counted:`), or `no measurement`. What studies took stands
in a sentence as `<!-- minutes of NAME and OTHER -->12<!-- end -->`, and in a row's own words as {minutes of
NAME}.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import yaml

from robvit.backbones import zoo
from robvit.backbones.download import bundled_path
from robvit.defenses.lora import LoRA
from robvit.drawing.charts import draw_charts
from robvit.drawing.images import save_png
from robvit.evaluation.compare import compare
from robvit.evaluation.pooling import PART
from robvit.record import PROCESSOR, Curve, Record, Table
from robvit.report.card import model_card
from robvit.report.defences import defence_table
from robvit.statistics import holm, interval
from robvit.studies.kept import KeptResult, read_kept
from robvit.training.expectation import RECORDED, summary
from robvit.training.tuning import METHODS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
FIGURES = ROOT / "docs" / "figures"
BUNDLED = "src/robvit/backbones/bundled/README.md"  # the card of the small networks
BLOCK = re.compile(r"<!-- results\n(?P<rows>.*?)-->\n(?P<shown>.*?)<!-- end of results -->", re.DOTALL)
MINUTES = r"minutes of (?P<names>[\w.-]+(?: and [\w.-]+)*)"
IN_A_SENTENCE = re.compile(rf"(?P<what><!-- {MINUTES} -->).*?<!-- end -->")
IN_A_ROW = re.compile(rf"\{{{MINUTES}\}}")
CURVE = "curve "
FOLDED = 10  # rows beyond which a table of a study is folded
DATA_NAMES = {
    "imagenet:{data}/imagenet_1k": "ImageNet",
    "folder:{data}/pets/images?test=0.25": "Oxford-IIIT Pet",
    "camvid:{data}/camvid": "CamVid",
    "pets:{data}/pets": "masks of Oxford-IIIT Pet",
}
JUDGED = ("evaluate", "attack")  # records that are shown as accuracies, if none of their tables is asked for
PAIRED = ("evaluate", "retrieval", "certify")  # records whose outcomes are compared image by image
Part = TypeVar("Part", Table, Curve)


def pages() -> list[Path]:
    """Every page that may show figures."""
    return [ROOT / "README.md", ROOT / BUNDLED, *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, page: Path) -> str:
    """A page with all its tables and figures of results as the records have them."""
    text = IN_A_SENTENCE.sub(lambda one: f"{one['what']}{_minutes_of(one['names'])}<!-- end -->", text)
    return BLOCK.sub(lambda block: _block(block["rows"], page), text)


def _minutes_of(names: str) -> str:
    """The processor minutes that studies took together."""
    return str(_minutes([read_kept(name, RESULTS) for name in names.split(" and ")]))


def _block(rows: str, page: Path) -> str:
    wanted: dict[str, Any] = yaml.safe_load(IN_A_ROW.sub(lambda one: _minutes_of(one["names"]), rows))
    named = [str(name) for value in wanted.values() for name in _named(value).values()]
    bare = dict.fromkeys(name.removesuffix("?") for name in named)
    there = {name: read_kept(name, RESULTS) for name in bare if (RESULTS / name / "about.json").is_file()}
    found = {label: _found(value, there) for label, value in wanted.items()}
    chosen = {k: one for k, some in found.items() if isinstance(wanted[k], str) for one in some.values()}
    missing = dict.fromkeys(name for name in named if not name.endswith("?") and name not in there)
    shown = [*_tables(chosen), *_figures(chosen, page)]
    for label, some in found.items():
        if some and not isinstance(wanted[label], str):
            shown += _together(label, some, defences=isinstance(wanted[label], list))
    shown += _sources(list(there.values())) if there else []
    if missing:
        names = ", ".join(f"`results/{name}`" for name in missing)
        shown += [*([""] if shown else []), f"Not measured yet: {names} (`make lab`)."]
    return f"<!-- results\n{rows}-->\n\n" + "\n".join(shown) + "\n\n<!-- end of results -->"


def _named(value: Any) -> dict[str, str]:
    """The records of one label, by labels of their own."""
    if isinstance(value, list):
        return {name: name for name in value}
    return value if isinstance(value, dict) else {"": str(value)}


def _found(value: Any, there: dict[str, KeptResult]) -> dict[str, KeptResult]:
    """Those of its records that are there."""
    bare = {label: name.removesuffix("?") for label, name in _named(value).items()}
    return {label: there[name] for label, name in bare.items() if name in there}


def _together(label: str, results: dict[str, KeptResult], defences: bool) -> list[str]:
    """Several records as one table."""
    records = [result.record for result in results.values()]
    if defences:
        table = defence_table(records)
        return [] if table is None else ["", *_markdown(table), "", table.note]
    untold = not any(_begins(record.tables, label) for record in records)
    if all(record.kind in PAIRED and record.trials for record in records) and untold:
        return ["", *_markdown(_compared(results))]
    tables = {name: _one(result, label) for name, result in results.items()}
    first = next(iter(tables.values()))
    rows = [[name, *row] for name, table in tables.items() for row in table.rows]
    return ["", *_markdown(Table("", ["", *first.columns], rows)), *(["", first.note] if first.note else [])]


def _one(result: KeptResult, label: str) -> Table:
    """The first of a record's tables whose title begins with the label."""
    found = _begins(result.record.tables, label)
    if not found:
        raise _none(result, "table", label, [t.title for t in result.record.tables])
    return found[0]


def _compared(results: dict[str, KeptResult]) -> Table:
    """Evaluations on the same images, each against the first; p-values are corrected for all of them."""
    (name, base), *others = results.items()
    pairs = [compare(result.record, base.record)[-1] for _, result in others]
    against = [f"{100 * p.difference:+.1f} ({100 * p.low:+.1f} to {100 * p.high:+.1f})" for p in pairs]
    chances = [f"{p:.2g}" for p in holm([pair.p for pair in pairs])]
    table = _accuracies(results)
    ends = zip(["–", *against], ["–", *chances], strict=True)
    rows = [[*row, *end] for row, end in zip(table.rows, ends, strict=True)]
    return Table("", [*table.columns, f"against {name}, points", "p (McNemar, Holm)"], rows)


def _tables(chosen: dict[str, KeptResult]) -> list[str]:
    lines: list[str] = []
    judged = {
        label: result
        for label, result in chosen.items()
        if result.record.kind in JUDGED and not _begins(result.record.tables, label)
    }
    if judged:
        lines += _markdown(_accuracies(judged))
        audits = {label: audit for label, result in judged.items() for audit in result.record.audits}
        lines += [line for label, audit in audits.items() for line in ("", f"{label}: {audit}")]
    for label, result in chosen.items():
        if label in judged or label.startswith(CURVE):
            continue
        if result.record.kind == "doctor":
            lines += [*([""] if lines else []), *_markdown(_findings(result))]
            continue
        _one(result, label)
        for table in _begins(result.record.tables, label):
            lines += [*([""] if lines else []), *_titled(table)]
    return lines


def _titled(table: Table) -> list[str]:
    """A table with its title and note; a long one is folded, so that the page can be read past it."""
    lines = [*_markdown(table), *(["", table.note] if table.note else [])]
    if len(table.rows) <= FOLDED:
        return [f"{table.title}:", "", *lines]
    summary = f"<details><summary>{escape(table.title)}: {len(table.rows)} rows</summary>"
    return [summary, "", *lines, "", "</details>"]


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
    proven = all(result.record.kind == "certify" for result in judged.values())
    least = "certified, %" if proven else "worst case, %"
    return Table("", ["", "budget", "attacks", "images", "clean, %", least], rows)


def _findings(result: KeptResult) -> Table:
    """What a doctor found, worst first."""
    rows = [[finding.title, str(finding.status), finding.evidence] for finding in result.record.findings]
    return Table("", ["check", "found", "evidence"], rows)


def share(correct: Sequence[bool]) -> str:
    """A share in per cent with its 95 % interval."""
    low, high = interval(sum(correct), len(correct))
    return f"{100 * sum(correct) / len(correct):.1f} ({100 * low:.1f} to {100 * high:.1f})"


def shipped() -> dict[Path, str]:
    """The files of the package that tell what the records say."""
    names = [path.parent.name for path in sorted(RESULTS.glob("*/record.json.gz"))]
    results = [read_kept(name, RESULTS) for name in names]
    _add_costs([result for result in results if _is_tuning(result.record)])
    records = [result.record for result in results if PART not in result.record.data]
    reached = ROOT / "src" / "robvit" / "training" / RECORDED
    known = summary([_readable(record) for record in records])
    return _cards(records) | {reached: json.dumps(known, indent=2) + "\n"}


def _is_tuning(record: Record) -> bool:
    return record.kind == "robustify" and "settings" in record.model


def _add_costs(tunings: list[KeptResult]) -> None:
    """Tell what each tuning and those before it cost, by the laboratory's word where it does not say."""
    factors = {RESULTS / r.name / METHODS["lora"]: r for r in tunings}
    left = {LoRA.load(path).digest(): result for path, result in factors.items() if path.exists()}

    def cost(one: KeptResult) -> float:
        own = one.record.metrics.setdefault(PROCESSOR, one.about["cpu_seconds"])
        if start := one.record.model["settings"].get("start"):
            start[PROCESSOR] = cost(left[start["digest"]])
            own += start[PROCESSOR]
        return own

    for tuning in tunings:
        cost(tuning)


def _cards(records: list[Record]) -> dict[Path, str]:
    """The card of every bundled tuned network, from its tuning and all records that judge it."""
    made = {}
    for known in zoo.ALIASES.values():
        if not known.tuned_from:
            continue
        tuning = _tuning_of(LoRA.load(bundled_path(known)), known.alias, records)
        weights = (tuning.model["tuned fingerprint"], tuning.model["fingerprint"])
        kinds = ("evaluate", "retrieval", "attack")
        judges = [r for r in records if r.kind in kinds and not r.model.get("tokens")]
        own = [r for name in weights for r in judges if r.model.get("fingerprint") == name]
        place = bundled_path(known).with_name(f"{known.alias}.md")
        made[place] = model_card([_readable(r) for r in (tuning, *own)], name=known.alias)
    return made


def _tuning_of(factors: LoRA, name: str, records: list[Record]) -> Record:
    """The record of the tuning that left the factors: the same seed, start, images and all other settings."""
    found = [
        r
        for r in records
        if _is_tuning(r)
        and (r.model["fingerprint"], r.data.get("digest")) == (factors.fingerprint, factors.settings["data"])
        and all(_without_cost(factors.settings).get(k) == v for k, v in _settings(r).items())
    ]
    if len(found) != 1:
        raise SystemExit(f"expected the record of one tuning with the settings of {name}, got {len(found)}")
    return found[0]


def _settings(record: Record) -> dict[str, Any]:
    """A tuning's settings as its file has them."""
    return _without_cost(record.model["settings"])


def _without_cost(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without what the start cost: older files do not tell it, records were told afterwards."""
    start = settings.get("start")
    return settings | ({"start": {k: v for k, v in start.items() if k != PROCESSOR}} if start else {})


def _readable(record: Record) -> Record:
    """The record with the laboratory's places as a reader has them: data by name, files of the repository."""
    spec = str(record.data.get("spec") or "")
    data = record.data | {"spec": DATA_NAMES.get(spec, spec.replace("{data}/", ""))}
    command = record.command.replace("{lab}/", "results/").replace("{out}", "runs/tuned")
    return replace(record, data=data, command=command.replace("{data}/", ""))


def _markdown(table: Table) -> list[str]:
    lines = [table.columns, ["---"] * len(table.columns)]
    lines += [[Table.cell(cell) for cell in row] for row in table.rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _sources(results: list[KeptResult]) -> list[str]:
    """Where the figures come from, and what they cost."""
    folders = ", ".join(dict.fromkeys(f"`results/{result.name}`" for result in results))
    minutes = _minutes(results)
    return ["", f"Records: {folders}; {minutes} processor minute{'s' * (minutes > 1)} in all."]


def _now(page: Path) -> str:
    return page.read_text("utf-8") if page.exists() else ""


def _minutes(results: list[KeptResult]) -> int:
    """Processor minutes, each result once, those of the parts of a pooled one too."""
    names = dict.fromkeys(result.name for result in results)
    for result in results:
        if "--pool" in result.about["command"]:
            names |= dict.fromkeys(re.findall(r"\{lab\}/([\w.-]+)/record\.json", result.about["command"]))
    seconds = sum(read_kept(name, RESULTS).about["cpu_seconds"] for name in names)
    return max(1, round(seconds / 60))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is stale")
    asked = parser.parse_args()
    wanted = {page: filled(page.read_text("utf-8"), page) for page in pages()} | shipped()
    stale = {page: text for page, text in wanted.items() if _now(page) != text}
    for page, text in stale.items():
        print(f"{'stale' if asked.check else 'filled'}: {page.relative_to(ROOT)}")
        if not asked.check:
            page.write_text(text, "utf-8")
    return bool(stale and asked.check)


if __name__ == "__main__":
    sys.exit(main())
