"""A backbone with tokens, the variants of it that the tables judge, and how they fare."""

from __future__ import annotations

from dataclasses import dataclass, replace

from robvit.backbones.heads import LinearHead
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.tokens import RobustTokens
from robvit.progress import progress
from robvit.record import Trial
from robvit.studies.common import StudyContext
from robvit.studies.judging import CLEAN, Attempt, judge, judge_transfer, per_cent
from robvit.studies.rob.common import CONTROLS, TokenEffort, backbone, learn_tokens, open_tokens, random_like

BATCH = 16
VARIANTS = (*CONTROLS, "tokens", "tokens, head on hardened features")
INSIDER = "tokens, attacker knows them"


@dataclass(frozen=True)
class TokenVariants:
    """A backbone with its tokens, and two heads: on un-hardened and on hardened features, as the paper's."""

    model: Model
    tokens: RobustTokens
    head: LinearHead
    hardened_head: LinearHead
    judged: ImageDataset

    def variant(self, tokens: RobustTokens | None, head: LinearHead) -> Model:
        """The backbone with these tokens and this head."""
        return self.model.replace(tokens=tokens, head=head)

    def all(self) -> dict[str, Model]:
        """What is judged: the bare model, the control, and the hardened model with either head."""
        models = (
            self.variant(None, self.head),
            self.variant(random_like(self.tokens), self.head),
            self.variant(self.tokens, self.head),
            self.variant(self.tokens, self.hardened_head),
        )
        return dict(zip(VARIANTS, models, strict=True))


def prepare_variants(
    context: StudyContext, effort: TokenEffort, *, tokens: str, head: int, images: int
) -> TokenVariants:
    """Learn tokens, or open the given ones, and fit both heads on `head` images."""
    most = max(head, effort.learn)
    model, learn, judged = context.prepare(backbone(context), "sample", learn=most, judged=images)
    if tokens:
        values = open_tokens(tokens, model)
    else:
        dataset = learn.take(range(min(effort.learn, len(learn))))
        values = learn_tokens(context, model, dataset, effort.recipe(seed=context.seed)).tokens
    heads = []
    for name, network in (("un-hardened", model), ("hardened", model.replace(tokens=values))):
        with progress(f"a linear head on {name} features", total=len(learn)) as advance:
            fitted = LinearHead.fit(
                network, learn.batches(32), len(learn.classes), names=learn.classes, progress=advance
            )
        heads.append(fitted)
    return TokenVariants(model, values, heads[0], heads[1], judged)


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
    insider = models["tokens"]
    label = f"{attempt.attack}: insider"
    trials += judge_transfer(context, insider, {INSIDER: insider}, x, attempt, label=label, batch=BATCH)
    return _with_controls(trials)


def accuracies(trials: list[Trial], *, clean: bool) -> list[float]:
    """Accuracy of every variant, in per cent."""
    return [_accuracy(trials, scenario, clean) for scenario in VARIANTS]


def insider_note(trials: list[Trial]) -> str:
    """What an attacker who knows the tokens leaves."""
    return f"An attacker who knows the tokens leaves {_accuracy(trials, INSIDER, False):.1f} % accuracy."


def _accuracy(trials: list[Trial], scenario: str, clean: bool) -> float:
    return per_cent(next(t for t in trials if t.scenario == scenario and (t.attack == "clean") == clean))


def _with_controls(trials: list[Trial]) -> list[Trial]:
    return [replace(trial, control=trial.scenario in CONTROLS) for trial in trials]
