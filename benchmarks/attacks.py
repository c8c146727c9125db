"""How fast are our attacks beside other libraries', in one run on one machine?

python benchmarks/attacks.py --model robvit-mini-robust --data sample --count 20

Forward and backward passes come first, seconds second: of the processor, so that other work on the machine
does not count, and of the clock; of short attacks the quickest of three runs. Ours go through the public
runner, in the precision that a probe takes on this machine as for long work (`auto`), or in --precision; the
probe itself is not timed. "bare" is what the passes we took cost alone, as plain forward and backward calls
of the model on batches of all images, in processor seconds. torchattacks and adv-lib are fetched once into a
folder of their own, because of their pins.

Feature attacks go against the model itself where it has a --head, otherwise against a network of the size of
DINOv2-small with random weights, on --large images; there "left" is the mean cosine that is left, otherwise
the images that are still classified rightly.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import attacks_peers as peers
import torch
from attacks_peers import Model, Result, arguments, ours, prepared
from recording import Watch, add_out, bf16_note, finish

import robvit
from robvit.attacks.compute import probe
from robvit.attacks.precision import PRECISIONS
from robvit.evaluation.classifiers import model_facts
from robvit.progress import progress
from robvit.record import Table

KEPT = ", none leaves"  # the others run the same either way
LONG = 1e9  # passes that are worth a probe
COLUMNS = ["attack", "by", "images", "left", "forward", "backward", "CPU seconds", "seconds"]
COLUMNS += ["theirs / ours, CPU", "theirs / ours, seconds", "ours / bare"]

Contender = Callable[[], Result]


class Race(NamedTuple):
    """One attack by several libraries on one model; `runs` of each, of which the quickest counts."""

    name: str
    model: Model
    x: torch.Tensor
    ours: Contender
    others: dict[str, Contender]
    precision: str
    runs: int = 1


def bare(race: Race, result: Result) -> float:
    """The processor seconds of as many passes as `result` took, on batches of all images."""
    model, x = race.model, race.x

    def forward() -> None:
        with torch.no_grad():
            model(x)

    def both() -> None:
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(model(leaf).sum(), leaf)

    def cost(call: Callable[[], None]) -> float:
        call()
        watch = Watch()
        for _ in range(5):
            call()
        return watch.read().cpu / 5

    return (result.forward - result.backward) * cost(forward) + result.backward * cost(both)


def more_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--large", type=int, default=4, help="images of the feature attacks")
    parser.add_argument("--precision", default="auto", choices=["auto", *PRECISIONS], help="of ours")
    add_out(parser)


def precision_for(model: Model, x: torch.Tensor, options: argparse.Namespace) -> str:
    """What the library would compute in, if the work were long."""
    return probe(model, x, options.precision, LONG).precision


class Setting(NamedTuple):
    """What is attacked in a race of classes: a network, images, labels and a budget."""

    model: Model
    x: torch.Tensor
    y: torch.Tensor
    threat: robvit.Threat


def pgd_race(setting: Setting, options: argparse.Namespace, **kept: bool) -> Race:
    """PGD; images leave once they err, unless `early_stop` is off."""
    precision = precision_for(setting.model, setting.x, options)
    return Race(
        "PGD, 20 steps" + (KEPT if kept else ""),
        setting.model,
        setting.x,
        lambda: ours(*setting, "pgd", precision, steps=20, **kept),
        {
            "foolbox": lambda: peers.with_foolbox(*setting, steps=20, restarts=1),
            "torchattacks": lambda: peers.with_torchattacks(*setting, steps=20),
            "adv-lib": lambda: peers.with_advlib(*setting, steps=20),
        },
        precision,
        3,
    )


def feature_race(setting: Setting, options: argparse.Namespace) -> Race:
    """The attack on features, of the model itself where it has a head."""
    if options.head is not None and isinstance(setting.model, robvit.Model):
        net, large = setting.model, setting.x[: options.large]
    else:
        net = robvit.load("vit_small_patch14_dinov2", pretrained=False, img_size=112)
        large = robvit.data.open_data(options.data, limit=options.large, size=112).tensors()[0]
    features, threat = net.eval().requires_grad_(False).features, setting.threat
    precision = precision_for(features, large, options)
    return Race(
        "feature PGD, 30 steps",
        features,
        large,
        lambda: ours(features, large, None, threat, "feature", precision, psnr=None, rounded=False),
        {
            "foolbox, our loss": lambda: peers.features_with_foolbox(features, large, threat, 30),
            "by hand": lambda: peers.features_by_hand(features, large, threat, 30),
        },
        precision,
        3,
    )


def autoattack_race(setting: Setting, options: argparse.Namespace) -> Race:
    queries, whole = options.queries, ["apgd-ce", "apgd-t", "fab-t", "square"]
    precision = precision_for(setting.model, setting.x, options)
    return Race(
        f"AutoAttack, {queries} queries",
        setting.model,
        setting.x,
        lambda: ours(*setting, "autoattack", precision, queries=queries),
        {"pyautoattack": lambda: peers.with_pyautoattack(*setting, whole, queries)},
        precision,
    )


RACES: dict[str, Callable[[Setting, argparse.Namespace], Race]] = {
    "pgd": pgd_race,
    "kept": lambda setting, options: pgd_race(setting, options, early_stop=False),
    "feature": feature_race,
    "autoattack": autoattack_race,
}


def main() -> None:
    options = arguments(__doc__ or "", count=20, more=more_options)
    found, x, y = prepared(options)
    chosen = [k for k in RACES if not options.only or k in options.only.split(",")]
    rows: list[list[object]] = []
    known: dict[str, Result] = {}  # a contender takes part in several races, but runs once
    with progress("attacks", total=len(chosen)) as advance:
        for key in chosen:
            race = RACES[key](Setting(found.net, x, y, found.threat), options)
            rows += run_race(race, known)
            advance(1, note=race.name)
    note = f"{len(x)} images classified rightly, {found.threat}; threads: {options.threads}."
    table = Table("Attacks beside other libraries", COLUMNS, rows, note)
    facts = {"model": model_facts(found.classifier), "data": found.images.facts()}
    finish(options.out, [table], **facts, notes=[bf16_note()])


def run_race(race: Race, known: dict[str, Result]) -> list[list[object]]:
    """A row for each library, ours last."""
    rows: list[list[object]] = []
    spent = []
    for name, contender in race.others.items():
        place = f"{name}, {race.name.removesuffix(KEPT)}"
        try:
            if place not in known:
                known[place] = quickest(contender, race.runs)
        except subprocess.CalledProcessError:
            rows.append([race.name, f"{name} (could not be fetched)", *[None] * (len(COLUMNS) - 2)])
            continue
        spent.append(known[place].spent)
        rows.append([*line(race, name, known[place]), "", "", ""])
    own = quickest(race.ours, race.runs)
    ratios = [min(one[i] for one in spent) / own.spent[i] if spent else None for i in (0, 1)]
    rows.append([*line(race, f"robvit, {race.precision}", own), *ratios, own.spent.cpu / bare(race, own)])
    return rows


def quickest(contender: Contender, runs: int) -> Result:
    return min((contender() for _ in range(runs)), key=lambda result: result.spent.cpu)


def line(race: Race, name: str, r: Result) -> list[object]:
    is_count = r.standing.dtype == torch.bool
    left = int(r.standing.sum()) if is_count else f"{float(r.standing.mean()):.3f}"
    passes = (round(number, 1) for number in (r.forward, r.backward))
    return [race.name, name, len(race.x), left, *passes, r.spent.cpu, r.spent.seconds]


if __name__ == "__main__":
    main()
