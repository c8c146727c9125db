"""Does AutoAttack's version "fast" leave the same images standing as "standard"? Prints a markdown table.

python benchmarks/attacks_fast.py --skip 64 --count 120

Both begin with the same APGD-CE and targeted APGD, which are run once; then FAB and Square go on with and
without giving up. The first 64 images were used to choose when to give up. With --masked, pixels are
rounded before the model sees them, so that gradients are zero and Square alone can succeed.
"""

from __future__ import annotations

import sys

import torch
from attacks_peers import arguments, clock_for, prepared

from robvit.attacks import Count, misclassified, worst_of
from robvit.attacks.ensemble import FAR, PACE

LEVELS = 64  # of a masked model's pixels
GIVING_UP = {"fab_t": {"give_up": FAR}, "square": {"give_up": PACE}}


def main() -> None:
    options = arguments(__doc__ or "", count=120)
    net, x, y, threat = prepared(options)

    def masked(z: torch.Tensor) -> torch.Tensor:
        return net((z * LEVELS).round() / LEVELS)

    model = masked if options.masked else net

    print(f"`{' '.join(['python', *sys.argv])}`: {len(x)} images classified rightly, {threat}\n")
    print(
        "| images | left by APGD | by standard | by fast | only fast breaks | only standard breaks "
        "| passes of FAB and Square, standard | fast | seconds, standard | fast |"
    )
    print("|---" * 10 + "|")
    totals = torch.zeros(10, dtype=torch.double)
    clock = clock_for(x)
    for some, labels in zip(x.split(20), y.split(20), strict=True):
        first = worst_of(model, some, labels, threat, attacks=("apgd_ce", "apgd_t"))
        with torch.no_grad():
            left = ~misclassified(model(first), labels)
        stands, passes, seconds = [], [], []
        for settings in ({}, GIVING_UP):
            counted, start = Count(model), clock()
            adv = worst_of(
                counted, some[left], labels[left], threat, attacks=("fab_t", "square"), settings=settings
            )
            seconds.append(clock() - start)
            passes.append(counted.forward + counted.backward)
            with torch.no_grad():
                stands.append(~misclassified(model(adv), labels[left]))
        a, b = stands
        row = [len(some), left.sum(), a.sum(), b.sum(), (a & ~b).sum(), (b & ~a).sum(), *passes, *seconds]
        totals += torch.tensor([float(v) for v in row])
        print("| " + " | ".join(f"{v:.0f}" for v in totals) + " |", flush=True)
    print("\nEach line is the sum over all images so far.")


if __name__ == "__main__":
    main()
