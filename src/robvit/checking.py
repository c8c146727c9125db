"""A first look at a model that is in use: how vulnerable it is, how fast, and which defences fit it."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from robvit.backbones import zoo
from robvit.backbones.model import Model
from robvit.backbones.trained_on import OtherSize, fitting
from robvit.certification.certify import certify
from robvit.certification.dropping import TokenDropping
from robvit.certification.windows import patch_side
from robvit.data import ImageDataset
from robvit.data.opening import HELD_OUT, LEARN
from robvit.defenses.low_rank import linear_layers
from robvit.errors import RobvitError
from robvit.evaluation.claims import near_chance
from robvit.evaluation.classifiers import Classifier, Judged, open_classifier
from robvit.evaluation.evaluate import evaluate
from robvit.evaluation.protocol import Subset
from robvit.evaluation.subset import Data, judged_images
from robvit.progress import Advance, Log, part_of, silent
from robvit.record import Record, Table
from robvit.statistics import share_of
from robvit.training.expectation import recorded
from robvit.training.tuning import Tuning

TIMED = 8  # images in a pass whose time is taken, and passes
CERTIFIED = 32  # images, since a certificate takes dozens of passes an image
PATCH = "2%"  # of the area
PROTOCOL, BLACK_BOX = "check@1", "quick-black-box@1"  # for a network, and for a file of which answers are had
MEASURED = "Measured on these images"
MEASURED_COLUMNS = ["defence", "model", "threat", "images", "accuracy without it", "with it"]
MEASURED_NOTE = (
    "In brackets are 95 % intervals. Attacks are short; a certificate holds against every attack. "
    "Bundled robust weights were made on CIFAR-10: made on images like these they may keep more."
)
COLUMNS = ["defence", "what it buys", "costs", "figures", "next, or why not"]
LORA, ADVERSARIAL, CERTIFICATE = "LoRA tuning", "adversarial training", "patch certificate"


@dataclass(frozen=True)
class Defence:
    """What a defence buys and costs, the command that makes it, and the one that measures it then."""

    buys: str
    costs: str
    make: str
    measure: str = ""


DEFENCES = {
    LORA: Defence(
        "accuracy in the white box at small budgets; it is tuned against 2/255",
        "15 minutes, no labels, nothing at inference",
        "robvit robustify {model} {data} {learn} {options} --method lora --minutes 15",
        "robvit check {model} {data} {judge} {options} --lora runs/robustify/lora.safetensors",
    ),
    ADVERSARIAL: Defence(
        "accuracy in the white box at larger budgets, for some of the clean accuracy",
        "hours with labels, nothing at inference",
        "robvit train pgd-at --model {model} --data {data} {learn} {training}",
        "robvit check runs/pgd-at/model.safetensors {data} {judge}",
    ),
    "robustness tokens": Defence(
        "accuracy under attacks made on the public model, none in the white box",
        "minutes, no labels",
        "robvit robustify {model} {data} {learn} {options}",
        "robvit evaluate {model} {data} {judge} {options} --tokens runs/robustify/tokens.safetensors "
        "--protocol rob-tokens@2",
    ),
    "TORA adapters": Defence(
        "a trade-off of accuracy and robustness that can be moved",
        "training with labels",
        "robvit train tora --model {model} --data {data} {learn} {training}",
        "robvit evaluate {model} {data} {judge} {headless} --adapters runs/tora/adapters.safetensors",
    ),
    CERTIFICATE: Defence(
        "a proof against any small square patch",
        "no training, several passes an image",
        "robvit certify {model} {data} {judge} {options} --patch 2%",
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
    variant, certifiable = _robust_variant(classifier), not _why_not(CERTIFICATE, classifier.net)
    share = 1 / (1 + (variant is not None) + certifiable)
    wishes: dict[str, Any] = {"split": split, "resize": resize, "batch": batch}
    rules: dict[str, Any] = {
        "protocol": BLACK_BOX if classifier.black_box else PROTOCOL,
        "limit": limit,
        "command": command,
        **wishes,
    }
    record = evaluate(classifier, data, out=out, log=log, progress=part_of(progress, share), **rules)
    images = judged_images(data, Subset(count=TIMED), split=split, limit=limit)
    images = images.resized(classifier.size or images.size, fitting(classifier.net, resize))
    record.metrics["seconds an image"] = seconds_an_image(classifier, images)
    record.notes.insert(0, vulnerability(record))
    rows: list[list[Any]] = []
    if variant is not None:
        log(f"then {variant.name} on the same images, at most as long again")
        rules["out"] = None if out is None else Path(out) / variant.name
        robust = evaluate(variant, data, progress=part_of(progress, share, variant.name), **rules)
        rows += variant_rows(record, robust)
    if certifiable:
        count = min(CERTIFIED, limit or CERTIFIED)
        log(f"then a certificate against patches of {PATCH} of the area, on at most {count} images")
        wishes |= {"limit": count, "progress": part_of(progress, share, "certificate")}
        rows.append(_certificate_row(classifier, data, wishes))
    spec = str(data) if isinstance(data, str | Path) else "DATA"
    record.tables.append(
        defences_table(classifier, name, spec, options, split or "", {row[0] for row in rows})
    )
    if rows:
        record.tables.append(Table(MEASURED, MEASURED_COLUMNS, rows, MEASURED_NOTE, lead=True))
    if out is not None:
        record.save(Path(out) / "record.json")
    return record


def _robust_variant(classifier: Classifier) -> Classifier | None:
    """Robust weights that are bundled for the model's network at its size, under the model's own head."""
    net = classifier.net
    if not isinstance(net, Model) or not (variants := zoo.robust_variants(net.name)):
        return None
    if net.extra is not None or net.adapters is not None or net.original_fingerprint:  # defended already
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherSize)
        try:
            found = open_classifier(variants[0].alias, img_size=net.input_size[0], head=net.head)
        except (OtherSize, RobvitError):  # made for another size, or not under this head
            return None
    other = isinstance(found.net, Model) and found.net.original_fingerprint not in ("", net.fingerprint())
    return None if other else found


def variant_rows(plain: Record, robust: Record) -> list[list[Any]]:
    """What robust weights keep and the model does not, at each budget, for a table."""
    name = str(robust.model["name"])
    defence = LORA if zoo.ALIASES[name].tuned_from else ADVERSARIAL
    return [
        [defence, name, one.strength, len(one.correct), *map(_percent, (one.correct, other.correct))]
        for one, other in zip(plain.trials, robust.trials, strict=True)
    ]


def _certificate_row(classifier: Classifier, data: Data, wishes: dict[str, Any]) -> list[Any]:
    """How many images are proven to stay correct, for a table; the model alone proves none."""
    assert isinstance(classifier.net, Model)
    side = patch_side(PATCH, classifier.net.input_size)
    record = certify(classifier.net, data, patch=side, **wishes)
    (proven,) = (trial for trial in record.trials if trial.attack == "certificate")
    threat = f"any patch of {side}x{side} pixels"
    return [CERTIFICATE, classifier.name, threat, len(proven.correct), "no proof", _percent(proven.correct)]


def _percent(correct: Sequence[bool]) -> str:
    share, low, high = share_of(correct)
    return f"{share:.1%} ({low:.1%} to {high:.1%})"


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
    before = 0.0 if clean is None else clean.accuracy
    if not before or near_chance(record) is not None:
        return (
            f"Nothing can be said: clean accuracy {before:.1%} is near chance, so there is nothing on these "
            "images that an attack could take."
        )
    fallen = [trial for trial in record.attacks() if trial.accuracy < before / 2]
    if not fallen:
        largest = record.attacks()[-1].strength
        return f"Half of the clean accuracy is left at {largest}, but these attacks are short."
    first = fallen[0]
    return (
        f"Vulnerable: at {first.strength}, which nobody sees, accuracy falls from {before:.1%} to "
        f"{first.accuracy:.1%}."
    )


def defences_table(
    classifier: Classifier,
    name: str = "",
    data: str = "DATA",
    options: str = "",
    split: str = "",
    measured: Collection[str] = (),
) -> Table:
    """Which defences the model can take, what they buy and which figures there are; where not, why."""
    net = classifier.net
    words = {"model": shlex.quote(name or classifier.name), "data": shlex.quote(data), "options": options}
    words |= _without_head(options)
    words |= {"judge": f"--split {shlex.quote(split)}" if split else ""}
    words |= {"learn": f"--split {LEARN}" if split == HELD_OUT else ""}  # what judges is not learned from
    rows: list[list[Any]] = []
    for defence, about in DEFENCES.items():
        reason, figures = _why_not(defence, net), "–"
        if not reason:
            figures = MEASURED.lower() if defence in measured else _recorded(defence, net)
        make, measure = (" ".join(one.format(**words).split()) for one in (about.make, about.measure))
        figures = figures or f"not measured for this model; afterwards: {measure}"
        rows.append([defence, about.buys, about.costs, figures, reason or make])
    return Table("Defences that fit", COLUMNS, rows, lead=True)


def _without_head(options: str) -> dict[str, str]:
    """Those of the options that open the network alone: as a recipe takes them, and as other commands do."""
    given = dict(pairwise(shlex.split(options)))
    arch = f"--arch {shlex.quote(given['--arch'])} " if "--arch" in given else ""
    size = given.get("--img-size", "")
    training = arch + (f"--set img_size={size}" if size else "")
    return {"training": training, "headless": arch + (f"--img-size {size}" if size else "")}


def _recorded(defence: str, net: torch.nn.Module) -> str:
    """What the results that come with robvit tell of a defence of these weights; empty if nothing."""
    return recorded(net, Tuning()) if defence == LORA and isinstance(net, Model) else ""


def _why_not(defence: str, net: torch.nn.Module) -> str:
    """Why a model cannot take a defence; empty if it can."""
    if not isinstance(net, Model):
        return "needs a model that robvit.load opens"
    try:
        if defence == "robustness tokens" and not net.family.takes_extra:
            return f"cannot take tokens: {net.family.why_not}"
        if defence == LORA:
            linear_layers(net)
        if defence == "TORA adapters" and not (net.family.plain_walk and net.has_class_token):
            return "needs a ViT with a class token"
        if defence == CERTIFICATE:
            TokenDropping(net)
    except RobvitError as error:
        return str(error)
    return ""
