"""Does the doctor catch what is broken and leave what is honest? Prints a markdown table, defence by check.

python benchmarks/doctor.py --count 16

Rows are honest models and the deliberately broken defences of `robvit.diagnosis.broken_defenses`, each around
robvit-mini; R is red, a is amber, a dot green, a dash skipped. The checks that must catch a defence stand in
brackets. Exit code 1 if an honest model is red or a defence is not caught by its check.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

import robvit
from robvit.data import open_data
from robvit.diagnosis.broken_defenses import BROKEN_DEFENSES
from robvit.diagnosis.doctor import CHECKS  # whole only once every file of checks is imported

SIGNS = {"red": "R", "amber": "a", "green": "·", "skipped": "–"}


def models() -> dict[str, tuple[object, tuple[str, ...]]]:
    """Name: the model, and the checks that must be red."""
    mini = robvit.load("robvit-mini")

    def plain_timm(x: torch.Tensor) -> torch.Tensor:
        return net((x - mean) / std)

    net, mean, std = mini.net, mini.mean, mini.std
    found = {"robvit-mini": (mini, ()), "robvit-mini-robust": (robvit.load("robvit-mini-robust"), ())}
    found["plain timm ViT"] = (plain_timm, ())
    return found | {p.name: (p.value(mini), p.info.caught_by) for p in BROKEN_DEFENSES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--queries", type=int, default=60)
    parser.add_argument("--only", default="", help="names, with commas between")
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = open_data("sample", limit=options.count)
    strength = {"steps": options.steps, "restarts": 2, "queries": options.queries, "draws": 20}
    checks = [entry.name for entry in CHECKS]
    print(f"`{' '.join(['python', *sys.argv])}`\n")
    print("| | " + " | ".join(name.replace("_", " ") for name in checks) + " | seconds |")
    print("|---" * (len(checks) + 2) + "|", flush=True)
    failed = []
    for name, (model, caught_by) in models().items():
        if options.only and name not in options.only.split(","):
            continue
        torch.manual_seed(0)
        start = time.perf_counter()
        found = {f.check: f.status for f in robvit.doctor(model, images, **strength).findings}
        cells = [f"**({SIGNS[found[c]]})**" if c in caught_by else SIGNS[found[c]] for c in checks]
        print(f"| {name} | {' | '.join(cells)} | {time.perf_counter() - start:.0f} |", flush=True)
        wrong = any(found[c] != "red" for c in caught_by) if caught_by else "red" in found.values()
        failed += [name] * wrong
    if failed:
        sys.exit(f"not as it should be: {', '.join(failed)}")


if __name__ == "__main__":
    main()
