"""Does the audited version of AutoAttack break what pyautoattack's standard version breaks, and at what cost?

python benchmarks/autoattack_audited.py robvit-mini-robust sample --count 1000 --out runs/audited-proof

Both attack the same images, those that the model classifies rightly, in one process one after the other;
their passes, CPU seconds and seconds of the clock are set beside each other, and every image on which they
differ is named. pyautoattack goes through blocks of images, each of which is written to --out, so that a
run that is killed goes on; ours needs all images at once, and its result is written when it is done. Both
end up in the record.json there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from attacks_peers import NAMES, USUAL, with_pyautoattack

from robvit.attacks import Count, certify, frozen, misclassified
from robvit.attacks.audited import audited_settings, autoattack_audited
from robvit.audit import SIZE
from robvit.budget import parse_number
from robvit.cli.tables import show_table
from robvit.data import ImageDataset, open_data
from robvit.evaluation.classifiers import check_fit, fitted, model_facts, open_classifier
from robvit.files import parse_json, read_text, write_json
from robvit.progress import progress
from robvit.record import Record, Table
from robvit.threat import Threat

WHOLE = ["apgd-ce", "apgd-t", "fab-t", "square"]
THEIRS, OURS = "pyautoattack, standard", "robvit, audited"
COSTS = ("forward", "backward", "cpu", "seconds")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="alias, timm name or checkpoint")
    parser.add_argument("data", help="dataset or folder of images")
    parser.add_argument("--out", type=Path, required=True, help="folder for what is done so far")
    parser.add_argument("--head", type=Path, help="a head from robvit train head")
    parser.add_argument("--lora", type=Path, help="factors from robvit robustify --method lora")
    parser.add_argument("--img-size", type=int, help="side of the images")
    parser.add_argument("--resize", default="squash", choices=["squash", "crop"])
    parser.add_argument("--split", help="the split to test on; test or validation if left out")
    parser.add_argument("--count", type=int, default=32, help="images, before the wrong ones are left out")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many of the first")
    parser.add_argument("--norm", default="linf", choices=NAMES)
    parser.add_argument("--eps", type=parse_number, help="8/255, 0.5 or 12 if left out")
    parser.add_argument("--queries", type=int, default=5000, help="of Square, on both sides")
    parser.add_argument("--audit", type=int, default=SIZE, help="the size of the sample")
    parser.add_argument("--batch", type=int, default=128, help="images in one pass, on both sides")
    parser.add_argument("--block", type=int, default=64, help="images after which pyautoattack's are kept")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


class Meter:
    """What happens between its making and `read`: passes of a counted model, CPU seconds, seconds."""

    def __init__(self, counted: Count) -> None:
        self.counted, self.start = counted, (0, 0, time.process_time(), time.perf_counter())

    def read(self) -> dict[str, float]:
        now = (self.counted.forward, self.counted.backward, time.process_time(), time.perf_counter())
        return {name: b - a for name, a, b in zip(COSTS, self.start, now, strict=True)}


def correct_ones(model: Any, images: ImageDataset, batch: int) -> ImageDataset:
    """The images that the model classifies rightly."""
    kept = []
    with torch.no_grad():
        for first in range(0, len(images), batch):
            x, y = images.take(range(first, min(first + batch, len(images)))).tensors()
            kept += (first + (~misclassified(model(x), y)).nonzero()[:, 0]).tolist()
    return images.take(kept)


def kept(path: Path, names: list[str], make: Any) -> dict[str, Any]:
    """A result from its file, or made and written; one of other images is refused."""
    if not path.exists():
        write_json(path, {"command": sys.argv, "names": names, **make()})
    found: dict[str, Any] = parse_json(read_text(path, "a result"), path, "a result")
    if found["names"] != names or found["command"][1:] != sys.argv[1:]:
        sys.exit(f"{path} is of another run; choose another --out")
    return found


def theirs(model: Any, images: ImageDataset, threat: Threat, options: argparse.Namespace) -> dict[str, Any]:
    """pyautoattack's standard version, block by block."""
    parts = []
    with progress("pyautoattack", total=len(images)) as advance:
        for first in range(0, len(images), options.block):
            block = images.take(range(first, min(first + options.block, len(images))))

            def make(block: ImageDataset = block) -> dict[str, Any]:
                counted = Count(model)
                meter = Meter(counted)
                x, y = block.tensors()
                result = with_pyautoattack(counted, x, y, threat, WHOLE, options.queries, options.batch)
                return {"standing": result.standing.tolist(), **meter.read()}

            parts.append(kept(options.out / f"theirs-{first:06d}.json", block.names, make))
            standing = sum(sum(part["standing"]) for part in parts)
            advance(len(block), note=f"{standing} withstand")
    sums = {name: sum(part[name] for part in parts) for name in COSTS}
    return {"standing": [value for part in parts for value in part["standing"]], **sums}


def ours(model: Any, images: ImageDataset, threat: Threat, options: argparse.Namespace) -> dict[str, Any]:
    """The audited version on all images."""
    settings = audited_settings(threat, steps=100, targets=9, queries=options.queries)

    def make() -> dict[str, Any]:
        counted, (x, y) = Count(model), images.tensors()
        meter = Meter(counted)
        given = {"settings": settings, "audit": options.audit, "batch": options.batch}
        with torch.no_grad():
            adv, audit = autoattack_audited(counted, x, y, threat, **given)
            cost = meter.read()
            certify(x, adv, threat)
            parts = zip(adv.split(options.batch), y.split(options.batch), strict=True)
            standing = torch.cat([~misclassified(model(some), labels) for some, labels in parts])
        return {"standing": standing.tolist(), "audit": str(audit), "switched": audit.switched, **cost}

    return kept(options.out / "ours.json", images.names, make)


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    classifier = open_classifier(
        options.model, head=options.head, lora=options.lora, img_size=options.img_size
    )
    images = open_data(options.data, split=options.split, limit=options.skip + options.count)
    images = images.take(range(options.skip, len(images)))
    images = images.resized(classifier.size or images.size, options.resize)
    check_fit(classifier, images)
    model = fitted(classifier.net, images).eval().requires_grad_(False)
    threat = Threat(options.norm, USUAL[options.norm] if options.eps is None else options.eps)
    with frozen(model):
        images = correct_ones(model, images, options.batch)
        a, b = theirs(model, images, threat, options), ours(model, images, threat, options)
    record = Record("benchmark", model_facts(classifier), images.facts(), [])
    record.command = " ".join(["python", *sys.argv])
    record.tables, record.notes = compared(a, b, images, threat), [b["audit"]]
    record.save(options.out / "record.json")
    for table in record.tables:
        show_table(table)
    print(b["audit"])


def compared(a: dict[str, Any], b: dict[str, Any], images: ImageDataset, threat: Threat) -> list[Table]:
    """What each leaves and costs, and the images on which the two differ, by name."""
    ratios = [a[c] / b[c] if b[c] else float("nan") for c in COSTS]
    passes = [one["forward"] + one["backward"] for one in (a, b)]
    rows = [
        [name, sum(one["standing"]), count, *(round(one[c]) for c in COSTS)]
        for name, one, count in zip(
            ("pyautoattack, standard", "robvit, audited"), (a, b), passes, strict=True
        )
    ]
    rows.append(["theirs / ours", "", *(round(r, 2) for r in (passes[0] / passes[1], *ratios))])
    columns = ["by", "withstand", "passes", "forward", "backward", "CPU seconds", "seconds"]
    note = f"{len(images)} images classified rightly, {threat}."
    both = Table("AutoAttack beside its audited version", columns, rows, note)
    differing = []
    for who, first, second in ((THEIRS, b, a), (OURS, a, b)):
        pairs = zip(images.names, first["standing"], second["standing"], strict=True)
        names = [name for name, stands, other in pairs if stands and not other]
        differing.append([who, len(names), ", ".join(names)])
    return [both, Table("Broken by one of the two alone", ["by", "images", "which"], differing, "")]


if __name__ == "__main__":
    main()
