"""Tables 1, 2 and 4 of Robustness Tokens, each with its controls and with heads on both kinds of features.

`--model` takes any of the eight backbones of Tables 1 and 2; each has the paper's two rows beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from robvit.record import Record, Table, Trial
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, mean, study, told
from robvit.studies.judging import Attempt
from robvit.studies.rob.common import PAPER, PUBLISHED, Pairs, attack_features, cosines, open_tokens
from robvit.studies.rob.effort import SMALL, TokenEffort
from robvit.studies.rob.segmentation import Scenes, segmentation
from robvit.studies.rob.variants import (
    VARIANTS,
    HeadSource,
    TokenVariants,
    accuracies,
    accuracy,
    insider_note,
    judge_attacked,
    judge_clean,
    other_claim,
    prepare_variants,
    token_claims,
)

COLUMNS = ["", *VARIANTS, "paper, regular", "paper, tokens"]
EFFORT = TokenEffort()


@study("rob-table1", paper=PAPER, title="Table 1: what tokens cost on clean images", effort=EFFORT)
def table1(
    context: StudyContext,
    effort: TokenEffort,
    *,
    tokens: str = "",
    head: int = 0,
    public_head: str = "",
    hardened_head: str = "",
    segmentation_data: str = "shapes",
    scenes: int = 64,
    segmented: int = 0,
) -> Record:
    """Clean accuracy of a linear head and clean mIoU of a linear segmentation head."""
    views = Scenes(segmentation_data, scenes, told(segmented or context.images or 32))
    heads = HeadSource(head, public_head, hardened_head)
    variants = prepare_variants(context, effort, heads, tokens=tokens, images=64)
    trials = judge_clean(context, variants)
    masks = segmentation(variants.model, variants.tokens, views, None)
    paper = PUBLISHED["table1"].row(variants.model.name)
    rows: list[list[Any]] = [
        ["accuracy, %", *accuracies(trials, clean=True), *paper[:2]],
        ["mIoU, %", *(100 * v for v in masks.clean.values()), *paper[2:]],
    ]
    where = f"ours: {variants.judged.spec} and {segmentation_data}; the paper: ImageNet and ADE20K"
    table = Table("Table 1: clean accuracy and clean mIoU", COLUMNS, rows, f"{where}. {effort}")
    gain = PUBLISHED["table1"].step(variants.model.name, "accuracy", "accuracy, tokens")
    claims = [*token_claims(trials, "clean", gain, clean=True), masks.claim("clean")]
    return context.record(
        variants.model, variants.judged, trials=trials, tables=[table, claims_table(claims)], claims=claims
    )


@study(
    "rob-table2",
    paper=PAPER,
    title="Table 2: features, classification and segmentation under attack",
    effort=EFFORT,
)
def table2(
    context: StudyContext,
    effort: TokenEffort,
    *,
    tokens: str = "",
    head: int = 0,
    public_head: str = "",
    hardened_head: str = "",
    attack_steps: int = 30,
    segmentation_data: str = "shapes",
    scenes: int = 64,
    segmented: int = 0,
    published: str = "",
    deep: str = "",
) -> Record:
    """Attacked on the token-free model by PGD in each of the three tasks; judged with all controls.

    `published` and `deep` are files of other tokens, which are judged on the same attacked images.
    """
    views = Scenes(segmentation_data, scenes, told(segmented or context.images or 32))
    heads = HeadSource(head, public_head, hardened_head)
    variants = prepare_variants(context, effort, heads, tokens=tokens, images=48)
    given = {"published tokens": published, "deep tokens": deep}
    others = {name: open_tokens(path, variants.model) for name, path in given.items() if path}
    variants = replace(variants, others=others)
    attempt = effort.class_attack(attack_steps, context.seed)
    trials = judge_attacked(context, variants, attempt)
    attack = effort.feature_attack(attack_steps)
    pairs = attack_features(variants.model, variants.judged, attack, "attacking features without tokens")
    judged = list(variants.all().values())[:3]
    features = [cosines(variants.model, model, pairs, effort.axis) for model in judged]
    on_masks = effort.mask_attack(attack_steps)
    masks = segmentation(variants.model, variants.tokens, views, on_masks, per_image=effort.published)
    paper = PUBLISHED["table2"].row(variants.model.name)
    miou = [100 * value for value in masks.attacked.values()]
    original, own = ([mean(c[kind]) for c in features] for kind in ("original", "own"))
    rows: list[list[Any]] = [
        ["cosine with the original features", *original, *(None,) * 4],
        ["cosine with its own features", *own, None, None, *paper[:2]],
        [f"accuracy under {attempt.title}, %", *accuracies(trials, clean=False), *paper[2:4]],
        [f"mIoU under {on_masks.title}, %", *miou, *paper[4:]],
    ]
    note = (
        f"Attacked without tokens within {effort.threat} in {attack_steps} steps; the paper's 8/255 is in "
        "normalised space, about 1.8/255 in pixels, in 30 steps, on ImageNet and ADE20K. "
        f"Ours: {variants.judged.spec}, {segmentation_data}. {effort}"
    )
    gain = PUBLISHED["table2"].step(variants.model.name, "accuracy", "accuracy, tokens")
    claims = [*token_claims(trials, attempt.title, gain), masks.claim("attacked")]
    claims += [other_claim(trials, name, attempt.title) for name in others]
    record = context.record(variants.model, variants.judged, trials=trials, claims=claims)
    title = "Table 2: attacked on the token-free model"
    record.tables = [Table(title, COLUMNS, rows, note), claims_table(claims)]
    if others:
        record.tables.append(_other_tokens(variants, trials, pairs, effort.axis))
    record.notes = [insider_note(trials)]
    return record


def _other_tokens(variants: TokenVariants, trials: list[Trial], pairs: Pairs, axis: int) -> Table:
    """Other token files on the images that were attacked without tokens, in features and in classes."""
    rows: list[list[Any]] = []
    for name, tokens in variants.others.items():
        found = cosines(variants.model, variants.model.replace(tokens=tokens), pairs, axis)
        shares = [accuracy(trials, name, clean) for clean in (True, False)]
        rows.append([name, mean(found["original"]), mean(found["own"]), *shares])
    columns = ["", "cosine with the original features", "with its own", "clean accuracy, %", "attacked, %"]
    note = "The published tokens were learned at 224x224, with the positions of the published code."
    return Table("Table 2, other tokens on the same attacked images", columns, rows, note)


@study("rob-table4", paper=PAPER, title="Table 4: AutoAttack crafted on the token-free model", effort=EFFORT)
def table4(
    context: StudyContext,
    effort: TokenEffort,
    *,
    tokens: str = "",
    head: int = 0,
    public_head: str = "",
    hardened_head: str = "",
    attack_steps: int = 0,
    targets: int = 0,
    queries: int = 0,
) -> Record:
    """Every attack runs to its full objective; the hardened model decides. Numbers of 0 are the scale's."""
    heads = HeadSource(head, public_head, hardened_head)
    variants = prepare_variants(context, effort, heads, tokens=tokens, images=16)
    usual = (20, 3, 100) if effort.scale == SMALL else (100, 9, 5000)
    given = zip(("steps", "targets", "queries"), (attack_steps, targets, queries), usual, strict=True)
    settings = {name: value or scale for name, value, scale in given}
    attempt = Attempt("autoattack", effort.pixel_threat, settings)
    trials = judge_attacked(context, variants, attempt)
    paper = PUBLISHED["table4"].row(variants.model.name)
    rows: list[list[Any]] = [[f"accuracy under {attempt.title}, %", *accuracies(trials, clean=False), *paper]]
    note = (
        f"Within {effort.pixel_threat} in pixels. The paper's is the standard AutoAttack (100 steps, 9 "
        f"targets, 5000 queries) within 8/255 of normalised inputs. {effort}"
    )
    gain = PUBLISHED["table4"].step(variants.model.name, "accuracy", "accuracy, tokens")
    claims = token_claims(trials, attempt.title, gain)
    record = context.record(variants.model, variants.judged, trials=trials, claims=claims)
    record.tables = [Table("Table 4: AutoAttack, transferred", COLUMNS, rows, note), claims_table(claims)]
    record.notes = [insider_note(trials)]
    return record
