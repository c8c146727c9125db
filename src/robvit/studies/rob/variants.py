"""A backbone with tokens, the variants of it that the tables judge, and how they fare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from robvit.backbones.heads import LinearHead, load_head
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError
from robvit.evaluation.protocol import CONTROLS
from robvit.record import Table, Trial
from robvit.studies.common import StudyContext
from robvit.studies.judging import CLEAN, Attempt, judge, judge_transfer, per_cent
from robvit.studies.rob.common import (
    backbone,
    fit_head,
    images_for,
    open_tokens,
    random_like,
    tokens_for,
)
from robvit.studies.rob.effort import SMALL, TokenEffort, learned
from robvit.verdict import Claim, claim_of

BATCH = 16
FEW, ALL = 512, 10**6  # images that heads learn from at the small scale, and of a set of its own
# The published code puts the head that learned from hardened features on both models.
PUBLISHED_REGULAR = "no tokens, head on hardened features"
WITH_TOKENS = ("tokens", "tokens, head on hardened features")
VARIANTS = (*CONTROLS, *WITH_TOKENS, PUBLISHED_REGULAR)
INSIDER = "tokens, attacker knows them"


@dataclass(frozen=True)
class TokenVariants:
    """A backbone with its tokens, and two heads: on un-hardened and on hardened features, as the paper's."""

    model: Model
    tokens: RobustTokens
    head: LinearHead
    hardened_head: LinearHead
    judged: ImageDataset
    others: dict[str, RobustTokens] = field(default_factory=dict)  # judged on the same attacked images

    def variant(self, tokens: RobustTokens | None, head: LinearHead) -> Model:
        """The backbone with these tokens and this head."""
        return self.model.replace(tokens=tokens, head=head)

    def all(self) -> dict[str, Model]:
        """What is judged: the bare model, the control, the hardened model, with either head, and others."""
        models = (
            self.variant(None, self.head),
            self.variant(random_like(self.tokens), self.head),
            self.variant(self.tokens, self.head),
            self.variant(self.tokens, self.hardened_head),
            self.variant(None, self.hardened_head),
        )
        return dict(zip(VARIANTS, models, strict=True)) | {
            name: self.variant(tokens, self.head) for name, tokens in self.others.items()
        }


@dataclass(frozen=True)
class HeadSource:
    """Where both heads come from: files, or else so many images (0: as many as the scale takes)."""

    images: int = 0
    public: str = ""
    hardened: str = ""

    def count(self, effort: TokenEffort) -> int:
        """How many images heads learn from; at the larger scales all there are, or those of the tokens."""
        if self.images or effort.scale == SMALL:
            return self.images or FEW
        return ALL if effort.learn_data else effort.learn


@dataclass(frozen=True)
class TokenFiles:
    """Files of tokens: those that a study is about, which are learned without one, and others beside them."""

    own: str = ""
    published: str = ""
    deep: str = ""

    def others(self, model: Model) -> dict[str, RobustTokens]:
        """The others by name, as far as they are given."""
        given = {"published tokens": self.published, "deep tokens": self.deep}
        return {name: open_tokens(path, model) for name, path in given.items() if path}


@dataclass(frozen=True)
class TokenBench:
    """A backbone with a head on its un-hardened features, images to learn from, and others that judge."""

    model: Model
    head: LinearHead
    learn: ImageDataset
    judged: ImageDataset

    def variant(self, tokens: RobustTokens | None) -> Model:
        """The backbone with these tokens and the head."""
        return self.model.replace(tokens=tokens, head=self.head)


def token_bench(context: StudyContext, effort: TokenEffort, heads: HeadSource, images: int) -> TokenBench:
    """The given backbone with its public head, which is fitted or opened."""
    model = backbone(context, effort)
    most = max(heads.count(effort), effort.learn)
    learn, judged = images_for(context, effort, model, learn=most, judged=context.count(images))
    mine = learn.take(range(min(heads.count(effort), len(learn))))
    return TokenBench(model, _head(context, model, mine, heads.public, "head"), learn, judged)


def prepare_variants(
    context: StudyContext, effort: TokenEffort, heads: HeadSource, tokens: TokenFiles, *, images: int
) -> TokenVariants:
    """Learn tokens, or open the given ones, and fit both heads or open them; they are kept beside."""
    at = token_bench(context, effort, heads, images)
    others = tokens.others(at.model)  # a file that cannot be opened is told before anything is learned
    values = tokens_for(context, effort, at.model, at.learn, tokens.own)
    mine = at.learn.take(range(min(heads.count(effort), len(at.learn))))
    hardened = _head(context, at.model.replace(tokens=values), mine, heads.hardened, "hardened-head")
    return TokenVariants(at.model, values, at.head, hardened, at.judged, others)


def _head(context: StudyContext, model: Model, images: ImageDataset, path: str, name: str) -> LinearHead:
    """A linear head from its file, or learned and kept in the study's folder under this name."""
    if path:
        opened = load_head(path)
        if not isinstance(opened, LinearHead):
            raise InputError(f"{path} must hold a linear head, got {type(opened).__name__}")
        opened.check(model)
        return opened
    return fit_head(context, LinearHead, model, images, name, batch=32)


def judge_clean(context: StudyContext, variants: TokenVariants) -> list[Trial]:
    """Every variant on untouched images."""
    trials: list[Trial] = []
    for scenario, model in variants.all().items():
        trials += judge(context, model, variants.judged, [CLEAN], scenario=scenario, batch=BATCH)
    return _with_controls(trials)


def judge_attacked(context: StudyContext, variants: TokenVariants, attempt: Attempt) -> list[Trial]:
    """Every variant clean and attacked without tokens; and the hardened one by an attacker who knows them.

    As in the published code, the attacker's head is the judged model's.
    """
    models, x = variants.all(), variants.judged
    trials: list[Trial] = []
    for name, head in (("public", variants.head), ("public, hardened head", variants.hardened_head)):
        judged = {scenario: model for scenario, model in models.items() if model.head is head}
        surrogate = variants.variant(None, head)
        label = f"{attempt.attack}: {name}"
        trials += judge_transfer(context, surrogate, judged, x, attempt, label=label, batch=BATCH)
    # This attacker has the very model, so each image is attacked until it falls and no further.
    trials += judge(context, models["tokens"], x, [CLEAN, attempt], scenario=INSIDER, batch=BATCH)
    return _with_controls(trials)


def accuracies(trials: list[Trial], *, clean: bool) -> list[float]:
    """Accuracy of every variant, in per cent."""
    return [accuracy(trials, scenario, clean) for scenario in VARIANTS]


def token_claims(trials: list[Trial], what: str, paper: float | None, clean: bool = False) -> list[Claim]:
    """That the hardened model is ahead of the bare one and of the control, image by image."""
    bare, control, hardened = (_trial(trials, name, clean).correct for name in (*CONTROLS, "tokens"))
    return [
        claim_of(f"tokens over no tokens, {what}", hardened, bare, paper),
        claim_of(f"tokens over random tokens, {what}", hardened, control),
    ]


def other_claims(
    trials: list[Trial], variants: TokenVariants, what: str, *, clean: bool = False
) -> list[Claim]:
    """That the model with other tokens is ahead of the bare one."""
    bare = _trial(trials, CONTROLS[0], clean).correct
    return [
        claim_of(f"{name} over no tokens, {what}", _trial(trials, name, clean).correct, bare)
        for name in variants.others
    ]


def other_tokens(
    number: int,
    variants: TokenVariants,
    trials: list[Trial],
    beside: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> list[Table]:
    """A table of other tokens on the same images, if there are any.

    `beside` are further columns, each with the value of every variant.
    """
    if not variants.others:
        return []
    columns = {title: [values[name] for name in variants.others] for title, values in beside.items()}
    for kind, title in (("clean", "clean accuracy, %"), ("attack", "attacked, %")):
        found = [t for name in variants.others for t in trials if (t.scenario, t.kind) == (name, kind)]
        columns |= {title: [per_cent(trial) for trial in found]} if found else {}
    rows: list[list[Any]] = [list(row) for row in zip(variants.others, *columns.values(), strict=True)]
    note = "; ".join(f"{name}: {learned(tokens)}" for name, tokens in variants.others.items())
    return [Table(f"Table {number}, other tokens on the same images", ["", *columns], rows, f"{note}.")]


def insider_note(trials: list[Trial]) -> str:
    """What an attacker who knows the tokens leaves."""
    return f"An attacker who knows the tokens leaves {accuracy(trials, INSIDER, False):.1f} % accuracy."


def accuracy(trials: list[Trial], scenario: str, clean: bool) -> float:
    """Accuracy of one variant, in per cent."""
    return per_cent(_trial(trials, scenario, clean))


def _trial(trials: list[Trial], scenario: str, clean: bool) -> Trial:
    return next(t for t in trials if t.scenario == scenario and (t.kind == "clean") == clean)


def _with_controls(trials: list[Trial]) -> list[Trial]:
    """Only what has the judged tokens counts; the rest stands beside it."""
    return [replace(trial, control=trial.scenario not in (*WITH_TOKENS, INSIDER)) for trial in trials]
