"""Tables 1 to 6 of the XCiT thesis: architecture, eps warm-up, augmentation, weight decay, all, size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from robvit.backbones.model import Model
from robvit.record import Record, Table
from robvit.studies.common import StudyContext, study
from robvit.studies.published import PublishedTable
from robvit.studies.xcit.common import (
    PAPER,
    PUBLISHED,
    Contrast,
    ablation_table,
    accuracy_curve,
    accuracy_table,
    contrast,
    judge_variants,
)
from robvit.studies.xcit.variants import IMAGENET, RecipeEffort, Variant

STRENGTH = {"mixup": 0.8, "cutmix": 1.0, "randaugment": 2, "erase": 0.25}  # DeiT's
ALL, BASIC = "all of DeiT's", "basic only"
# Which of DeiT's augmentations a row of Table 3 has, besides flips, crops and colour jitter.
POLICIES: dict[str, tuple[str, ...]] = {
    ALL: tuple(STRENGTH),
    BASIC: (),
    "erase": ("erase",),
    "mixup": ("mixup",),
    "mixup and erase": ("mixup", "erase"),
    "mixup and cutmix": ("mixup", "cutmix"),
    "randaugment": ("randaugment",),
    "randaugment and erase": ("randaugment", "erase"),
}
DEIT, CAIT, XCIT = "deit_small_patch16_224", "cait-s12", "xcit-s12"
STAND_INS = {DEIT: "tiny-deit", CAIT: "tiny-cait", XCIT: "tiny-xcit-s"}
EFFORT = RecipeEffort()


def changes(policy: str, weight_decay: float, eps_warmup: float) -> dict[str, Any]:
    """What the thesis varies in a recipe, in full."""
    on = POLICIES[policy]
    augment: dict[str, Any] = {
        f"augment.{name}": strength if name in on else 0 for name, strength in STRENGTH.items()
    }
    augment |= {"augment.policy": "deit"} if "randaugment" in on else {}
    return {"eps_warmup": eps_warmup, "weight_decay": weight_decay, **augment}


@study(
    "xcit-table1",
    paper=PAPER,
    title="Table 1: architectures under adversarial training, ImageNet-100",
    effort=EFFORT,
)
def architectures(context: StudyContext, effort: RecipeEffort) -> Record:
    """DeiT, CaiT and XCiT of one size by DeiT's own setup, with and without attacks."""
    published = PUBLISHED["table1"]
    deit, cait, xcit = published.rows
    variants = [
        Variant(name, model, changes={**changes(ALL, 0.05, 0), "repeats": 3}, stand_in=STAND_INS[model])
        for name, model in zip(published.rows, (DEIT, CAIT, XCIT), strict=True)
    ]
    return _ablation(
        context,
        effort,
        variants,
        published,
        "Table 1: architectures",
        [
            contrast("class attention helps: CaiT over DeiT", cait, deit, published),
            contrast("cross-covariance attention helps: XCiT over CaiT", xcit, cait, published),
            contrast("cross-covariance attention helps: XCiT over DeiT", xcit, deit, published),
        ],
        note="The thesis repeats augmentations here, three epochs' worth in each; a small run does not.",
    )


@study(
    "xcit-table2",
    paper=PAPER,
    title="Table 2: epochs over which eps warms up, XCiT-N12, ImageNet-100",
    effort=EFFORT,
)
def warmups(
    context: StudyContext, effort: RecipeEffort, *, periods: Sequence[int] = (0, 5, 10, 20, 30)
) -> Record:
    """DeiT's setup with eps rising over some of the 100 epochs, or their share of fewer."""
    published, longest = PUBLISHED["table2"], f"{max(periods)} epochs"
    variants = [Variant(f"{n} epochs", changes=changes(ALL, 0.05, n)) for n in periods]
    return _ablation(
        context,
        effort,
        variants,
        published,
        "Table 2: eps warm-up",
        [contrast(f"{longest} of warm-up over none", longest, "0 epochs", published)],
        note="Epochs are those of the thesis's 100.",
        quoted=longest,
        over=("epochs of warm-up", {f"{n} epochs": float(n) for n in periods}),
        with_standard=False,
    )


@study("xcit-table3", paper=PAPER, title="Table 3: data augmentation, XCiT-N12, ImageNet-100", effort=EFFORT)
def augmentations(context: StudyContext, effort: RecipeEffort, *, warmup: int = 20) -> Record:
    """The eight policies that the thesis prints, with and without attacks; all have flips and crops.

    With a `warmup` of 10 basic augmentation and all of DeiT's are networks of Table 5.
    """
    published = PUBLISHED["table3"]
    variants = [Variant(policy, changes=changes(policy, 0.05, warmup)) for policy in published.rows]
    contrasts = [contrast("basic augmentation over all of DeiT's", BASIC, ALL, published)]
    return _ablation(context, effort, variants, published, "Table 3: augmentation", contrasts, quoted=BASIC)


@study("xcit-table4", paper=PAPER, title="Table 4: weight decay, XCiT-N12, ImageNet-100", effort=EFFORT)
def weight_decays(
    context: StudyContext,
    effort: RecipeEffort,
    *,
    values: Sequence[float] = (0.0, 0.001, 0.01, 0.05, 0.1, 0.5, 1.0),
    warmup: int = 20,
) -> Record:
    """Basic augmentation and warm-up with several weight decays, with and without attacks.

    With a `warmup` of 10 those of 0.05 and 0.5 are networks of Table 5.
    """
    published = PUBLISHED["table4"]
    variants = [Variant(f"{value:g}", changes=changes(BASIC, value, warmup)) for value in values]
    return _ablation(
        context,
        effort,
        variants,
        published,
        "Table 4: weight decay",
        [contrast("a weight decay of 0.5 over 0.05", "0.5", "0.05", published)],
        quoted="0.5",
        over=("weight decay", {f"{value:g}": value for value in values}),
    )


@study(
    "xcit-table5",
    paper=PAPER,
    title="Table 5: from DeiT's setup to the light recipe, ImageNet",
    effort=EFFORT,
)
def steps_of_the_recipe(context: StudyContext, effort: RecipeEffort) -> Record:
    """One change after the other, each kept; judged by AutoAttack."""
    published = PUBLISHED["table5"]
    chain = (
        (DEIT, changes(ALL, 0.05, 0)),
        (XCIT, changes(ALL, 0.05, 0)),
        (XCIT, changes(ALL, 0.05, 10)),
        (XCIT, changes(BASIC, 0.05, 10)),
        (XCIT, changes(BASIC, 0.5, 10)),
    )
    variants = [
        Variant(name, model, changes=changed, stand_in=STAND_INS[model], on=IMAGENET)
        for name, (model, changed) in zip(published.rows, chain, strict=True)
    ]
    judged = judge_variants(context, effort, variants, strongest="autoattack")
    contrasts = [contrast(after, after, before, published) for before, after in pairwise(published.rows)]
    first, *_, last = published.rows
    contrasts.append(contrast("all of it", last, first, published))
    return judged.record(accuracy_table(judged, published, "Table 5: step by step"), contrasts)


@study(
    "xcit-table6", paper=PAPER, title="Table 6: the light recipe for larger networks, ImageNet", effort=EFFORT
)
def sizes(context: StudyContext, effort: RecipeEffort) -> Record:
    """XCiT of three widths by the whole recipe, with what they cost; the paper's ResNets for comparison."""
    published = PUBLISHED["table6"]
    stand_ins = {"XCiT-S12": "tiny-xcit-s", "XCiT-M12": "tiny-xcit-m", "XCiT-L12": "tiny-xcit-l"}
    variants = [
        Variant(name, name.lower(), changes=changes(BASIC, 0.5, 10), stand_in=stand_in, on=IMAGENET)
        for name, stand_in in stand_ins.items()
    ]
    judged = judge_variants(context, effort, variants, strongest="autoattack")
    ours = {row.label: [*cost(row.first.model), *row.cells()] for row in judged.rows}
    theirs = ["paper: width", "M weights", "GFLOPs", "clean %", "AutoAttack %"]
    columns = ["", "width", "M weights", "MFLOPs", *judged.columns, *theirs]
    cells = [[name, *ours.get(name, [None] * 6), *row] for name, row in published.rows.items()]
    small, medium, large = stand_ins
    contrasts = [
        contrast("XCiT-M12 over XCiT-S12", medium, small, published),
        contrast("XCiT-L12 over XCiT-M12: it loses", large, medium, published),
    ]
    note = "The thesis prints a width of 324 for XCiT-S12; it is 384."
    return judged.record(Table("Table 6: size", columns, cells, note), contrasts)


def _ablation(
    context: StudyContext,
    effort: RecipeEffort,
    variants: Sequence[Variant],
    published: PublishedTable,
    title: str,
    contrasts: Sequence[Contrast],
    *,
    note: str = "",
    quoted: str = "",
    over: tuple[str, Mapping[str, float]] | None = None,
    with_standard: bool = True,
) -> Record:
    """A table whose rows differ in one choice; `over` names an axis and each row's place on it."""
    judged = judge_variants(context, effort, variants, with_standard=with_standard)
    record = judged.record(ablation_table(judged, published, title, note), contrasts, quoted=quoted)
    if over is not None:
        record.curves = [accuracy_curve(title, *over, judged)]
    return record


def cost(model: Model) -> tuple[int, float, float]:
    """Width, millions of weights, and millions of operations an image."""
    with FlopCounterMode(display=False) as counted:
        model(torch.zeros(1, 3, *model.input_size))
    net: Any = model.net
    weights = sum(p.numel() for p in model.parameters())
    return int(net.embed_dim), weights / 1e6, counted.get_total_flops() / 1e6
