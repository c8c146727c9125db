"""Are our attacks as strong as other libraries', image by image? Prints a markdown table.

python benchmarks/attacks_conformance.py --model robvit-mini-robust --data sample --count 64

Only images that the model classifies rightly are attacked. "only they" counts images that the other
library broke and we did not, "only we" the reverse; their positions follow the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from attacks_peers import Result, arguments, ours, prepared, with_foolbox, with_pyautoattack

Pair = tuple[str, Callable[[], Result], Callable[[], Result]]


def main() -> None:
    options = arguments(__doc__ or "", count=64, more=lambda _: None)
    found, x, y = prepared(options)
    setting, threat = (found.net, x, y, found.threat), found.threat
    queries = options.queries
    table: dict[str, Pair] = {
        "pgd, 20 steps, 5 restarts": (
            "foolbox",
            lambda: ours(*setting, "pgd", steps=20, restarts=5),
            lambda: with_foolbox(*setting, steps=20, restarts=5),
        )
    }
    for name, theirs, settings in (
        ("apgd_ce", "apgd-ce", {}),
        ("apgd_t", "apgd-t", {}),
        ("fab_t", "fab-t", {}),
        ("square", "square", {"steps": queries}),
    ):
        table[name] = (
            "pyautoattack",
            lambda name=name, settings=settings: ours(*setting, name, **settings),
            lambda theirs=theirs: with_pyautoattack(*setting, [theirs], queries),
        )
    table["autoattack"] = (
        "pyautoattack",
        lambda: ours(*setting, "autoattack", queries=queries),
        lambda: with_pyautoattack(*setting, ["apgd-ce", "apgd-t", "fab-t", "square"], queries),
    )
    print(f"`{' '.join(['python', *sys.argv])}`: {len(x)} images classified rightly, {threat}\n")
    print("| attack | beside | we leave | they leave | only we | only they | our passes | their passes |")
    print("|---|---|---|---|---|---|---|---|")
    notes = []
    for name, (library, we, they) in table.items():
        if options.only and name.split(",")[0] not in options.only.split(","):
            continue
        a, b = we(), they()
        missed, extra = a.standing & ~b.standing, ~a.standing & b.standing
        passes = [f"{r.forward:.0f} + {r.backward:.0f}" for r in (a, b)]
        print(
            f"| {name} | {library} | {int(a.standing.sum())} | {int(b.standing.sum())} | {int(extra.sum())} "
            f"| {int(missed.sum())} | {' | '.join(passes)} |",
            flush=True,
        )
        for text, which in (("only they", missed), ("only we", extra)):
            if bool(which.any()):
                notes.append(f"{name}: {text} {torch.nonzero(which)[:, 0].tolist()}")
    print("\nPasses are forward + backward, the mean over images.")
    print("\n".join(notes))


if __name__ == "__main__":
    main()
