"""How fast are our attacks beside other libraries', in one run on one machine? Prints a markdown table.

python benchmarks/attacks.py --model robvit-mini-robust --data sample --count 64

Forward and backward passes come first, seconds second; on a CPU they are CPU seconds, so that other work
on the machine does not count. "bare" is what the passes we took cost alone, as plain forward and backward
calls of the model on batches of all pictures.
"""

from __future__ import annotations

import sys

import torch
from attacks_peers import Result, arguments, clock_for, ours, prepared, with_foolbox, with_pyautoattack

import robvit


def bare(model: robvit.Model, x: torch.Tensor, result: Result) -> float:
    """The seconds of as many passes as `result` took, on batches of all pictures."""
    repeats, clock = 5, clock_for(x)
    start = clock()
    with torch.no_grad():
        for _ in range(repeats):
            model(x)
    forward = (clock() - start) / repeats
    start = clock()
    for _ in range(repeats):
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(model(leaf).sum(), leaf)
    both = (clock() - start) / repeats
    return (result.forward - result.backward) * forward + result.backward * both


def main() -> None:
    options = arguments(__doc__ or "", count=64)
    model, x, y, threat = prepared(options)
    setting = (model, x, y, threat)
    whole = ["apgd-ce", "apgd-t", "fab-t", "square"]
    rows = {
        "pgd": (
            "PGD, 20 steps", "foolbox",
            lambda: ours(*setting, "pgd", steps=20), lambda: with_foolbox(*setting, steps=20, restarts=1),
        ),
        "kept": (
            "PGD, 20 steps, none leaves", "foolbox",
            lambda: ours(*setting, "pgd", steps=20, keep_broken=True),
            lambda: with_foolbox(*setting, steps=20, restarts=1),
        ),
        "autoattack": (
            f"AutoAttack, {options.queries} queries", "pyautoattack",
            lambda: ours(*setting, "autoattack", queries=options.queries),
            lambda: with_pyautoattack(*setting, whole, options.queries),
        ),
        "fast": (
            f"AutoAttack fast, {options.queries} queries", "pyautoattack",
            lambda: ours(*setting, "autoattack", version="fast", queries=options.queries), None,
        ),
    }  # fmt: skip
    print(f"`{' '.join(['python', *sys.argv])}`: {len(x)} pictures classified rightly, {threat}\n")
    print("| attack | by | left | forward | backward | seconds | theirs / ours | ours / bare |")
    print("|---|---|---|---|---|---|---|---|")
    b = None
    for key, (name, library, we, they) in rows.items():
        if options.only and key not in options.only.split(","):
            continue
        b = they() if they else b  # the row before has measured it
        a = we()
        alone = bare(model, x, a)
        for who, r, ratios in (
            (library, b, "| | |"),
            ("robvit", a, f"| {b.seconds / a.seconds:.2f} | {a.seconds / alone:.2f} |"),
        ):
            counts = f"{r.forward:.1f} | {r.backward:.1f} | {r.seconds:.1f}"
            print(f"| {name} | {who} | {int(r.standing.sum())} | {counts} {ratios}", flush=True)


if __name__ == "__main__":
    main()
