"""Checks that compare attacks: what knows more, or tries longer, must never do worse."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import torch

from robvit.attacks.core import ATTACKS, Model, per_image_uniform
from robvit.attacks.losses import LOSSES
from robvit.attacks.pixels import eight_bit as whole_levels
from robvit.diagnosis.context import WHITE_BOX, CheckContext, Shot, name_of
from robvit.diagnosis.grading import (
    AMBER,
    CHECKS,
    GREEN,
    LIMIT,
    RED,
    Verdict,
    graded,
    not_applicable,
    surely_above,
    surely_more,
)
from robvit.errors import InputError
from robvit.loading import load
from robvit.statistics import interval

BUNDLED = ("robvit-mini", "robvit-mini-robust")  # surrogates for CIFAR-10, where no other is named
BUDGETS = (0.25, 0.5, 1.0, 2.0)  # of eps, for the curve
LARGE = 0.5  # a change of every value by so much can hide any image
TASTE = 0.05  # honest losses, and models of attention, differ by this share of the images
CALM = 0.1  # times the query-key products; what AAS finds for itself comes on top
SEARCH = 50  # queries of the search that finds the point which a binarised task is built on
REACH = 0.9  # of that point's gain must be reached


@CHECKS.add(asks="does one big step ever beat many small ones?", cost=25)
def single_step(context: CheckContext) -> Verdict:
    """FGSM must break nothing that PGD leaves standing."""
    once, often = context.attack("fgsm", title="fgsm"), context.pgd()
    only = once.broken & ~often.broken
    shares = f"FGSM leaves {context.share(once)}, PGD {context.share(often)}"
    text = f"{shares}; {int(only.sum())} broken by FGSM alone"
    return graded(only, context.at_stake, text)


def _risen(shots: list[Shot]) -> torch.Tensor:
    """The images (n,) that a harder attack leaves and an easier one breaks, if surely more than others."""
    risen = torch.zeros_like(shots[0].broken)
    for easy, hard in combinations(shots, 2):
        lost, gained = easy.broken & ~hard.broken, hard.broken & ~easy.broken
        if surely_more(int(lost.sum()), int(gained.sum())):
            risen |= lost
    return risen


@CHECKS.add(asks="do more steps break at least as much, and are they enough?", cost=65)
def more_steps(context: CheckContext) -> Verdict:
    """Accuracy must not rise with the steps; if it still falls with the last doubling, take more."""
    counts = [context.effort.steps // 4, context.effort.steps, 2 * context.effort.steps]
    shots = [context.pgd(steps=n) for n in counts]
    text = ", ".join(f"{context.share(s)} after {n}" for s, n in zip(shots, counts, strict=True))
    risen = _risen(shots)
    if bool(risen.any()):
        return Verdict(RED, f"accuracy rises with the steps: {text}", risen)
    late = shots[2].broken & ~shots[1].broken
    if surely_above(int(late.sum()), context.at_stake, LIMIT):
        return Verdict(AMBER, f"not converged, take more steps: {text}", late)
    return Verdict(GREEN, f"{text} steps")


@CHECKS.add(asks="do more restarts change the image?", cost=60)
def more_restarts(context: CheckContext) -> Verdict:
    """Other random starts on what is left must find next to nothing new."""
    first, effort = context.pgd(), context.effort
    title = f"pgd-{effort.steps}, {effort.restarts} starts"
    rest = context.attack(
        "pgd",
        title=title,
        after=first,
        steps=effort.steps,
        restarts=effort.restarts - 1,
        seed=context.seed + 1,
    )
    late = rest.broken & ~first.broken
    text = f"{context.share(first)} after one start, {context.share(rest)} after {effort.restarts}"
    if surely_above(int(late.sum()), context.at_stake, TASTE):
        return Verdict(AMBER, f"{text}: take more restarts", late)
    return Verdict(GREEN, text)


@CHECKS.add(asks="does accuracy fall as the budget grows?", cost=60)
def monotone_budget(context: CheckContext) -> Verdict:
    """A larger ball holds the smaller one, so an attack must do at least as much in it."""
    shots = [context.pgd(eps=None if b == 1 else b * context.threat.eps) for b in BUDGETS]
    text = ", ".join(f"{context.share(s)} at {b:g} eps" for s, b in zip(shots, BUDGETS, strict=True))
    risen = _risen(shots)
    return Verdict(RED if bool(risen.any()) else GREEN, text, risen)


@CHECKS.add(asks="does everything break when anything is allowed?", cost=20)
def large_budget(context: CheckContext) -> Verdict:
    """With a budget that can turn every image grey, a gradient that means anything breaks them all."""
    eps = float(context.threat.size(torch.full_like(context.x[:1], LARGE)))
    shot = context.pgd(eps=eps)
    text = f"{context.share(shot)} at {shot.threat}, where none should be left"
    return graded(~shot.broken, context.at_stake, text, TASTE)


@CHECKS.add(asks="does a black box ever beat the white box?", cost=100)
def black_box(context: CheckContext) -> Verdict:
    """Square sees outputs only; what it breaks, the white box must break too."""
    queries = context.effort.queries
    shot = context.attack("square", title=f"square-{queries}", after=context.white, steps=queries)
    return _beaten(context, shot, f"Square with {queries} queries")


@CHECKS.add(asks="does transfer ever beat the white box?", cost=20)
def transfer(context: CheckContext) -> Verdict:
    """Images made on another model must break nothing that the white box leaves."""
    surrogates = _surrogates(context)
    if not surrogates:
        return not_applicable("no other model fits these images; name one as surrogate")
    shot = context.white
    for name, surrogate in surrogates.items():
        shot = context.attack(
            "pgd", title=f"transfer from {name}", source=surrogate, after=shot, steps=context.effort.steps
        )
    return _beaten(context, shot, f"transfer from {' and '.join(surrogates)}")


def _surrogates(context: CheckContext) -> dict[str, Model]:
    """The models to transfer from: the one given, or the bundled ones that know these images."""
    if context.surrogate is not None:
        return {name_of(context.surrogate): context.surrogate}
    found: dict[str, Model] = {}
    for name in BUNDLED:
        candidate = load(name).to(context.x.device)
        if tuple(context.x.shape[-2:]) != candidate.input_size or context.clean.shape[1] != candidate.classes:
            return {}
        correct = int((context.logits(context.x, candidate).argmax(1) == context.y).sum())
        if interval(correct, len(context.x))[0] > 2 / candidate.classes:  # surely better than guessing
            found[name] = candidate
    return found


@CHECKS.add(asks="does random noise ever beat the white box?", cost=35)
def random_noise(context: CheckContext) -> Verdict:
    """Noise of the full budget must break nothing that the white box leaves."""
    draws = context.effort.draws

    def make(model: Model, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        best, value = x.clone(), torch.full((len(x),), -torch.inf, device=x.device)
        for i in range(draws):
            corner = per_image_uniform(
                x, context.seed, f"noise {i}"
            ).round()  # the corners of the ball are the farthest
            point = context.threat.random(x, corner)
            found = LOSSES["margin"](model(point), y)
            better = found > value
            best = torch.where(better.view(-1, 1, 1, 1), point, best)
            value = torch.where(better, found, value)
        return best

    shot = context.shoot(f"noise-{draws}", make, context.threat, after=context.white)
    return _beaten(context, shot, f"noise, {draws} draws")


def _beaten(context: CheckContext, shot: Shot, who: str) -> Verdict:
    only = shot.broken & ~context.white.broken
    text = (
        f"the white box leaves {context.share(context.white)}, of that {who} breaks {int(only.sum())} images"
    )
    return graded(only, context.at_stake, text)


@CHECKS.add(asks="do different losses agree?", cost=60)
def losses(context: CheckContext) -> Verdict:
    """Cross-entropy, margin and DLR must break nearly the same images."""
    shots = [context.on_loss(loss) for loss in WHITE_BOX]
    missed = context.white.broken & ~shots[0].broken
    text = ", ".join(f"{loss} {context.share(s)}" for loss, s in zip(WHITE_BOX, shots, strict=True))
    text += f"; cross-entropy misses {int(missed.sum())} that another loss breaks"
    if surely_above(int(missed.sum()), context.at_stake, TASTE):
        return Verdict(RED, text, missed)
    return Verdict(AMBER if surely_above(int(missed.sum()), context.at_stake, LIMIT) else GREEN, text, missed)


@CHECKS.add(asks="does calmer attention give better attacks?", cost=90)
def attention_scaling(context: CheckContext) -> Verdict:
    """The AAS gap: images made on scaled attention, judged on the model as it is, against mere restarts."""
    if context.attentive is None:
        return not_applicable("no attention layer within reach")
    common: dict[str, Any] = {"steps": context.effort.steps, "loss": "margin"}
    shot = context.attack(
        "aas_uniform", title=f"attention x{CALM:g}", after=context.white, factors=CALM, **common
    )
    shot = context.attack("aas", title="aas", after=shot, **common)
    control = context.attack(
        "pgd", title="restarts for control", after=context.white, restarts=3, seed=context.seed + 2, **common
    )
    found, same = (s.broken & ~context.white.broken for s in (shot, control))
    text = (
        f"scaled attention breaks {int(found.sum())} that the white box left, "
        f"three restarts at the same price {int(same.sum())}"
    )
    return graded(found & ~same, context.at_stake, text, TASTE)


@CHECKS.add(asks="can the attack succeed where success is known to be possible?", cost=75)
def binarisation(context: CheckContext) -> Verdict:
    """Two classes around each image, with a point of the other class known to lie in the ball.

    A short random search finds a point of higher margin; the border is drawn just below it. An attack
    that cannot cross that border proves nothing when it fails to cross the real one (after 2206.13991).
    """
    rows = context.correct.nonzero()[:, 0]
    x, y, threat = context.x[rows], context.y[rows], context.threat
    search = {"steps": SEARCH, "early_stop": False, "seed": context.seed}
    parts = zip(x.split(context.batch), y.split(context.batch), strict=True)
    known = torch.cat([ATTACKS["square"](context.subject, a, b, threat, **search) for a, b in parts])
    start, reach = (LOSSES["margin"](context.logits(point), y) for point in (x, known))
    border = start + REACH * (reach - start)
    made = torch.cat(
        [_cross(context, x[i], y[i], border[i]) for i in torch.arange(len(x)).split(context.batch)]
    )
    failed = torch.zeros_like(context.correct)
    failed[rows] = (reach > start) & (LOSSES["margin"](context.logits(made), y) <= border)
    tasks = int((reach > start).sum())
    if not tasks:
        return not_applicable("the search found no point to build on")
    text = f"PGD solves {tasks - int(failed.sum())} of {tasks} tasks with a known solution"
    return graded(failed, tasks, text, TASTE)


def _cross(context: CheckContext, x: torch.Tensor, y: torch.Tensor, border: torch.Tensor) -> torch.Tensor:
    """Attack the two-class model "is the margin above the border?"; all (b ...)."""
    if context.slope is None:
        return x

    def binary(point: torch.Tensor) -> torch.Tensor:
        above = LOSSES["margin"](context.subject(point), y) - border
        return torch.stack((torch.zeros_like(above), above), 1)

    binary.__dict__["__wrapped__"] = context.model
    own = torch.zeros_like(y)
    return ATTACKS["pgd"](
        binary,
        x,
        own,
        context.threat,
        steps=context.effort.steps,
        loss="margin",
        early_stop=False,
        seed=context.seed,
    )


@CHECKS.add(asks="do successes survive being saved as 8-bit images?", cost=1)
def eight_bit(context: CheckContext) -> Verdict:
    """Rounded to whole grey levels inside the ball, adversarial images must stay adversarial."""
    won = (context.white.broken & context.correct).nonzero()[:, 0]
    if not len(won):
        return not_applicable("the white box broke nothing")
    try:
        rounded = whole_levels(context.x[won], context.white.adv[won], context.threat)
    except InputError:
        return not_applicable("the images themselves are not 8-bit")
    lost = torch.zeros_like(context.correct)
    lost[won] = context.logits(rounded).argmax(1) == context.y[won]
    text = f"{int(lost.sum())} of {len(won)} successes are lost by rounding"
    return Verdict(AMBER if surely_above(int(lost.sum()), len(won), TASTE) else GREEN, text, lost)
