"""Does an attack that searches in low precision break the images that fp32 breaks, and how much faster?

python benchmarks/precision.py robvit-mini-robust sample --count 500 --precision bf16/plain

Both ways attack the same images, those that the model classifies rightly, batch by batch in turns; every
success is one that the model as it is confirms. Images on which the two differ are named. Passes of the
low-precision way include those that confirm, and those in fp32 where a success did not hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from attacks_peers import NAMES, USUAL
from autoattack_audited import correct_ones

from robvit.attacks import ATTACKS, frozen, run
from robvit.attacks.precision import PRECISIONS
from robvit.budget import parse_number
from robvit.data import open_data
from robvit.evaluation.classifiers import check_fit, fitted, open_classifier
from robvit.progress import progress
from robvit.settings import parse_settings
from robvit.statistics import mcnemar
from robvit.threat import Threat


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="alias, timm name or checkpoint")
    parser.add_argument("data", help="dataset or folder of images")
    parser.add_argument("--precision", default="bf16/plain", choices=PRECISIONS, help="beside fp32")
    parser.add_argument("--attack", default="apgd_ce", choices=list(ATTACKS.names))
    parser.add_argument("--set", dest="settings", action="append", default=[], help="such as steps=20")
    parser.add_argument("--norm", default="linf", choices=NAMES)
    parser.add_argument("--eps", type=parse_number, help="8/255, 0.5 or 12 if left out")
    parser.add_argument("--head", type=Path, help="a head from robvit train head")
    parser.add_argument("--img-size", type=int, help="side of the images")
    parser.add_argument("--resize", default="squash", choices=["squash", "crop"])
    parser.add_argument("--count", type=int, default=64, help="images, before the wrong ones are left out")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    classifier = open_classifier(options.model, head=options.head, img_size=options.img_size)
    images = open_data(options.data, limit=options.count)
    images = images.resized(classifier.size or images.size, options.resize)
    check_fit(classifier, images)
    model = fitted(classifier.net, images).eval().requires_grad_(False)
    threat = Threat(options.norm, USUAL[options.norm] if options.eps is None else options.eps)
    settings = parse_settings(options.settings, ATTACKS.info(options.attack).defaults, options.attack)
    broken: dict[str, list[bool]] = {"fp32": [], options.precision: []}
    costs = {way: [0.0, 0.0, 0.0] for way in broken}  # passes, CPU seconds, seconds
    with frozen(model):
        images = correct_ones(model, images, options.batch)
    with frozen(model), progress(options.attack, total=len(images)) as advance:
        for first in range(0, len(images), options.batch):
            x, y = images.take(range(first, min(first + options.batch, len(images)))).tensors()
            for way in broken:
                start = time.process_time(), time.perf_counter()
                outcome = run(options.attack, model, x, y, threat, precision=way, batch=len(x), **settings)
                now = time.process_time(), time.perf_counter()
                broken[way] += outcome.success.tolist()
                spent = (outcome.forward + outcome.backward, now[0] - start[0], now[1] - start[1])
                costs[way] = [a + b for a, b in zip(costs[way], spent, strict=True)]
            advance(len(x))
    print(f"`{' '.join(['python', *sys.argv])}`: {len(images)} images classified rightly, {threat}\n")
    print("| precision | left | passes | CPU seconds | seconds |\n|---|---|---|---|---|")
    for way, spent in costs.items():
        counts = " | ".join(f"{value:,.0f}" for value in spent)
        print(f"| {way} | {broken[way].count(False)} | {counts} |")
    ratios = [a / b for a, b in zip(costs["fp32"], costs[options.precision], strict=True)]
    print("| fp32 / the other | | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |\n")
    pairs = list(zip(images.names, broken["fp32"], broken[options.precision], strict=True))
    only = [[name for name, a, b in pairs if a and not b], [name for name, a, b in pairs if b and not a]]
    for way, names in zip(("fp32", options.precision), only, strict=True):
        print(f"broken in {way} only: {len(names)}{': ' + ', '.join(names) if names else ''}")
    print(f"McNemar's test of the difference: p = {mcnemar(len(only[0]), len(only[1])):.2g}")


if __name__ == "__main__":
    main()
