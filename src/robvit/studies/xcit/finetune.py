"""Tables 7 and 8 of the XCiT thesis: fine-tuning a robust network on other data, and on CIFAR-10.

At the small scale the bundled robvit-mini-robust stands for the XCiT-S12 that was robustly pretrained on
ImageNet. The thesis compares it with a robust ResNet-50, which is not bundled; what stands beside ours is
robvit-mini, pretrained without attacks, and the same network from random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from robvit.errors import InputError
from robvit.record import Record, Table
from robvit.registry import unknown
from robvit.studies.common import StudyContext, study
from robvit.studies.xcit.common import (
    PAPER,
    PUBLISHED,
    Contrast,
    accuracy_table,
    contrast,
    judge_variants,
)
from robvit.studies.xcit.variants import CHECKPOINT, RecipeEffort, Variant

EFFORT = RecipeEffort()
# The start, the network that stands for it, and whether its weights are kept.
STARTS = {
    "robust start": ("robvit-mini-robust", True),
    "standard start": ("robvit-mini", True),
    "random start": ("robvit-mini", False),
}
PETS = "pets"  # 37 breeds, real photographs, which the caller has; the thesis has no such row
SETS = {"caltech-101": "forms", "flowers": "petals", PETS: PETS}
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
    "inner.project": True,
}
NOTE7 = (
    "The thesis: XCiT-S12 and ResNet-50, both pretrained within 8/255 on ImageNet. Here, if small, "
    "robvit-mini-robust stands for the XCiT, drawn forms for Caltech-101 (classes that differ much), drawn "
    "flowers for Oxford Flowers (classes that differ little), and nothing for the ResNet. Standard and "
    "random starts are controls of ours."
)
NOTE8 = (
    "The thesis: TRADES-10, 20 epochs from a network pretrained within 8/255 on ImageNet, or 300 from the "
    "start. Here, if small, TRADES-3 and as many steps for all, so that the row with more images sees "
    "each real one half as often; robvit-mini-robust, which has seen all of CIFAR-10, stands for the "
    "pretrained network, so its lead is no proof of transfer. What `synthetic` names stands for synthetic "
    "images, or the whole sample, which is real."
)


@study("xcit-table7", paper=PAPER, title="Table 7: robust fine-tuning on other data", effort=EFFORT)
def other_data(
    context: StudyContext, effort: RecipeEffort, *, sets: Sequence[str] = ("caltech-101", "flowers")
) -> Record:
    """Fine-tuned with and without attacks, from robust, standard and random weights, on each dataset."""
    for name in sets:
        if name not in SETS:
            raise unknown("dataset of Table 7", name, list(SETS))
    if PETS in sets and context.data is None:
        raise InputError("pets are not part of robvit: give --data 'folder:PATH?test=0.25' of breeds")
    if context.data is not None and len(sets) != 1:
        raise InputError("--data holds one of the sets; say which, as in --set 'sets=[\"flowers\"]'")
    first, *others = (_table7(context, effort, name) for name in sets)
    for other in others:  # trials must be of the same images, so the record keeps the first set's
        first.tables += other.tables
        first.claims += other.claims
        first.findings += other.findings
    first.notes.append(NOTE7)
    return first


def _table7(context: StudyContext, effort: RecipeEffort, name: str) -> Record:
    """One dataset's part of Table 7."""
    starts = STARTS if effort.is_small else {"robust start": STARTS["robust start"]}
    variants = [
        Variant(
            f"{name}, {start}",
            CHECKPOINT,
            "xcit-finetune-hires",
            stand_in=stand_in,
            small={**TUNED, "pretrained": pretrained},
            small_effort=(300, 3),
            on=name.split("-")[0].upper(),
            small_data=SETS[name],
        )
        for start, (stand_in, pretrained) in starts.items()
    ]
    judged = judge_variants(context, effort, variants, strongest="autoattack", with_standard=True)
    published = PUBLISHED["table7"]
    theirs = ["paper: standard, clean %", "paper: clean %", "AutoAttack %"]
    columns = ["fine-tuned", "standard: clean %", *judged.columns, *theirs]
    cells: list[list[Any]] = []
    for row in judged.rows:
        paper = published.row(f"{name}, XCiT-S12" if row is judged.rows[0] else "")
        cells.append([row.label, row.standard_cell(), *row.cells(), *paper])
    if name != PETS:
        cells.append([f"{name}, the paper's ResNet-50", *[None] * 4, *published.row(f"{name}, ResNet-50")])
    ours, *controls = [row.label for row in judged.rows]
    contrasts = [Contrast(f"{ours}, over {other}", ours, other) for other in controls]
    return judged.record(Table(f"Table 7: {name}", columns, cells), contrasts, quoted=ours)


@study(
    "xcit-table8",
    paper=PAPER,
    title="Table 8: CIFAR-10 by TRADES, with and without pre-training",
    effort=EFFORT,
)
def cifar10(context: StudyContext, effort: RecipeEffort, *, synthetic: str = "") -> Record:
    """From robust weights, from random ones with more images in half of every batch, and without them."""
    published = PUBLISHED["table8"]
    pretrained, more, alone = published.rows
    afresh = {"pretrained": False, "epochs": 300}
    from_scratch = Variant(
        alone,
        "xcit-s12",
        "xcit-finetune-cifar10",
        afresh,
        on="cifar10",
        stand_in="robvit-mini",
        small={**TUNED, **TRADES, "pretrained": False},
        small_effort=(400, 3),
    )
    variants = [
        replace(
            from_scratch,
            label=pretrained,
            model=CHECKPOINT,
            changes={},
            stand_in="robvit-mini-robust",
            small={**from_scratch.small, "pretrained": True},
        ),
        replace(
            from_scratch,
            label=more,
            changes={**afresh, "extra_share": 0.5},
            extra=synthetic,
            small_extra=synthetic or "sample",
        ),
        from_scratch,
    ]
    if not effort.is_small and not synthetic:
        variants.pop(1)
    judged = judge_variants(context, effort, variants, strongest="autoattack")
    # The stand-in for the pretrained network has seen these very images, so its lead proves no transfer.
    seen = ", the start has seen CIFAR-10" if effort.is_small else ""
    contrasts = [
        contrast(f"robust pre-training over none{seen}", pretrained, alone, published),
        contrast("synthetic images over none", more, alone, published),
    ]
    table = accuracy_table(judged, published, "Table 8: CIFAR-10")
    record = judged.record(table, contrasts, quoted=pretrained)
    record.notes.append(NOTE8)
    return record
