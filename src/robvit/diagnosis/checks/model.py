"""Checks on the model alone: its outputs, its gradients and its attention, before any attack."""

from __future__ import annotations

import torch

from robvit.attacks.core import frozen, per_image_uniform
from robvit.attacks.losses import LOSSES
from robvit.attention import watch
from robvit.diagnosis.context import EOT_PASSES, CheckContext, percent
from robvit.diagnosis.grading import CHECKS, Grade, Status, graded, skipped, surely_more
from robvit.statistics import surely_above

VANISHED = 1e-30  # a gradient below this is lost in single precision as soon as it is multiplied
SURE = 1 - 1e-6  # a probability above this leaves cross-entropy next to no gradient
FINE, COARSE = 1 / 32, 1 / 4  # of the budget: the steps of finite differences
MAX_ERROR = 0.5  # of a finite difference against the gradient, as a share of the larger of the two
MANY = 0.1  # a share that is no accident


@CHECKS.add(
    title="The model is deterministic",
    compares="two passes over the same images; PGD with and without averaging (EOT)",
    remedy="Attack and judge the mean over many passes: attacks.eot, and --samples 20 here.",
    cost=30,
    answers_suffice=True,
)
def randomness(context: CheckContext) -> Grade:
    """Two passes must agree; where they do not, chance must not decide, nor mislead one-pass attacks."""
    if not context.randomised:
        return Grade(Status.GREEN, "two passes over the same images agree")
    unstable, misled, evidence = _changes_class(context, context.x), False, ""
    if not context.black_box:
        averaged = context.pgd()
        plain = context.attack(
            "pgd", title="pgd without EOT", surrogate=context.model, steps=context.strength.steps
        )
        unstable = unstable | _changes_class(context, averaged.adv)
        gained = int((averaged.success & ~plain.success).sum())
        misled = surely_more(gained, int((plain.success & ~averaged.success).sum()))
        evidence = (
            f"; accuracy under PGD is {percent(plain)} without averaging, "
            f"{percent(averaged)} over {EOT_PASSES} passes (EOT)"
        )
    count = int(unstable.sum())
    evidence = f"randomised: {count} of {len(unstable)} images change class from pass to pass{evidence}"
    is_red = misled or surely_above(count, len(unstable), MANY)
    return Grade(Status.RED if is_red else Status.AMBER, evidence, unstable)


def _changes_class(context: CheckContext, images: torch.Tensor) -> torch.Tensor:
    """Which of the images (n 3 H W) the model puts into several classes in a few passes: (n,)."""
    predicted = torch.stack([context.logits(images, context.model).argmax(1) for _ in range(EOT_PASSES)])
    return (predicted != predicted[0]).any(0)


@CHECKS.add(
    title="The model returns logits, not probabilities",
    compares="the outputs with probabilities",
    remedy="Pass the logits, before softmax: gradients vanish where a probability rounds to 1.",
    cost=1,
    answers_suffice=True,
)
def softmax_output(context: CheckContext) -> Grade:
    """Probabilities hide how sure a model is, and their gradients vanish where it is sure."""
    outputs = context.clean_logits
    if not bool((outputs >= 0).all() and ((outputs.sum(1) - 1).abs() < 1e-3).all()):
        return Grade(Status.GREEN, "the outputs are no probabilities")
    flat = outputs.amax(1) > SURE
    evidence = f"the outputs are probabilities, {int(flat.sum())} of {len(flat)} above {SURE}"
    is_red = surely_above(int(flat.sum()), len(flat), MANY)
    return Grade(Status.RED if is_red else Status.AMBER, evidence, flat)


@CHECKS.add(
    title="Cross-entropy has a gradient to follow",
    compares="the gradient of cross-entropy with that of the margin",
    remedy="Attack with a loss that does not depend on the scale of the logits: margin or DLR.",
    cost=2,
    needs=("gradient",),
)
def saturation(context: CheckContext) -> Grade:
    """Logits so far apart that cross-entropy is flat make attacks on it blind, however fragile the model."""
    grad = context.input_gradient("cross_entropy", context.x)
    if grad is None or context.margin_gradient is None:
        return skipped("cross-entropy has no gradient at all")
    alive = context.correct & ~_vanished(context.margin_gradient)
    flat = alive & _vanished(grad)
    rounded = context.correct & (context.clean_logits.softmax(1).amax(1) == 1)
    margin = -float(LOSSES["margin"](context.clean_logits, context.y)[context.correct].median())
    evidence = (
        f"cross-entropy is flat for {int(flat.sum())} of {context.num_correct} images, the predicted "
        f"probability rounds to 1 for {int(rounded.sum())}; the median margin is {margin:.3g}"
    )
    if bool(flat.any()):
        return graded(flat, context.num_correct, evidence, MANY)
    return Grade(Status.AMBER if bool(rounded.any()) else Status.GREEN, evidence, rounded)


def _vanished(grad: torch.Tensor) -> torch.Tensor:
    """The images (n,) whose gradient (n 3 H W) is zero, or as good as zero, everywhere."""
    return grad.flatten(1).abs().amax(1) <= VANISHED


@CHECKS.add(
    title="Input gradients exist, are finite and not zero",
    compares="the gradient of the margin with none, NaN and zero",
    remedy="Attack through the step that blocks gradients with attacks.bpda, and add the black-box square.",
    cost=4,
)
def gradients(context: CheckContext) -> Grade:
    """Missing, NaN, zero or underflowed gradients of the margin, on clean images and in the ball."""
    if context.margin_gradient is None:
        evidence = "autograd finds no path from the output to the image"
        return Grade(Status.RED, evidence, context.correct)
    nearby = context.threat.random(context.x, per_image_uniform(context.x, context.seed, "gradients"))
    there = context.input_gradient("margin", nearby)
    assert there is not None
    both = torch.stack((context.margin_gradient, there)).flatten(2).abs()
    infinite = ~both.isfinite().all(2).all(0)
    zero = (both.nan_to_num(0.0).amax(2) <= VANISHED).any(0)
    # A zero or two may be a dead unit's; most of an image without any is a step that lets none through.
    mostly_zero = (both == 0).float().mean(2).amax(0) > 0.5
    evidence = (
        f"of {len(zero)} images {int(infinite.sum())} have NaN or infinite gradients, {int(zero.sum())} zero "
        f"gradients, {int((mostly_zero & ~zero).sum())} zero gradients for most pixels"
    )
    return graded(infinite | zero | mostly_zero, len(zero), evidence)


@CHECKS.add(
    title="Gradients agree with finite differences",
    compares="the change of the margin over a step with what the gradient predicts",
    remedy="Look for a detached branch, a straight-through estimator or noise too fine to see; attack with "
    "attacks.bpda or square.",
    cost=6,
    needs=("gradient",),
)
def finite_differences(context: CheckContext) -> Grade:
    """A step up the gradient must change the margin as predicted, at a fine or at a coarse scale.

    A wrong gradient (a detached branch, a stand-in), a correct one that holds nowhere but at its own point
    (shattered) and one that is zero all fail.
    """
    assert context.margin_gradient is not None
    if context.randomised:
        return skipped("the model is randomised, so differences are mostly noise")
    grad = context.margin_gradient.nan_to_num(0.0, 0.0, 0.0)
    scales = (FINE, COARSE)
    errors = torch.stack([_relative_error(context, grad, s * context.threat.eps) for s in scales]).amin(0)
    zero = context.correct & _vanished(grad)
    off = zero | context.correct & (errors > MAX_ERROR)
    evidence = f"{int(off.sum())} of {context.num_correct} images disagree"
    if bool(zero.any()):
        evidence += f", {int(zero.sum())} of them because their gradient is zero"
    compared = context.correct & ~zero
    if bool(compared.any()):
        evidence += f"; the median error is {float(errors[compared].median()):.0%}"
    return graded(off, context.num_correct, evidence, MANY)


def _relative_error(context: CheckContext, grad: torch.Tensor, step: float) -> torch.Tensor:
    """How far the margin's change over +-step is off what the gradient predicts, relative: (n,)."""
    move = context.threat.steepest(grad, step)
    inside = (context.x + move).clamp(0, 1) - context.x
    move = torch.where(((context.x - move) >= 0) & ((context.x - move) <= 1), inside, 0)  # room on both sides
    predicted = (grad * move).flatten(1).sum(1)
    ahead, behind = (LOSSES["margin"](context.logits(context.x + d), context.y) for d in (move, -move))
    change = (ahead - behind) / 2
    # What rounding alone may make of the outputs; below it nothing can be said.
    noise = 16 * torch.finfo(context.clean_logits.dtype).eps * context.clean_logits.abs().amax(1)
    size = torch.maximum(predicted.abs(), change.abs())
    return torch.where(size > noise, (predicted - change).abs() / size.clamp_min(1e-30), 0)


@CHECKS.add(
    title="Every attention layer lets gradients through",
    compares="rows of the attention maps with one-hot rows",
    remedy="Attack with attention scaling: the attack aas.",
    cost=2,
    needs=("attention",),
)
def attention_underflow(context: CheckContext) -> Grade:
    """A softmax that is one-hot to the last bit passes nothing on to queries and keys."""
    assert context.attention_network is not None
    shares: list[torch.Tensor] = []
    images = context.x[: context.batch]
    with watch(context.attention_network, maps=True) as seen, torch.no_grad(), frozen(context.model):
        context.model(images)
        for attention in seen.maps:
            others = attention.sum(-1) - attention.amax(-1)
            shares.append((others <= torch.finfo(attention.dtype).eps).float().mean())
    if not shares:
        return skipped("the attention layers did not run")
    worst = int(torch.stack(shares).argmax())
    share = float(shares[worst])
    evidence = (
        f"one-hot rows: at most {share:.1%}, in layer {worst} of {len(shares)} (from 0); "
        f"{sum(float(s) > MANY for s in shares)} layers above {MANY:.0%}"
    )
    return Grade(Status.RED if share > 0.5 else Status.AMBER if share > MANY else Status.GREEN, evidence)
