"""Does an attack that searches in low precision break the images that fp32 breaks, and how much faster?

python benchmarks/precision.py robvit-mini-robust sample --count 500 --precision bf16/plain

Both ways attack the same images, those that the model classifies rightly, batch by batch in turns; every
success is one that the model as it is confirms. Images on which the two differ are named, beside those on
which fp32 differs from itself with another seed. Passes of the low-precision way include those that
confirm, and those in fp32 where a success did not hold. A processor
without bf16 takes a hundred times as long for its products; with --rounded it computes them by fp32's
kernels, rounded as hardware rounds: then the images tell, and the seconds do not.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

from opening import add_options, correct_ones, opened
from recording import NOTHING, Watch, add_out, bf16_note, finish
from rounded import RoundedProducts

from robvit.attacks import ATTACKS, frozen, run
from robvit.attacks.precision import PRECISIONS
from robvit.data import ImageDataset
from robvit.evaluation.classifiers import model_facts
from robvit.progress import progress
from robvit.record import Table
from robvit.settings import parse_settings
from robvit.statistics import mcnemar

RESEEDED = "fp32, another seed"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="alias, timm name or checkpoint")
    parser.add_argument("data", help="dataset or folder of images")
    parser.add_argument("--precision", default="bf16/plain", choices=PRECISIONS, help="beside fp32")
    parser.add_argument("--rounded", action="store_true", help="low-precision products by fp32's kernels")
    parser.add_argument("--attack", default="apgd_ce", choices=list(ATTACKS.names))
    parser.add_argument("--set", dest="settings", action="append", default=[], help="such as steps=20")
    parser.add_argument("--batch", type=int, default=32)
    add_options(parser, count=64)
    add_out(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    found = opened(options)
    model, threat = found.net, found.threat
    settings = parse_settings(options.settings, ATTACKS.info(options.attack).defaults, options.attack)
    ways = {"fp32": ("fp32", 0), options.precision: (options.precision, 0), RESEEDED: ("fp32", 1)}
    broken: dict[str, list[bool]] = {way: [] for way in ways}
    passes, spent = dict.fromkeys(ways, 0), dict.fromkeys(ways, NOTHING)
    images = correct_ones(model, found.images, options.batch)
    products = RoundedProducts() if options.rounded else nullcontext()
    with frozen(model), products, progress(options.attack, total=len(images)) as advance:
        for first in range(0, len(images), options.batch):
            x, y = images.take(range(first, min(first + options.batch, len(images)))).tensors()
            for way, (precision, seed) in ways.items():
                given = {"precision": precision, "seed": seed, "batch": len(x), **settings}
                watch = Watch()
                outcome = run(options.attack, model, x, y, threat, **given)
                spent[way] += watch.read()
                passes[way] += outcome.forward + outcome.backward
                broken[way] += outcome.success.tolist()
            advance(len(x))
    rows = [[way, broken[way].count(False), passes[way], *spent[way]] for way in ways]
    ratios = (a / b for a, b in zip(rows[0][2:], rows[1][2:], strict=True))
    rows.append([f"fp32 / {options.precision}", "", *ratios])
    note = (
        f"{options.attack} on {len(images)} images classified rightly, {threat}; threads: {options.threads}."
    )
    columns = ["precision", "left", "passes", *([] if options.rounded else ["CPU seconds", "seconds"])]
    tables = [
        Table(
            "The search in low precision beside fp32", columns, [row[: len(columns)] for row in rows], note
        ),
        differing(images, broken),
    ]
    facts = {"model": model_facts(found.classifier), "data": images.facts()}
    rounded = ["Its products were computed by fp32's kernels and rounded."] if options.rounded else []
    finish(options.out, tables, **facts, notes=[bf16_note(), *rounded])


def differing(images: ImageDataset, broken: dict[str, list[bool]]) -> Table:
    """The images that one way broke and another did not, by name."""
    fp32, low, reseeded = broken
    rows: list[list[object]] = []
    for way, other in ((fp32, low), (low, fp32), (fp32, reseeded), (reseeded, fp32)):
        pairs = zip(images.names, broken[way], broken[other], strict=True)
        names = [name for name, mine, theirs in pairs if mine and not theirs]
        rows.append([way, other, len(names), ", ".join(names)])
    p = mcnemar(*(int(str(row[2])) for row in rows[:2]))
    note = f"McNemar's test of {fp32} and {low}: p = {p:.2g}."
    columns = ["broken by", "but not by", "images", "which"]
    return Table("Broken in one precision only, or with one seed", columns, rows, note)


if __name__ == "__main__":
    main()
