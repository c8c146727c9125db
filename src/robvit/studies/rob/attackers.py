"""Beyond the paper: how far an attacker's own tokens carry by their effort, and pools of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.defenses.pool import TokenPool
from robvit.defenses.token_training import train_pool
from robvit.defenses.tokens import RobustTokens
from robvit.errors import InputError
from robvit.evaluation.token_surrogates import FIRST_SEED, LogitEnsemble
from robvit.progress import progress
from robvit.record import Curve, Record, Table, Trial
from robvit.statistics import mean_interval
from robvit.studies.claims import claims_table
from robvit.studies.common import StudyContext, study
from robvit.studies.judging import Attempt, judge_transfer, per_cent, point, with_interval
from robvit.studies.rob.common import PAPER, learn_tokens, tokens_for
from robvit.studies.rob.effort import TokenEffort
from robvit.studies.rob.variants import BATCH, HeadSource, TokenBench, token_bench
from robvit.verdict import Claim, Verdict, claim_of, claim_of_means

EFFORT = TokenEffort()
BARE, HARDENED = "no tokens, attacker has none", "tokens, attacker has none"


@study(
    "rob-attacker",
    paper=PAPER,
    title="beyond the paper: what is left by the attacker's training steps and images",
    effort=EFFORT,
)
def attacker(
    context: StudyContext,
    effort: TokenEffort,
    *,
    tokens: str = "",
    head: int = 0,
    public_head: str = "",
    attack_steps: int = 10,
    steps_tried: Sequence[int] = (5, 20, 80, 200),
    images_tried: Sequence[int] = (4, 16, 64),
    own_images: int = 64,
    own_steps: int = 80,
    layers: Sequence[int] = (),
) -> Record:
    """An attacker who learns tokens from images the defender never had; the `layers` are their guess."""
    at = token_bench(context, effort, HeadSource(head, public_head), 64)
    secret = tokens_for(context, effort, at.model, at.learn, tokens)
    own = _attackers_images(at, secret, max(*images_tried, own_images))
    attempt = effort.class_attack(attack_steps, context.seed)
    bare, hardened = at.variant(None), at.variant(secret)
    trials = _attacked(context, at, bare, {BARE: bare, HARDENED: hardened}, attempt)
    lines, found = dict[str, list[list[float]]](), dict[str, Trial]()
    efforts = [("steps", steps, own_images) for steps in steps_tried]
    efforts += [("images", own_steps, images) for images in images_tried]
    for axis, steps, images in efforts:
        recipe = effort.recipe(count=secret.count, seed=FIRST_SEED)
        recipe = replace(recipe, steps=steps, layers=tuple(layers) or secret.layers)
        name = f"attacker, {images} images, {steps} steps"
        if name not in found:  # both curves may share a point
            mine = learn_tokens(context, at.model, own.take(range(images)), recipe, name).tokens
            found[name] = _attacked(context, at, at.variant(mine), {name: hardened}, attempt)[0]
        place = steps if axis == "steps" else images
        lines.setdefault(axis, []).append(point(place, found[name].correct))
    trials += found.values()
    record = context.record(at.model, at.judged, trials=trials)
    rows: list[list[Any]] = [[t.scenario, with_interval(t.correct)] for t in trials]
    guess = f"before blocks {list(layers)}" if layers else "where the real ones are"
    note = (
        f"{attempt.title} within {attempt.threat}; the attacker's tokens are {guess}. {effort.told(secret)}"
    )
    record.tables = [Table("What is left by the attacker's effort", ["attacker", "accuracy, %"], rows, note)]
    record.curves = [
        Curve(f"Accuracy left by the attacker's {axis}", axis, "accuracy, %", {axis: line}, note)
        for axis, line in lines.items()
    ]
    best = min(found.values(), key=per_cent)
    claim = claim_of(f"tokens against {best.scenario} over no tokens", best.correct, trials[0].correct)
    record.claims = [claim]
    record.tables.append(claims_table([claim]))
    record.notes = [_may_claim(trials[1], best, claim)]
    return record


@study(
    "rob-pool", paper=PAPER, title="beyond the paper: a pool of token sets, judged set by set", effort=EFFORT
)
def pool(
    context: StudyContext,
    effort: TokenEffort,
    *,
    sets: int = 4,
    tokens: str = "",
    head: int = 0,
    public_head: str = "",
    attack_steps: int = 10,
) -> Record:
    """Every request draws a set: attacked without tokens, with one of the sets, and with all of them.

    Each attacked image is shown to every set, so the accuracy over the draw is exact. `tokens` is the file of
    a finished pool, whose sets are then judged.
    """
    at = token_bench(context, effort, HeadSource(head, public_head), 64)
    drawn = TokenPool.load(tokens) if tokens else _learned_pool(context, effort, at, sets)
    drawn.check(at.model)
    models = [at.variant(one) for one in drawn]
    attempt = effort.class_attack(attack_steps, context.seed)
    surrogates: dict[str, tuple[Any, str]] = {
        "has no tokens": (at.variant(None), ""),
        "has one of the sets": (models[0], ""),
        "has all sets": (LogitEnsemble(models), "+".join(model.identity() for model in models)),
    }
    rows, trials, found = list[list[Any]](), list[Trial](), dict[str, DrawnSet]()
    for name, (surrogate, identity) in surrogates.items():
        victims = {f"{name}, set {i}": model for i, model in enumerate(models, start=1)}
        judged = judge_transfer(
            context, surrogate, victims, at.judged, attempt, label=name, identity=identity, batch=BATCH
        )
        trials += judged
        attacked = [t.correct for t in judged if t.attack != "clean"]
        shares = [100 * sum(image) / len(drawn) for image in zip(*attacked, strict=True)]
        found[name] = DrawnSet(shares, [100.0 * right for right in attacked[0]])
        low, high = (min(max(v, 0.0), 100.0) for v in mean_interval(shares)[2:])
        ever = [all(image) for image in zip(*attacked, strict=True)]
        middle = sum(shares) / len(shares)
        rows.append([name, f"{middle:.1f} ({low:.1f} to {high:.1f})", with_interval(ever)])
    record = context.record(at.model, at.judged, trials=trials)
    columns = ["attacker", "left when one set is drawn, %", "left if the attacker may ask until one falls, %"]
    learned = effort.told(next(iter(drawn)))
    note = f"{len(drawn)} sets; {attempt.title} within {attempt.threat}, 95 % intervals. {learned}"
    record.claims = _pool_claims(found)
    record.tables = [Table("A pool of token sets", columns, rows, note), claims_table(record.claims)]
    return record


class DrawnSet(NamedTuple):
    """What is left of each image, in points: over the draw of a set, and if the first always answers."""

    drawn: list[float]
    first: list[float]


def _pool_claims(found: dict[str, DrawnSet]) -> list[Claim]:
    """That drawing a set leaves more than always the same one, whose attacker has it too if any is known."""
    none, one, every = found.values()
    against = "a drawn set over always the first"
    return [
        claim_of_means(f"{against}, attacker has neither", none.drawn, none.first),
        claim_of_means(f"{against}, attacker has the first", one.drawn, one.first),
        claim_of_means(f"{against}, attacker has all there are", every.drawn, one.first),
    ]


def _learned_pool(context: StudyContext, effort: TokenEffort, at: TokenBench, sets: int) -> TokenPool:
    """So many sets by the recipe, kept in the study's folder."""
    learn = at.learn.take(range(min(effort.learn, len(at.learn))))
    recipe, state = effort.recipe(seed=context.seed), context.out / "pool"
    with progress(f"learning {sets} sets of tokens", total=1) as advance:
        drawn, _ = train_pool(at.model, learn, recipe, sets, state=state, progress=advance)
    drawn.save(context.out / "pool.safetensors")
    return drawn


def _attackers_images(at: TokenBench, secret: RobustTokens, count: int) -> ImageDataset:
    """The last of the images there are to learn from, none of which the defender's tokens have seen."""
    taken = set(secret.learned_from)
    free = [place for place, name in enumerate(at.learn.names) if name not in taken]
    if len(free) < count:
        raise InputError(
            f"the attacker wants {count} images that the defender did not learn from, got {len(free)} of "
            f"{len(at.learn)}; give more learn_data, a larger head=, or fewer images"
        )
    return at.learn.take(free[-count:])


def _attacked(
    context: StudyContext, at: TokenBench, surrogate: Model, judged: dict[str, Model], attempt: Attempt
) -> list[Trial]:
    """An attacked trial of each judged model, by images made on the surrogate."""
    label = next(reversed(judged))
    trials = judge_transfer(context, surrogate, judged, at.judged, attempt, label=label, batch=BATCH)
    return [trial for trial in trials if trial.kind == "attack"]


def _may_claim(public: Trial, best: Trial, claim: Claim) -> str:
    """What a defender may say, from the numbers."""
    left, worst = per_cent(public), per_cent(best)
    first = f"A defender may claim {left:.1f} % against attacks on the public model as it is"
    if claim.verdict is not Verdict.SEEN:
        return f"{first}, and nothing against {best.scenario}: {worst:.1f} % is left. {claim}"
    return f"{first}, and {worst:.1f} % against {best.scenario}; stronger attackers were not tried here."
