"""Checks that compare the white box with other attacks: what knows less must never do better."""

from __future__ import annotations

from typing import Any

import torch

from robvit.attacks import Outcome
from robvit.attacks.core import ATTACKS, Model, per_image_uniform
from robvit.attacks.losses import LOSSES
from robvit.attacks.pixels import eight_bit as whole_levels
from robvit.diagnosis.context import WHITE_BOX, CheckContext, percent
from robvit.diagnosis.grading import CHECKS, TOLERANCE, Grade, advice, graded, skipped
from robvit.errors import InputError
from robvit.evaluation.classifiers import name_of
from robvit.loading import load
from robvit.statistics import interval

BUNDLED = ("robvit-mini", "robvit-mini-robust")  # surrogates for CIFAR-10, where no other is named
ATTENTION_SCALE = 0.1  # of the query-key products; what AAS finds for itself comes on top
SEARCH = 50  # queries of the search that finds the point which a binarised task is built on
REACH = 0.9  # of that point's gain must be reached


@CHECKS.add(
    title="A black-box attack does not beat the white box",
    compares="Square, which sees outputs only, with PGD on three losses",
    remedy="The gradient misleads: quote the worst case with square and more queries, and look for gradient "
    "masking.",
    cost=100,
    needs=("survivors",),
)
def black_box(context: CheckContext) -> Grade:
    """Square sees outputs only; where it succeeds, the white box must succeed too."""
    queries = context.strength.queries
    outcome = context.attack("square", title=f"square-{queries}", after=context.white_box, steps=queries)
    return _against_white_box(context, outcome, f"Square with {queries} queries")


@CHECKS.add(
    title="Transfer from another model does not beat the white box",
    compares="PGD on other models with PGD on three losses on this one",
    remedy="The gradient misleads: quote the worst case with transfer, and look for gradient masking.",
    cost=20,
    needs=("survivors",),
)
def transfer(context: CheckContext) -> Grade:
    """Images made on another model must not succeed where the white box fails."""
    surrogates = _surrogates(context)
    if not surrogates:
        return skipped("no other model fits these images; name one as surrogate")
    outcome = context.white_box
    for name, surrogate in surrogates.items():
        outcome = context.attack(
            "pgd",
            title=f"transfer from {name}",
            surrogate=surrogate,
            after=outcome,
            steps=context.strength.steps,
        )
    return _against_white_box(context, outcome, f"transfer from {' and '.join(surrogates)}")


def _surrogates(context: CheckContext) -> dict[str, Model]:
    """The models to transfer from: the one given, or the bundled ones that know these images."""
    if context.surrogate is not None:
        return {name_of(context.surrogate): context.surrogate}
    found: dict[str, Model] = {}
    for name in BUNDLED:
        candidate = load(name).to(context.x.device)
        size, classes = tuple(context.x.shape[-2:]), context.clean_logits.shape[1]
        if size != candidate.input_size or classes != candidate.classes:
            return {}
        correct = int((context.logits(context.x, candidate).argmax(1) == context.y).sum())
        if interval(correct, len(context.x))[0] > 2 / candidate.classes:  # surely better than guessing
            found[name] = candidate
    return found


@CHECKS.add(
    title="Random noise does not beat the white box",
    compares="random corners of the ball with PGD on three losses",
    remedy="The attack does worse than chance: look for gradient masking before any number is quoted.",
    cost=35,
    needs=("survivors",),
)
def random_noise(context: CheckContext) -> Grade:
    """Noise of the full budget must not succeed where the white box fails."""
    draws = context.strength.draws

    def make(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        best, value = x.clone(), torch.full((len(x),), -torch.inf, device=x.device)
        for i in range(draws):
            uniform = per_image_uniform(x, context.seed, f"noise {i}")
            point = context.threat.random(x, uniform.round())  # the corners of the ball are the farthest
            margin = LOSSES["margin"](model(point), y)
            better = margin > value
            best = torch.where(better.view(-1, 1, 1, 1), point, best)
            value = torch.where(better, margin, value)
        return best

    outcome = context.run(f"noise-{draws}", make, context.threat, after=context.white_box)
    return _against_white_box(context, outcome, f"noise with {draws} draws")


def _against_white_box(context: CheckContext, outcome: Outcome, attack: str) -> Grade:
    only = outcome.success & ~context.white_box.success
    evidence = f"accuracy under the white box {percent(context.white_box)}; on the images it leaves correct, "
    return graded(only, context.num_correct, f"{evidence}{attack} succeeds on {int(only.sum())}")


@CHECKS.add(
    title="Attacks on different losses agree",
    compares="PGD on cross-entropy with PGD on the margin and on DLR",
    remedy="Quote the worst case over several losses, image by image, not cross-entropy alone.",
    cost=60,
    needs=("gradient",),
)
def losses(context: CheckContext) -> Grade:
    """Cross-entropy, margin and DLR must succeed on nearly the same images."""
    outcomes = [context.pgd_on(loss) for loss in WHITE_BOX]
    missed = context.white_box.success & ~outcomes[0].success
    evidence = ", ".join(f"{loss} {percent(o)}" for loss, o in zip(WHITE_BOX, outcomes, strict=True))
    evidence = f"accuracy under {evidence}; cross-entropy alone misses {int(missed.sum())} successes"
    return graded(missed, context.num_correct, evidence, TOLERANCE)


@CHECKS.add(
    title="Attention scaling finds nothing new",
    compares="attacks on scaled attention (AAS) with as many restarts of PGD",
    remedy="Saturated attention hides gradients: add the attack aas to the evaluation.",
    cost=90,
    needs=("attention", "gradient", "survivors"),
)
def attention_scaling(context: CheckContext) -> Grade:
    """The AAS gap: images made on scaled attention, judged on the model as it is, against mere restarts."""
    white_box = context.white_box
    common: dict[str, Any] = {"steps": context.strength.steps, "loss": "margin"}
    title = f"attention x{ATTENTION_SCALE:g}"
    scaled = context.attack("aas_uniform", title=title, after=white_box, factors=ATTENTION_SCALE, **common)
    scaled = context.attack("aas", title="aas", after=scaled, fit="batch", **common)
    control = context.attack(
        "pgd", title="restarts for control", after=white_box, restarts=3, seed=context.seed + 2, **common
    )
    found, also = (outcome.success & ~white_box.success for outcome in (scaled, control))
    evidence = (
        f"on the images that the white box leaves correct, scaled attention succeeds on {int(found.sum())}, "
        f"three restarts at the same cost on {int(also.sum())}"
    )
    return graded(found & ~also, context.num_correct, evidence, TOLERANCE)


@CHECKS.add(
    title="PGD solves tasks with a known solution",
    compares="PGD on two-class tasks with the solution that a random search found",
    remedy="The attack fails where success is possible: its failure on the model proves nothing. Look for "
    "gradient masking, and attack with square.",
    cost=75,
)
def binarisation(context: CheckContext) -> Grade:
    """Two classes around each image, with a point of the other class known to lie in the ball.

    A short random search finds a point of higher margin; the border is drawn just below it. An attack
    that cannot cross that border proves nothing when it fails to cross the real one (after 2206.13991).
    """
    rows = context.correct.nonzero()[:, 0]
    x, y, threat = context.x[rows], context.y[rows], context.threat
    search = {"steps": SEARCH, "early_stop": False, "seed": context.seed}
    parts = zip(x.split(context.batch), y.split(context.batch), strict=True)
    known = torch.cat([ATTACKS["square"](context.judged, a, b, threat, **search) for a, b in parts])
    start, best = (LOSSES["margin"](context.logits(point), y) for point in (x, known))
    border, solvable = start + REACH * (best - start), best > start
    adv = torch.cat(
        [_cross(context, x[i], y[i], border[i]) for i in torch.arange(len(x)).split(context.batch)]
    )
    failed = torch.zeros_like(context.correct)
    failed[rows] = solvable & (LOSSES["margin"](context.logits(adv), y) <= border)
    tasks = int(solvable.sum())
    if not tasks:
        return skipped("the search found no solution to build a task on")
    evidence = f"PGD solves {tasks - int(failed.sum())} of {tasks} tasks with a known solution"
    return graded(failed, tasks, evidence, TOLERANCE)


def _cross(context: CheckContext, x: torch.Tensor, y: torch.Tensor, border: torch.Tensor) -> torch.Tensor:
    """Attack the two-class model "is the margin above the border?"; all (b ...)."""
    if context.margin_gradient is None:
        return x

    def binary(point: torch.Tensor) -> torch.Tensor:
        above = LOSSES["margin"](context.judged(point), y) - border
        return torch.stack((torch.zeros_like(above), above), 1)

    binary.__dict__["__wrapped__"] = context.model
    return ATTACKS["pgd"](
        binary,
        x,
        torch.zeros_like(y),
        context.threat,
        steps=context.strength.steps,
        loss="margin",
        early_stop=False,
        seed=context.seed,
    )


@CHECKS.add(
    title="Adversarial images survive 8-bit rounding",
    compares="adversarial images with the same rounded to whole grey levels inside the ball",
    remedy="Count successes after rounding (eight_bit), as robvit attack and robvit evaluate do.",
    cost=1,
)
def eight_bit(context: CheckContext) -> Grade:
    """Rounded to whole grey levels inside the ball, adversarial images must stay adversarial."""
    rows = (context.white_box.success & context.correct).nonzero()[:, 0]
    if not len(rows):
        return skipped("the white-box attacks succeed on no image")
    try:
        rounded = whole_levels(context.x[rows], context.white_box.adv[rows], context.threat)
    except InputError:
        return skipped("the images themselves are not 8-bit")
    lost = torch.zeros_like(context.correct)
    lost[rows] = context.logits(rounded).argmax(1) == context.y[rows]
    return advice(lost, f"{int(lost.sum())} of {len(rows)} successes are lost by rounding")
