"""How near to the truth is the forecast of an attack? It is to be within a factor of two.

python benchmarks/forecast.py robvit-mini-robust sample --eps 1/255 --set steps=20 --count 64

A forecast is of images that stay correct, so the budget is to be one that the model withstands; images that
fall all the same leave early, and the truth is then below. The probe that chooses the precision is timed
too, as a user waits for it.
"""

from __future__ import annotations

import argparse

from opening import add_options, opened
from recording import Watch, add_out, finish

import robvit
from robvit.attacks import ATTACKS
from robvit.attacks.compute import settle
from robvit.attacks.cost import forecast_of, probed
from robvit.evaluation.attack import passes_an_image
from robvit.evaluation.classifiers import model_facts
from robvit.record import Table
from robvit.settings import parse_settings

COLUMNS = ["", "forward", "backward", "seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="alias, timm name or checkpoint")
    parser.add_argument("data", help="dataset or folder of images")
    parser.add_argument("--attack", default="pgd", choices=list(ATTACKS.names))
    parser.add_argument("--set", dest="settings", action="append", default=[], help="such as steps=20")
    parser.add_argument("--batch", type=int, default=32)
    add_options(parser, count=64)
    add_out(parser)
    options = parser.parse_args()
    found = opened(options)
    images, threat = found.images, found.threat
    settings = parse_settings(options.settings, ATTACKS.info(options.attack).defaults, options.attack)
    one = passes_an_image(options.attack, settings, threat, found.classifier, images)
    passes, watch = one.times(len(images)), Watch()
    few = images.take(range(probed(min(options.batch, len(images)), "cpu"))).tensors()[0]
    compute = settle(found.net, few, wanted="auto", passes=passes.work)
    with compute.in_use():
        said = forecast_of(passes, compute.searched(found.net), few)
    waited, watch = watch.read().seconds, Watch()
    record = robvit.attack(
        found.classifier,
        images,
        attack=options.attack,
        threat=threat,
        settings=settings,
        batch=options.batch,
    )
    took, trial = watch.read().seconds, record.trials[-1]
    rows = [
        ["forecast", *passes, said.seconds],
        ["truth", trial.forward, trial.backward, took],
        ["forecast / truth", passes.forward / trial.forward, passes.backward / max(trial.backward, 1)],
    ]
    rows[-1].append(said.seconds / took)
    left = sum(trial.correct)
    note = f"{options.attack} on {len(images)} images, {threat}, of which {left} stay correct. {compute}; "
    table = Table("The forecast beside the truth", COLUMNS, rows, note + f"probes took {waited:.1f} s.")
    finish(options.out, [table], model=model_facts(found.classifier), data=images.facts())


if __name__ == "__main__":
    main()
