"""How fast are our attacks beside other libraries', in one run on one machine? Prints a markdown table.

python benchmarks/attacks.py --model robvit-mini-robust --data sample --count 20

Forward and backward passes come first, seconds second; on a CPU they are CPU seconds, so that other work
on the machine does not count, and of short attacks the quickest of three runs. "bare" is what the passes we
took cost alone, as plain forward and backward calls of the model on batches of all images. torchattacks
and adv-lib are fetched once into a folder of their own, because of their pins.

Feature attacks go against a network of the size of DINOv2-small with random weights, on --large images;
there "left" is the mean cosine that is left, otherwise the images that are still classified rightly.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import attacks_peers as peers
import torch
from attacks_peers import Model, Result, arguments, clock_for, ours, prepared

import robvit

Contender = Callable[[], Result]


class Race(NamedTuple):
    """One attack by several libraries on one model; `runs` of each, of which the quickest counts."""

    name: str
    model: Model
    x: torch.Tensor
    ours: Contender
    others: dict[str, Contender]
    runs: int = 1


def bare(race: Race, result: Result) -> float:
    """The seconds of as many passes as `result` took, on batches of all images."""
    model, x, clock = race.model, race.x, clock_for(race.x)

    def forward() -> None:
        with torch.no_grad():
            model(x)

    def both() -> None:
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(model(leaf).sum(), leaf)

    def cost(call: Callable[[], None]) -> float:
        call()
        start = clock()
        for _ in range(5):
            call()
        return (clock() - start) / 5

    return (result.forward - result.backward) * cost(forward) + result.backward * cost(both)


def races(options: argparse.Namespace) -> dict[str, Race]:
    model, x, y, threat = prepared(options)
    setting, whole = (model, x, y, threat), ["apgd-ce", "apgd-t", "fab-t", "square"]
    queries = options.queries
    pgd = {
        "foolbox": lambda: peers.with_foolbox(*setting, steps=20, restarts=1),
        "torchattacks": lambda: peers.with_torchattacks(*setting, steps=20),
        "adv-lib": lambda: peers.with_advlib(*setting, steps=20),
    }
    theirs = {"pyautoattack": lambda: peers.with_pyautoattack(*setting, whole, queries)}
    net = robvit.load("vit_small_patch14_dinov2", pretrained=False, img_size=112).eval().requires_grad_(False)
    large = robvit.data.open_data(options.data, limit=options.large, size=112).tensors()[0]
    return {
        "pgd": Race("PGD, 20 steps", model, x, lambda: ours(*setting, "pgd", steps=20), pgd, 3),
        "kept": Race(
            "the same, none leaves",
            model,
            x,
            lambda: ours(*setting, "pgd", steps=20, early_stop=False),
            pgd,
            3,
        ),
        "feature": Race(
            "feature PGD, 30 steps",
            net.features,
            large,
            lambda: ours(net.features, large, None, threat, "feature", psnr=None, rounded=False),
            {
                "foolbox, our loss": lambda: peers.features_with_foolbox(net.features, large, threat, 30),
                "by hand": lambda: peers.features_by_hand(net.features, large, threat, 30),
            },
            3,
        ),
        "autoattack": Race(
            f"AutoAttack, {queries} queries",
            model,
            x,
            lambda: ours(*setting, "autoattack", queries=queries),
            theirs,
        ),
    }


def main() -> None:
    options = arguments(__doc__ or "", count=20)
    chosen = {k: r for k, r in races(options).items() if not options.only or k in options.only.split(",")}
    print(f"`{' '.join(['python', *sys.argv])}`\n")
    print("| attack | by | images | left | forward | backward | seconds | theirs / ours | ours / bare |")
    print("|---" * 9 + "|")
    known: dict[int, Result] = {}  # a contender takes part in several races, but runs once
    for race in chosen.values():
        seconds = []
        for name, contender in race.others.items():
            try:
                if id(contender) not in known:
                    known[id(contender)] = quickest(contender, race.runs)
            except subprocess.CalledProcessError:
                print(f"| {race.name} | {name} | could not be fetched |" + " |" * 6)
                continue
            seconds.append(known[id(contender)].seconds)
            print(line(race, name, known[id(contender)]) + " | |", flush=True)
        own, best = quickest(race.ours, race.runs), min(seconds)
        alone = bare(race, own)
        print(
            f"{line(race, 'robvit', own)} {best / own.seconds:.2f} | {own.seconds / alone:.2f} |", flush=True
        )


def quickest(contender: Contender, runs: int) -> Result:
    return min((contender() for _ in range(runs)), key=lambda result: result.seconds)


def line(race: Race, name: str, r: Result) -> str:
    left = f"{int(r.standing.sum())}" if r.standing.dtype == torch.bool else f"{float(r.standing.mean()):.3f}"
    counts = f"{r.forward:.1f} | {r.backward:.1f} | {r.seconds:.1f}"
    return f"| {race.name} | {name} | {len(race.x)} | {left} | {counts} |"


if __name__ == "__main__":
    main()
