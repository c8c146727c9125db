"""Tables 1 to 6 of the XCiT thesis: architecture, eps warm-up, augmentation, weight decay, all, size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from robvit.backbones.model import Model
from robvit.evaluation.metrics import interval
from robvit.evaluation.record import Curve, Record, Table
from robvit.studies.common import Request, study
from robvit.studies.tora.common import per_cent
from robvit.studies.xcit.common import Claim, Effort, Row, Variant, cell, finals, judged
from robvit.studies.xcit.paper import (
    PAPER,
    TABLE1,
    TABLE2,
    TABLE3,
    TABLE4,
    TABLE5,
    TABLE6,
    Ablated,
    Policy,
)

ALL, BASIC = Policy(True, True, True, True), Policy(False, False, False, False)
STRENGTH = {"mixup": 0.8, "cutmix": 1.0, "randaugment": 2, "erase": 0.25}  # DeiT's
DEIT, CAIT, XCIT = "deit_small_patch16_224", "cait-s12", "xcit-s12"
UNKNOWN = Ablated(None, None, None)  # a value that the thesis did not try
STAND_INS = {DEIT: "tiny-deit", CAIT: "tiny-cait", XCIT: "tiny-xcit-s"}


def augmented(policy: Policy) -> dict[str, Any]:
    """The keys of a recipe for an augmentation policy."""
    return {f"augment.{name}": STRENGTH[name] if on else 0 for name, on in policy._asdict().items()}


def recipe(policy: Policy, weight_decay: float, eps_warmup: float) -> dict[str, Any]:
    """What the thesis varies, in full."""
    return {"eps_warmup": eps_warmup, "weight_decay": weight_decay, **augmented(policy)}


def _ablation(rows: Sequence[Row], paper: Mapping[str, Ablated], title: str, note: str = "") -> Table:
    """Ours beside the paper's; the columns of standard training only where it was done."""
    calm = any(row.standard for row in rows)
    columns = [
        "",
        *(["standard: clean %"] if calm else []),
        "clean %",
        "FGSM %",
        "APGD-CE %",
        *(["paper: standard, clean %"] if calm else []),
        "paper: clean %",
        "APGD-CE %",
    ]
    cells = []
    for row in rows:
        theirs = paper.get(row.variant.label, UNKNOWN)
        ours = [cell(trial) for trial in row.trials]
        standard = ([cell(row.standard)], [theirs.standard]) if calm else ([], [])
        cells.append([row.variant.label, *standard[0], *ours, *standard[1], theirs.clean, theirs.robust])
    return Table(title, columns, cells, note)


@study("xcit-table1", paper=PAPER, title="Table 1: architectures under adversarial training, ImageNet-100")
def architectures(
    request: Request,
    *,
    scale: str = "small",
    learn: int = 0,
    epochs: float = 0,
    steps: int = 0,
    training: str = "",
) -> Record:
    """DeiT, CaiT and XCiT of one size by DeiT's own setup, with and without attacks."""
    effort = Effort(scale, learn, epochs, steps, training)
    networks = zip(TABLE1, (DEIT, CAIT, XCIT), strict=True)
    variants = [
        Variant(name, model, changes=recipe(ALL, 0.05, 0), stand_in=STAND_INS[model])
        for name, model in networks
    ]
    found = judged(request, effort, variants, with_standard=True)
    note = "The thesis repeats augmentations here, three epochs' worth in each; this loop does not."
    table = _ablation(found.rows, TABLE1, "Table 1: architectures", note)
    deit, cait, xcit = TABLE1
    claims = [
        Claim("class attention helps: CaiT over DeiT", cait, deit, 2.52),
        Claim("cross-covariance attention helps: XCiT over CaiT", xcit, cait, 18.96),
    ]
    return found.record(table, claims)


@study("xcit-table2", paper=PAPER, title="Table 2: epochs over which eps warms up, XCiT-N12, ImageNet-100")
def warmups(
    request: Request,
    *,
    periods: Sequence[int] = tuple(TABLE2),
    scale: str = "small",
    learn: int = 0,
    epochs: float = 0,
    steps: int = 0,
    training: str = "",
) -> Record:
    """DeiT's setup with eps rising over some of the 100 epochs, or their share of fewer."""
    effort = Effort(scale, learn, epochs, steps, training)
    variants = [Variant(f"{n} epochs", changes=recipe(ALL, 0.05, n)) for n in periods]
    found = judged(request, effort, variants)
    paper = {f"{n} epochs": figures for n, figures in TABLE2.items()}
    table = _ablation(found.rows, paper, "Table 2: eps warm-up", "Epochs are those of the thesis's 100.")
    claims = [Claim("20 epochs of warm-up over none", "20 epochs", "0 epochs", 4.40)]
    record = found.record(table, claims, quoted="20 epochs")
    record.curves = [_curve("Table 2: eps warm-up", "epochs of warm-up", periods, found.rows)]
    return record


@study("xcit-table3", paper=PAPER, title="Table 3: data augmentation, XCiT-N12, ImageNet-100")
def augmentations(
    request: Request,
    *,
    scale: str = "small",
    learn: int = 0,
    epochs: float = 0,
    steps: int = 0,
    training: str = "",
) -> Record:
    """The eight policies that the thesis prints, with and without attacks; all have flips and crops."""
    effort = Effort(scale, learn, epochs, steps, training)
    paper = {_policy_name(policy): figures for policy, figures in TABLE3.items()}
    variants = [Variant(_policy_name(p), changes=recipe(p, 0.05, 20)) for p in TABLE3]
    found = judged(request, effort, variants, with_standard=True)
    table = _ablation(found.rows, paper, "Table 3: augmentation")
    claims = [Claim("basic augmentation over all of DeiT's", _policy_name(BASIC), _policy_name(ALL), 3.84)]
    return found.record(table, claims, quoted=_policy_name(BASIC))


def _policy_name(policy: Policy) -> str:
    if policy in (ALL, BASIC):
        return "all of DeiT's" if policy == ALL else "basic only"
    return " and ".join(name for name, on in policy._asdict().items() if on)


@study("xcit-table4", paper=PAPER, title="Table 4: weight decay, XCiT-N12, ImageNet-100")
def weight_decays(
    request: Request,
    *,
    values: Sequence[float] = tuple(TABLE4),
    scale: str = "small",
    learn: int = 0,
    epochs: float = 0,
    steps: int = 0,
    training: str = "",
) -> Record:
    """Basic augmentation and warm-up with several weight decays, with and without attacks."""
    effort = Effort(scale, learn, epochs, steps, training)
    variants = [Variant(f"{value:g}", changes=recipe(BASIC, value, 20)) for value in values]
    found = judged(request, effort, variants, with_standard=True)
    paper = {f"{value:g}": figures for value, figures in TABLE4.items()}
    table = _ablation(found.rows, paper, "Table 4: weight decay")
    claims = [Claim("a weight decay of 0.5 over 0.05", "0.5", "0.05", 2.72)]
    record = found.record(table, claims, quoted="0.5")
    record.curves = [_curve("Table 4: weight decay", "weight decay", values, found.rows)]
    return record


@study("xcit-table5", paper=PAPER, title="Table 5: from DeiT's setup to the light recipe, ImageNet")
def steps_of_the_recipe(
    request: Request,
    *,
    scale: str = "small",
    learn: int = 0,
    epochs: float = 0,
    steps: int = 0,
    training: str = "",
) -> Record:
    """One change after the other, each kept; judged by AutoAttack."""
    effort = Effort(scale, learn, epochs, steps, training)
    chain = (
        (DEIT, recipe(ALL, 0.05, 0)),
        (XCIT, recipe(ALL, 0.05, 0)),
        (XCIT, recipe(ALL, 0.05, 10)),
        (XCIT, recipe(BASIC, 0.05, 10)),
        (XCIT, recipe(BASIC, 0.5, 10)),
    )
    variants = [
        Variant(name, model, changes=changes, stand_in=STAND_INS[model], on="IMAGENET")
        for name, (model, changes) in zip(TABLE5, chain, strict=True)
    ]
    found = judged(request, effort, variants, strongest="autoattack")
    table = finals(found.rows, TABLE5, "Table 5: step by step")
    claims = [
        Claim(after, after, before, round(TABLE5[after][1] - TABLE5[before][1], 2))
        for before, after in pairwise(TABLE5)
    ]
    first, *_, last = TABLE5
    claims.append(Claim("all of it", last, first, 9.08))
    return found.record(table, claims)


@study("xcit-table6", paper=PAPER, title="Table 6: the light recipe for larger networks, ImageNet")
def sizes(
    request: Request,
    *,
    scale: str = "small",
    learn: int = 0,
    epochs: float = 0,
    steps: int = 0,
    training: str = "",
) -> Record:
    """XCiT of three widths by the whole recipe, with what they cost; the paper's ResNets for comparison."""
    effort = Effort(scale, learn, epochs, steps, training)
    stand_ins = {"XCiT-S12": "tiny-xcit-s", "XCiT-M12": "tiny-xcit-m", "XCiT-L12": "tiny-xcit-l"}
    variants = [
        Variant(name, name.lower(), changes=recipe(BASIC, 0.5, 10), stand_in=stand_in, on="IMAGENET")
        for name, stand_in in stand_ins.items()
    ]
    found = judged(request, effort, variants, strongest="autoattack")
    ours = {row.variant.label: [*_cost(row.model), *map(cell, row.trials)] for row in found.rows}
    columns = [
        "",
        "width",
        "M weights",
        "MFLOPs",
        "clean %",
        "FGSM %",
        "AutoAttack %",
        "paper: width",
        "M weights",
        "GFLOPs",
        "clean %",
        "AutoAttack %",
    ]
    cells = [[name, *ours.get(name, [None] * 6), *theirs] for name, theirs in TABLE6.items()]
    small, medium, large = stand_ins
    claims = [
        Claim("XCiT-M12 over XCiT-S12", medium, small, 3.46),
        Claim("XCiT-L12 over XCiT-M12: it loses", large, medium, -1.46),
    ]
    note = "The thesis prints a width of 324 for XCiT-S12; it is 384."
    table = Table("Table 6: size", columns, cells, note)
    return found.record(table, claims)


def _cost(model: Model) -> tuple[int, float, float]:
    """Width, millions of weights, and millions of operations an image."""
    with FlopCounterMode(display=False) as counted:
        model(torch.zeros(1, 3, *model.input_size))
    net: Any = model.net
    weights = sum(p.numel() for p in model.parameters())
    return int(net.embed_dim), weights / 1e6, counted.get_total_flops() / 1e6


def _curve(title: str, axis: str, places: Sequence[float], rows: Sequence[Row]) -> Curve:
    """Clean and robust accuracy over what is varied, with intervals."""
    lines: dict[str, list[list[float]]] = {"clean": [], "APGD-CE": []}
    for at, row in zip(places, rows, strict=True):
        for name, trial in (("clean", row.trials[0]), ("APGD-CE", row.robust)):
            bounds = [100 * bound for bound in interval(sum(trial.correct), len(trial.correct))]
            lines[name].append([at, per_cent(trial), *bounds])
    return Curve(title, axis, "accuracy, %", lines)
