"""A first look at a model that is in use: how vulnerable it is, how fast, and which defences fit it."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

import torch

from robvit.backbones.model import Model
from robvit.backbones.trained_on import fitting
from robvit.certification.dropping import TokenDropping
from robvit.data import ImageDataset
from robvit.defenses.low_rank import linear_layers
from robvit.errors import RobvitError
from robvit.evaluation.classifiers import Classifier, Judged, open_classifier
from robvit.evaluation.evaluate import evaluate
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import Data, judged_images
from robvit.progress import Advance, Log, silent
from robvit.record import Record, Table
from robvit.training.expectation import expected
from robvit.training.tuning import Tuning

TIMED = 8  # images in a pass whose time is taken, and passes
PROTOCOL, BLACK_BOX = "check@1", "quick-black-box@1"  # for a network, and for a file of which answers are had
# A defence: what it buys, what it costs, and the command that makes it.
DEFENCES = {
    "LoRA tuning": (
        "accuracy in the white box at small budgets",
        "15 minutes, no labels, nothing at inference",
        "robvit robustify {model} {data} {options} --method lora --minutes 15",
    ),
    "robustness tokens": (
        "accuracy under attacks made on the public model, none in the white box",
        "minutes, no labels",
        "robvit robustify {model} {data} {options}",
    ),
    "TORA adapters": (
        "a trade-off of accuracy and robustness that can be moved",
        "training with labels",
        "robvit train tora --model {model} --data {data}",
    ),
    "patch certificate": (
        "a proof against any small square patch",
        "no training, several passes an image",
        "robvit certify {model} {data} {options} --patch 2%",
    ),
}


def check(
    model: Judged,
    data: Data,
    *,
    out: str | Path | None = None,
    split: str | None = None,
    resize: str | None = None,
    limit: int | None = None,
    batch: int = 32,
    log: Log = silent,
    progress: Advance = silent,
    command: str = "",
    name: str = "",
    options: str = "",
) -> Record:
    """Say how vulnerable a model is, how long it takes for an image, and which defences fit it.

    model: a model, any callable from images (B 3 H W) in [0,1] to logits (B K), or what names one.
    data: labelled images, or what `open_data` opens.
    out: a folder for shards and record.json; without it nothing is left behind.
    split: the part of the data; its judging part if left out.
    resize: "squash" images to the model's square, or "crop" their middle as for ImageNet; as for what the
        model carries if left out, else squash.
    limit: at most so many images; 64 if left out.
    batch: images in one pass.
    log: takes a forecast of the cost in words.
    progress: takes shares of the work, one in all.
    command: what a person typed, for the record.
    name: how the commands that are offered name the model; the name it has if left out.
    options: what else they need to open it, such as "--img-size 112".
    """
    classifier = open_classifier(model)
    record = evaluate(
        classifier,
        data,
        protocol=BLACK_BOX if classifier.black_box else PROTOCOL,
        out=out,
        split=split,
        resize=resize,
        limit=limit,
        batch=batch,
        log=log,
        progress=progress,
        command=command,
    )
    images = judged_images(data, Subset(count=TIMED), split=split, limit=limit)
    images = images.resized(classifier.size or images.size, fitting(classifier.net, resize))
    record.metrics["seconds an image"] = seconds_an_image(classifier, images)
    record.notes.insert(0, vulnerability(record))
    spec = str(data) if isinstance(data, str | Path) else "DATA"
    record.tables.append(defences_table(classifier, name, spec, options))
    if out is not None:
        record.save(Path(out) / "record.json")
    return record


@torch.no_grad()
def seconds_an_image(classifier: Classifier, images: ImageDataset) -> float:
    """The least time of a pass for an image, of a few tries on a small batch."""
    x = images.tensors()[0].to(next(classifier.net.parameters(), torch.zeros(0)).device)
    times = []
    for _ in range(TIMED):
        start = time.perf_counter()
        classifier.net(x).sum().item()  # waits for a GPU too
        times.append((time.perf_counter() - start) / len(x))
    return min(times)


def vulnerability(record: Record) -> str:
    """How vulnerable the model is, in a sentence: at which budget half of its accuracy is gone."""
    clean = record.clean()
    right = 0.0 if clean is None else clean.accuracy
    fallen = [trial for trial in record.attacks() if trial.accuracy < right / 2]
    if not fallen:
        largest = record.attacks()[-1].strength
        return f"Half of the clean accuracy is left at {largest}, but these attacks are short."
    first = fallen[0]
    return (
        f"Vulnerable: at {first.strength}, which nobody sees, accuracy falls from {right:.1%} to "
        f"{first.accuracy:.1%}."
    )


def defences_table(classifier: Classifier, name: str = "", data: str = "DATA", options: str = "") -> Table:
    """Which defences the model can take and what they buy; where not, why. What was recorded is the note."""
    net = classifier.net
    words = {"model": shlex.quote(name or classifier.name), "data": shlex.quote(data), "options": options}
    rows: list[list[Any]] = []
    for defence, (buys, costs, command) in DEFENCES.items():
        reason = _why_not(defence, net)
        rows.append([defence, buys, costs, reason or " ".join(command.format(**words).split())])
    recorded = expected(net, Tuning()) if isinstance(net, Model) else ""
    columns = ["defence", "what it buys", "costs", "next, or why not"]
    note = f"LoRA tuning: {recorded}." if recorded else ""
    return Table("Defences that fit", columns, rows, note, lead=True)


def _why_not(defence: str, net: torch.nn.Module) -> str:
    """Why a model cannot take a defence; empty if it can."""
    if not isinstance(net, Model):
        return "needs a model that robvit.load opens"
    try:
        if defence == "robustness tokens" and not net.family.takes_extra:
            return f"cannot take tokens: {net.family.why_not}"
        if defence == "LoRA tuning":
            linear_layers(net)
        if defence == "TORA adapters" and not (net.family.plain_walk and net.has_class_token):
            return "needs a ViT with a class token"
        if defence == "patch certificate":
            TokenDropping(net)
    except RobvitError as error:
        return str(error)
    return ""
