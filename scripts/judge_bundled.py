"""Judge the bundled models once on the whole CIFAR-10 test set, for their model card.

    robvit data cifar10
    python scripts/judge_bundled.py            # about twenty minutes on two cores

Clean accuracy, and accuracy under PGD-20 at 8/255 (L-inf), each of all 10,000 images.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import robvit
from robvit.data import open_data
from robvit.files import write_json
from robvit.progress import progress
from robvit.statistics import interval

THREAT = robvit.Threat("linf", 8 / 255)


def judge(name: str, limit: int | None) -> dict[str, object]:
    """Clean and PGD-20 accuracy of a bundled model with 95 % intervals."""
    model = robvit.load(name)
    images = open_data("cifar10", split="test", limit=limit)
    clean = robust = 0
    with progress(name, total=len(images)) as advance:
        for x, y in images.batches(250):
            outcome = robvit.attacks.run("pgd", model, x, y, THREAT, steps=20, step_size=2 / 255)
            clean += int(outcome.clean.sum())
            robust += int((~outcome.success).sum())
            advance(len(x))
    count = len(images)
    figures = {"images": count, "clean": clean / count, "pgd20": robust / count}
    return figures | {"clean_95": interval(clean, count), "pgd20_95": interval(robust, count)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=["robvit-mini", "robvit-mini-robust"])
    parser.add_argument("--limit", type=int, help="fewer images, for a first look")
    parser.add_argument("--out", type=Path, default=Path("runs/bundled/judged.json"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found = {name: judge(name, args.limit) for name in args.names}
    write_json(args.out, found)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
