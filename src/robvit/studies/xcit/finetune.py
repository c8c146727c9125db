"""Tables 7 and 8 of the XCiT thesis: fine-tuning a robust network on other data, and on CIFAR-10.

At the small scale the bundled robvit-mini-robust stands for the XCiT-S12 that was robustly pretrained on
ImageNet. The thesis compares it with a robust ResNet-50, which is not bundled; what stands beside ours is
robvit-mini, pretrained without attacks, and the same network from random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robvit.errors import InputError
from robvit.evaluation.record import Record, Table
from robvit.registry import unknown
from robvit.studies.common import Request, study
from robvit.studies.xcit.common import CHECKPOINT, Claim, Effort, Variant, cell, finals, judged
from robvit.studies.xcit.paper import PAPER, TABLE7, TABLE8

# The start, the network that stands for it, and whether its weights are kept.
STARTS = {
    "robust start": ("robvit-mini-robust", True),
    "standard start": ("robvit-mini", True),
    "random start": ("robvit-mini", False),
}
SETS = {"caltech-101": "forms", "flowers": "petals"}
# Of small-study's; its larger steps would forget what a pretrained network knows.
TUNED: dict[str, Any] = {
    "img_size": 32,
    "patch_size": None,
    "lr": 5e-4,
    "batch": 32,
    "weight_decay": 0.05,
    "eps_warmup": 0,
    "inner.eps": 8 / 255,
}
TRADES = {
    "loss": "trades",
    "loss_settings": {"beta": 6.0},
    "inner.steps": 3,
    "inner.step": 0.5,
    "inner.start": "tiny",
}
NOTE7 = (
    "The thesis: XCiT-S12 and ResNet-50, both pretrained within 8/255 on ImageNet. Here, if small, "
    "robvit-mini-robust stands for the XCiT, drawn forms for Caltech-101 (classes that differ much), drawn "
    "flowers for Oxford Flowers (classes that differ little), and nothing for the ResNet. Standard and "
    "random starts are controls of ours."
)
NOTE8 = (
    "The thesis: TRADES-10, 20 epochs from a network pretrained within 8/255 on ImageNet, or 300 from the "
    "start. Here, if small, TRADES-3 and as many epochs for all; robvit-mini-robust, which has seen all of "
    "CIFAR-10, stands for the pretrained network, so its lead is no proof of transfer; the whole sample "
    "stands for synthetic images, so those are real."
)


@study("xcit-table7", paper=PAPER, title="Table 7: robust fine-tuning on other data")
def other_data(
    request: Request,
    *,
    sets: Sequence[str] = tuple(SETS),
    scale: str = "small",
    learn: int = 0,
    epochs: float = 0,
    steps: int = 0,
    training: str = "",
) -> Record:
    """Fine-tuned with and without attacks, from robust, standard and random weights, on two data sets."""
    effort = Effort(scale, learn, epochs, steps, training, usual=(300, 3))
    for name in sets:
        if name not in SETS:
            raise unknown("data set of Table 7", name, list(SETS))
    if request.data is not None and len(sets) != 1:
        raise InputError("--data holds one of the sets; say which, as in --set 'sets=[\"flowers\"]'")
    first, *others = (_on(request, effort, name) for name in sets)
    for other in others:  # trials must be of the same images, so the record keeps the first set's
        first.tables += other.tables
        first.findings += other.findings
    first.notes.append(NOTE7)
    return first


def _on(request: Request, effort: Effort, name: str) -> Record:
    """One data set's part of Table 7."""
    starts = STARTS if effort.is_small else {"robust start": STARTS["robust start"]}
    variants = [
        Variant(
            f"{name}, {start}",
            CHECKPOINT,
            "xcit-finetune-hires",
            stand_in=stand_in,
            small={**TUNED, "pretrained": kept},
            on=name.split("-")[0].upper(),
            small_data=SETS[name],
        )
        for start, (stand_in, kept) in starts.items()
    ]
    found = judged(request, effort, variants, strongest="autoattack", with_standard=True)
    columns = [
        "fine-tuned",
        "standard: clean %",
        "clean %",
        "FGSM %",
        "AutoAttack %",
        "paper: standard, clean %",
        "paper: clean %",
        "AutoAttack %",
    ]
    which = list(SETS).index(name)
    paper = {
        net: [TABLE7["standard", net][which][0], *TABLE7["adversarial", net][which]]
        for net in ("XCiT-S12", "ResNet-50")
    }
    cells: list[list[Any]] = []
    for row in found.rows:
        theirs = paper["XCiT-S12"] if row is found.rows[0] else [None] * 3
        cells.append([row.variant.label, cell(row.standard), *map(cell, row.trials), *theirs])
    cells.append([f"{name}, the paper's ResNet-50", *[None] * 4, *paper["ResNet-50"]])
    ours, *controls = [row.variant.label for row in found.rows]
    claims = [Claim(f"{ours}, over {other}", ours, other, None) for other in controls]
    table = Table(f"Table 7: {name}", columns, cells)
    return found.record(table, claims, quoted=ours)


@study("xcit-table8", paper=PAPER, title="Table 8: CIFAR-10 by TRADES, with and without pre-training")
def cifar10(
    request: Request,
    *,
    scale: str = "small",
    learn: int = 0,
    epochs: float = 0,
    steps: int = 0,
    training: str = "",
    synthetic: str = "",
) -> Record:
    """From robust weights, from random ones with more images in half of every batch, and without them."""
    effort = Effort(scale, learn, epochs, steps, training, usual=(400, 3))
    pretrained, more, alone = TABLE8
    small = {**TUNED, **TRADES, "pretrained": False}
    afresh = {"pretrained": False, "epochs": 300}
    variants = [
        Variant(
            pretrained,
            CHECKPOINT,
            "xcit-finetune-cifar10",
            on="cifar10",
            stand_in="robvit-mini-robust",
            small={**small, "pretrained": True},
        ),
        Variant(
            more,
            "xcit-s12",
            "xcit-finetune-cifar10",
            {**afresh, "extra_share": 0.5},
            on="cifar10",
            stand_in="robvit-mini",
            small=small,
            extra=synthetic,
            small_extra=synthetic or "sample",
        ),
        Variant(
            alone,
            "xcit-s12",
            "xcit-finetune-cifar10",
            afresh,
            on="cifar10",
            stand_in="robvit-mini",
            small=small,
        ),
    ]
    if not effort.is_small and not synthetic:
        variants.pop(1)
    found = judged(request, effort, variants, strongest="autoattack")
    claims = [
        Claim("robust pre-training over none", pretrained, alone, 16.65),
        Claim("synthetic images over none", more, alone, 8.39),
    ]
    table = finals(found.rows, TABLE8, "Table 8: CIFAR-10")
    record = found.record(table, claims, quoted=pretrained)
    record.notes.append(NOTE8)
    return record
