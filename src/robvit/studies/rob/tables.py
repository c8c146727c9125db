"""Tables 1, 2 and 4 of Robustness Tokens, each with its controls and with heads on both kinds of features.

`--model` takes any of the eight backbones of Tables 1 and 2; each has the paper's two rows beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robvit.evaluation.protocol import CONTROLS
from robvit.record import Record, Table
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, mean, study
from robvit.studies.judging import Attempt, rounding_notes
from robvit.studies.rob.common import PAPER, PUBLISHED, attack_features, cosine_claim, cosines
from robvit.studies.rob.effort import SMALL, TokenEffort
from robvit.studies.rob.segmentation import Scenes, segmentation
from robvit.studies.rob.variants import (
    VARIANTS,
    HeadSource,
    TokenFiles,
    accuracies,
    insider_note,
    judge_attacked,
    judge_clean,
    other_claims,
    other_tokens,
    prepare_variants,
    token_claims,
)
from robvit.verdict import Claim

FEATURES = (*CONTROLS, "tokens")
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
    published: str = "",
    deep: str = "",
) -> Record:
    """Clean accuracy of a linear head and clean mIoU of a linear segmentation head.

    `published` and `deep` are files of other tokens, which are judged on the same images.
    """
    views = Scenes(segmentation_data, scenes, segmented or context.images or 32).counted()
    heads, files = HeadSource(head, public_head, hardened_head), TokenFiles(tokens, published, deep)
    variants = prepare_variants(context, effort, heads, files, images=64)
    trials = judge_clean(context, variants)
    masks = segmentation(context, variants.model, variants.tokens, views, None)
    paper = PUBLISHED["table1"].row(variants.model.name)
    rows: list[list[Any]] = [
        ["accuracy, %", *accuracies(trials, clean=True), *paper[:2]],
        ["mIoU, %", *(100 * v for v in masks.clean.values()), *paper[2:]],
    ]
    where = f"ours: {variants.judged.spec} and {segmentation_data}; the paper: ImageNet and ADE20K"
    note = f"{where}. {effort.told(variants.tokens)}"
    table = Table("Table 1: clean accuracy and clean mIoU", COLUMNS, rows, note)
    gain = PUBLISHED["table1"].step(variants.model.name, "accuracy", "accuracy, tokens")
    claims = [*token_claims(trials, "clean", gain, clean=True), masks.claim("clean")]
    claims += other_claims(trials, variants, "clean", clean=True)
    record = context.record(variants.model, variants.judged, trials=trials, claims=claims)
    record.tables = [table, claims_table(claims), *other_tokens(1, variants, trials)]
    return record


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
    views = Scenes(segmentation_data, scenes, segmented or context.images or 32).counted()
    heads, files = HeadSource(head, public_head, hardened_head), TokenFiles(tokens, published, deep)
    variants = prepare_variants(context, effort, heads, files, images=48)
    attempt = effort.class_attack(attack_steps, context.seed)
    trials = judge_attacked(context, variants, attempt)
    attack = effort.feature_attack(attack_steps)
    pairs = attack_features(variants.model, variants.judged, attack, "attacking features without tokens")
    judged = {
        name: model for name, model in variants.all().items() if name in FEATURES or name in variants.others
    }
    features = {name: cosines(variants.model, model, pairs, effort.axis) for name, model in judged.items()}
    on_masks, whole = effort.mask_attack(attack_steps), effort.published
    masks = segmentation(context, variants.model, variants.tokens, views, on_masks, per_image=whole)
    means = {
        f"cosine with {whose} features": {name: mean(found[kind]) for name, found in features.items()}
        for kind, whose in (("original", "the original"), ("own", "its own"))
    }
    original, own = ([text, *(found[name] for name in FEATURES)] for text, found in means.items())
    paper = PUBLISHED["table2"].row(variants.model.name)
    miou = [100 * value for value in masks.attacked.values()]
    rows: list[list[Any]] = [
        [*original, *(None,) * 4],
        [*own, None, None, *paper[:2]],
        [f"accuracy under {attempt.title}, %", *accuracies(trials, clean=False), *paper[2:4]],
        [f"mIoU under {on_masks.title}, %", *miou, *paper[4:]],
    ]
    note = (
        f"Attacked without tokens within {effort.threat} in {attack_steps} steps; the paper's 8/255 is in "
        "normalised space, about 1.8/255 in pixels, in 30 steps, on ImageNet and ADE20K. "
        f"Ours: {variants.judged.spec}, {segmentation_data}. {effort.told(variants.tokens)}"
    )
    gain = PUBLISHED["table2"].step(variants.model.name, "accuracy", "accuracy, tokens")
    claims = [*token_claims(trials, attempt.title, gain), masks.claim("attacked")]
    claims += [
        *_feature_claims(features, variants.model.name),
        *other_claims(trials, variants, attempt.title),
    ]
    record = context.record(variants.model, variants.judged, trials=trials, claims=claims)
    title = "Table 2: attacked on the token-free model"
    record.tables = [Table(title, COLUMNS, rows, note), claims_table(claims)]
    record.tables += other_tokens(2, variants, trials, means)
    record.notes = [insider_note(trials), *rounding_notes(attempt.threat)]
    return record


def _feature_claims(features: Mapping[str, Mapping[str, list[float]]], backbone: str) -> list[Claim]:
    """That tokens keep attacked features near clean ones: the original's, and their own as in the paper."""
    bare, control, hardened, *others = features
    kept, own = ({name: found[kind] for name, found in features.items()} for kind in ("original", "own"))
    paper = PUBLISHED["table2"].step(backbone, "cosine", "cosine, tokens")
    return [
        *(
            cosine_claim(f"{name} over {other}, with the original features", kept[name], kept[other])
            for name, other in ((hardened, bare), (hardened, control), *((name, bare) for name in others))
        ),
        cosine_claim(f"{hardened} over {bare}, each with its own features", own[hardened], own[bare], paper),
    ]


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
    published: str = "",
    deep: str = "",
) -> Record:
    """Every attack runs to its full objective; the hardened model decides. Numbers of 0 are the scale's.

    `published` and `deep` are files of other tokens, which are judged on the same attacked images.
    """
    heads, files = HeadSource(head, public_head, hardened_head), TokenFiles(tokens, published, deep)
    variants = prepare_variants(context, effort, heads, files, images=16)
    usual = (20, 3, 100) if effort.scale == SMALL else (100, 9, 5000)
    given = zip(("steps", "targets", "queries"), (attack_steps, targets, queries), usual, strict=True)
    settings = {name: value or scale for name, value, scale in given}
    attempt = Attempt("autoattack", effort.pixel_threat, settings)
    trials = judge_attacked(context, variants, attempt)
    paper = PUBLISHED["table4"].row(variants.model.name)
    rows: list[list[Any]] = [[f"accuracy under {attempt.title}, %", *accuracies(trials, clean=False), *paper]]
    note = (
        f"Within {effort.pixel_threat} in pixels. The paper's is the standard AutoAttack (100 steps, 9 "
        f"targets, 5000 queries) within 8/255 of normalised inputs, about 1.8/255 in pixels. "
        f"{effort.told(variants.tokens)}"
    )
    gain = PUBLISHED["table4"].step(variants.model.name, "accuracy", "accuracy, tokens")
    claims = [*token_claims(trials, attempt.title, gain), *other_claims(trials, variants, attempt.title)]
    record = context.record(variants.model, variants.judged, trials=trials, claims=claims)
    record.tables = [Table("Table 4: AutoAttack, transferred", COLUMNS, rows, note), claims_table(claims)]
    record.tables += other_tokens(4, variants, trials)
    record.notes = [insider_note(trials), *rounding_notes(attempt.threat)]
    return record
