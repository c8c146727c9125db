"""Checks on the model alone: its answers, its gradients and its attention, before any attack."""

from __future__ import annotations

import torch

from robvit.attacks.core import frozen, per_image_uniform
from robvit.attacks.losses import LOSSES
from robvit.attention import watch
from robvit.diagnosis.context import AVERAGED, CheckContext
from robvit.diagnosis.grading import (
    AMBER,
    CHECKS,
    GREEN,
    RED,
    Verdict,
    graded,
    not_applicable,
    surely_above,
    surely_more,
)

VANISHED = 1e-30  # a gradient below this is lost in single precision as soon as it is multiplied
SURE = 1 - 1e-6  # a probability above this leaves cross-entropy next to no gradient
FINE, COARSE = 1 / 32, 1 / 4  # of the budget: the steps of finite differences
FAITHFUL = 0.5  # how far a finite difference may be off the gradient, as a share of the larger of the two
MANY = 0.1  # a share that is no accident


@CHECKS.add(asks="does the model answer the same question twice alike?", cost=30)
def randomness(context: CheckContext) -> Verdict:
    """Two passes must agree; where they do not, the dice must not decide, nor hide from one-pass attacks."""
    if not context.randomised:
        return Verdict(GREEN, "two passes over the same images agree")
    averaged = context.pgd()
    plain = context.attack("pgd", title="pgd without EOT", source=context.model, steps=context.effort.steps)
    answers = [
        torch.stack([context.logits(seen, context.model).argmax(1) for _ in range(AVERAGED)])
        for seen in (context.x, averaged.adv)
    ]
    fickle = torch.stack([(a != a[0]).any(0) for a in answers]).any(0)
    gained, lost = int((averaged.broken & ~plain.broken).sum()), int((plain.broken & ~averaged.broken).sum())
    hidden = surely_more(gained, lost)
    evidence = (
        f"randomised: {int(fickle.sum())} of {len(fickle)} images change class from pass to pass; PGD "
        f"leaves {context.share(plain)} without averaging, "
        f"{context.share(averaged)} over {AVERAGED} passes (EOT); judge it with samples"
    )
    red = hidden or surely_above(int(fickle.sum()), len(fickle), MANY)
    return Verdict(RED if red else AMBER, evidence, fickle)


@CHECKS.add(asks="does it return logits, not probabilities?", cost=1)
def softmax_output(context: CheckContext) -> Verdict:
    """Probabilities hide how sure a model is, and their gradients vanish where it is sure."""
    output = context.clean
    if not bool((output >= 0).all() and ((output.sum(1) - 1).abs() < 1e-3).all()):
        return Verdict(GREEN, "the outputs are no probabilities")
    flat = output.amax(1) > SURE
    text = f"the outputs are probabilities, {int(flat.sum())} of {len(flat)} above {SURE}; pass logits"
    return Verdict(RED if surely_above(int(flat.sum()), len(flat), MANY) else AMBER, text, flat)


@CHECKS.add(asks="does cross-entropy keep a gradient?", cost=2)
def saturation(context: CheckContext) -> Verdict:
    """Logits so far apart that cross-entropy is flat make attacks on it blind, however fragile the model."""
    grad = context.slopes("cross_entropy", context.x)
    if grad is None or context.slope is None:
        return not_applicable("there is no gradient at all")
    alive = context.correct & (context.slope.flatten(1).abs().amax(1) > VANISHED)
    dead = alive & (grad.flatten(1).abs().amax(1) <= VANISHED)
    rounded = context.correct & (context.clean.softmax(1).amax(1) == 1)
    gap = -float(LOSSES["margin"](context.clean, context.y)[context.correct].median())
    text = (
        f"cross-entropy is flat for {int(dead.sum())} of {context.at_stake} images, the right probability "
        f"rounds to 1 for {int(rounded.sum())}; the median margin is {gap:.3g}"
    )
    if bool(dead.any()):
        return graded(dead, context.at_stake, text, MANY)
    if surely_above(int(rounded.sum()), context.at_stake, MANY):
        return Verdict(AMBER, text, rounded)
    return Verdict(GREEN, text)


@CHECKS.add(asks="are gradients there, finite and alive?", cost=4)
def gradients(context: CheckContext) -> Verdict:
    """Missing, NaN, zero or underflowed gradients of the margin, on clean images and in the ball."""
    if context.slope is None:
        text = "autograd finds no way from the output to the image; use square, or bpda"
        return Verdict(RED, text, context.correct)
    nearby = context.threat.random(context.x, per_image_uniform(context.x, context.seed, "gradients"))
    there = context.slopes("margin", nearby)
    assert there is not None
    found = torch.stack((context.slope, there)).flatten(2).abs()
    bad = ~found.isfinite().all(2).all(0)
    dead = (found.nan_to_num(0.0).amax(2) <= VANISHED).any(0)
    # A zero or two may be a dead unit's; most of an image without any is a step that lets none through.
    partly = (found == 0).float().mean(2).amax(0) > 0.5
    text = (
        f"of {len(bad)} images {int(bad.sum())} have NaN or infinite gradients, {int(dead.sum())} none at "
        f"all, {int((partly & ~dead).sum())} none for most pixels"
    )
    return graded(bad | dead | partly, len(bad), text)


@CHECKS.add(asks="do finite differences agree with the gradient?", cost=6)
def finite_differences(context: CheckContext) -> Verdict:
    """A step up the gradient must change the margin as promised, at a fine or at a coarse scale.

    A wrong gradient (a detached branch, a stand-in) and a right one that holds nowhere but at its own
    point (shattered) both fail.
    """
    if context.slope is None:
        return not_applicable("there is no gradient at all")
    if context.randomised:
        return not_applicable("the model is randomised, so differences are mostly noise")
    grad = context.slope.nan_to_num(0.0, 0.0, 0.0)
    errors = torch.stack(
        [_error(context, grad, scale * context.threat.eps) for scale in (FINE, COARSE)]
    ).amin(0)
    off = context.correct & (errors > FAITHFUL)
    median = float(errors[context.correct].median())
    text = f"{int(off.sum())} of {context.at_stake} images disagree; the median error is {median:.0%}"
    return graded(off, context.at_stake, text, MANY)


def _error(context: CheckContext, grad: torch.Tensor, step: float) -> torch.Tensor:
    """How far the margin's change over +-step is off what the gradient promises, relative: (n,)."""
    move = context.threat.steepest(grad, step)
    inside = (context.x + move).clamp(0, 1) - context.x
    move = torch.where(((context.x - move) >= 0) & ((context.x - move) <= 1), inside, 0)  # room on both sides
    promised = (grad * move).flatten(1).sum(1)
    ahead, behind = (LOSSES["margin"](context.logits(context.x + d), context.y) for d in (move, -move))
    change = (ahead - behind) / 2
    # What rounding alone may make of the outputs; below it nothing can be said.
    noise = 16 * torch.finfo(context.clean.dtype).eps * context.clean.abs().amax(1)
    size = torch.maximum(promised.abs(), change.abs())
    return torch.where(size > noise, (promised - change).abs() / size.clamp_min(1e-30), 0)


@CHECKS.add(asks="does every attention layer let gradients through?", cost=2)
def attention_underflow(context: CheckContext) -> Verdict:
    """A softmax that is one-hot to the last bit passes nothing on to queries and keys."""
    if context.attentive is None:
        return not_applicable("no attention layer within reach")
    shares: list[torch.Tensor] = []
    few = context.x[: context.batch]
    with watch(context.attentive, maps=True) as seen, torch.no_grad(), frozen(context.model):
        context.model(few)
        for attention in seen.maps:
            others = attention.sum(-1) - attention.amax(-1)
            shares.append((others <= torch.finfo(attention.dtype).eps).float().mean())
    if not shares:
        return not_applicable("the attention layers did not run")
    worst = int(torch.stack(shares).argmax())
    share = float(shares[worst])
    text = (
        f"one-hot rows: at most {share:.1%}, in layer {worst} of {len(shares)} (from 0); "
        f"{sum(float(s) > MANY for s in shares)} layers above {MANY:.0%}"
    )
    return Verdict(RED if share > 0.5 else AMBER if share > MANY else GREEN, text)
