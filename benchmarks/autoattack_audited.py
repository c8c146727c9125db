"""Does the audited version of AutoAttack break what pyautoattack's standard version breaks, and at what cost?

python benchmarks/autoattack_audited.py robvit-mini-robust sample --count 1000 --out runs/audited-proof

Both attack the same images, those that the model classifies rightly, in one process one after the other;
their passes, CPU seconds and seconds of the clock are set beside each other, and every image on which they
differ is named. pyautoattack goes through blocks of images, each of which is written to --out, so that a
run that is killed goes on; ours needs all images at once, and its result is written when it is done. Both
end up in the record.json there. Several records of other images become one with --pool:

python benchmarks/autoattack_audited.py --pool runs/part-1/record.json runs/part-2/record.json --out runs/all
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from attacks_peers import with_pyautoattack
from opening import add_options, correct_ones, opened
from recording import Spent, Watch, finish

from robvit.attacks import Count, check_adversarial, frozen, misclassified
from robvit.attacks.audited import audited_settings, autoattack_audited
from robvit.audit import SIZE, Audit, pooled
from robvit.data import ImageDataset
from robvit.evaluation.classifiers import model_facts
from robvit.files import parse_json, read_text, write_json
from robvit.progress import progress
from robvit.record import Record, Table
from robvit.threat import Threat

WHOLE = ["apgd-ce", "apgd-t", "fab-t", "square"]
THEIRS, OURS = "pyautoattack, standard", "robvit, audited"
BESIDE, ALONE = "AutoAttack beside its audited version", "Broken by one of the two alone"
COSTS = ("forward", "backward", *Spent._fields)
COLUMNS = ["by", "withstand", "passes", "forward", "backward", "CPU seconds", "seconds"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", help="alias, timm name or checkpoint")
    parser.add_argument("data", nargs="?", help="dataset or folder of images")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is done so far")
    add_options(parser, count=32)
    parser.add_argument("--queries", type=int, default=5000, help="of Square, on both sides")
    parser.add_argument("--audit", type=int, default=SIZE, help="the size of the sample")
    parser.add_argument("--batch", type=int, default=128, help="images in one pass, on both sides")
    parser.add_argument("--block", type=int, default=64, help="images after which pyautoattack's are kept")
    parser.add_argument("--pool", type=Path, nargs="+", help="only put these records together")
    options = parser.parse_args()
    if (options.pool is None) == (options.data is None):
        parser.error("give MODEL and DATA, or --pool and records")
    return options


def kept(path: Path, names: list[str], decides: dict[str, Any], make: Any) -> dict[str, Any]:
    """A result from its file, or made and written; one of other images or settings is refused."""
    if not path.exists():
        write_json(path, {"decides": decides, "names": names, **make()})
    found: dict[str, Any] = parse_json(read_text(path, "a result"), path, "a result")
    if (found["names"], found["decides"]) != (names, decides):
        sys.exit(f"{path} is of another run; choose another --out")
    return found


def costs(counted: Count, spent: Spent) -> dict[str, float]:
    """What an attack took: passes, CPU seconds and seconds."""
    return dict(zip(COSTS, (counted.forward, counted.backward, *spent), strict=True))


def theirs(model: Any, images: ImageDataset, threat: Threat, options: argparse.Namespace) -> dict[str, Any]:
    """pyautoattack's standard version, block by block."""
    parts, decides = [], settled(options)
    with progress("pyautoattack", total=len(images)) as advance:
        for first in range(0, len(images), options.block):
            block = images.take(range(first, min(first + options.block, len(images))))

            def make(block: ImageDataset = block) -> dict[str, Any]:
                counted, (x, y) = Count(model), block.tensors()
                result = with_pyautoattack(counted, x, y, threat, WHOLE, options.queries, options.batch)
                return {"standing": result.standing.tolist(), **costs(counted, result.spent)}

            parts.append(kept(options.out / f"theirs-{first:06d}.json", block.names, decides, make))
            standing = sum(sum(part["standing"]) for part in parts)
            advance(len(block), note=f"{standing} withstand")
    sums = {name: sum(part[name] for part in parts) for name in COSTS}
    return {"standing": [value for part in parts for value in part["standing"]], **sums}


def ours(model: Any, images: ImageDataset, threat: Threat, options: argparse.Namespace) -> dict[str, Any]:
    """The audited version on all images."""
    settings = audited_settings(threat, steps=100, targets=9, queries=options.queries)

    def make() -> dict[str, Any]:
        counted, (x, y), watch = Count(model), images.tensors(), Watch()
        given = {"settings": settings, "audit": options.audit, "batch": options.batch}
        with torch.no_grad():
            adv, audit = autoattack_audited(counted, x, y, threat, **given)
            cost = costs(counted, watch.read())
            check_adversarial(x, adv, threat)
            parts = zip(adv.split(options.batch), y.split(options.batch), strict=True)
            standing = torch.cat([~misclassified(model(some), labels) for some, labels in parts])
        return {"standing": standing.tolist(), "audit": asdict(audit), **cost}

    decides = {**settled(options), "audit": options.audit}
    return kept(options.out / "ours.json", images.names, decides, make)


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.pool is not None:
        put_together([Record.load(path) for path in options.pool], options.out)
        return
    found = opened(options)
    with frozen(found.net):
        images = correct_ones(found.net, found.images, options.batch)
        a, b = (side(found.net, images, found.threat, options) for side in (theirs, ours))
    rows = [[name, sum(one["standing"]), *(one[c] for c in COSTS)] for name, one in ((THEIRS, a), (OURS, b))]
    differing = []
    for who, first, second in ((THEIRS, b, a), (OURS, a, b)):
        pairs = zip(images.names, first["standing"], second["standing"], strict=True)
        differing.append([who, [name for name, stands, other in pairs if stands and not other]])
    audit = Audit(**b["audit"])
    tables = compared(rows, differing, f"{len(images)} images classified rightly, {found.threat}. {audit}")
    facts = {"model": model_facts(found.classifier), "data": images.facts()}
    finish(options.out, tables, **facts, audits=[audit], notes=[str(audit)], protocol=shared(options))


def settled(options: argparse.Namespace) -> dict[str, Any]:
    """What decides pyautoattack's answer for a block of images: more images later do not change it."""
    parts = {name: str(getattr(options, name)) for name in ("model", "head", "lora", "resize")}
    return {**parts, "batch": options.batch, **shared(options)}


def shared(options: argparse.Namespace) -> dict[str, Any]:
    """What records must have in common to be put together."""
    eps = None if options.eps is None else float(options.eps)
    return {"norm": options.norm, "eps": eps, "queries": options.queries, "img_size": options.img_size}


def compared(rows: list[list[Any]], differing: list[list[Any]], note: str) -> list[Table]:
    """What each leaves and costs, and the images on which the two differ, by name."""
    spent = [[sum(costs[:2]), *costs] for _, _, *costs in rows]
    lines = [[*row[:2], *map(round, costs)] for row, costs in zip(rows, spent, strict=True)]
    lines.append(["theirs / ours", "", *(a / b if b else None for a, b in zip(*spent, strict=True))])
    alone = [[who, len(names), ", ".join(names)] for who, names in differing]
    return [Table(BESIDE, COLUMNS, lines, note), Table(ALONE, ["by", "images", "which"], alone)]


def put_together(records: list[Record], out: Path) -> None:
    """One table of all parts, which must be of one model, one budget and other images each."""
    first = records[0]
    names = [name for record in records for name in record.data["names"]]
    alike = all((r.model, r.protocol) == (first.model, first.protocol) for r in records)
    if not alike or len(set(names)) < len(names):
        sys.exit("records must be of one model, budget and number of queries, and share no image")
    beside, alone = ([record.tables[place] for record in records] for place in (0, 1))
    rows = [
        [who, *(sum(table.rows[place][column] for table in beside) for column in (1, *range(3, 7)))]
        for place, who in enumerate((THEIRS, OURS))
    ]
    differing = [
        [who, [name for table in alone for name in table.rows[place][2].split(", ") if name]]
        for place, who in enumerate((THEIRS, OURS))
    ]
    audit = pooled([audit for record in records for audit in record.audits])
    missed, allowed = len(differing[0][1]), audit.bound * audit.survivors
    verdict = f"{audit} That allows {allowed:.0f}; pyautoattack alone broke {missed}."
    note = f"{len(names)} images classified rightly, in {len(records)} parts. {verdict}"
    data = {"spec": first.data["spec"], "count": len(names), "names": names}
    finish(
        out,
        compared(rows, differing, note),
        model=first.model,
        data=data,
        audits=[audit],
        notes=[str(audit), *(str(part) for record in records for part in record.audits if part.switched)],
        protocol=first.protocol,
    )


if __name__ == "__main__":
    main()
