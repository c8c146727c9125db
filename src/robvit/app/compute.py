"""The computing behind an order: one image attacked, judged and shown, or attacked at many budgets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F

from robvit.app.request import Answer, Order, Result, Step, Sweep, pixels_of
from robvit.app.subjects import OFF, Subject
from robvit.attacks import run
from robvit.attention.hooks import class_attention
from robvit.backbones.model import Model
from robvit.report.gallery import GalleryItem
from robvit.threat import Threat

SWEPT = (1, 2, 4, 8, 16)  # grey levels


class Watched:
    """A model that tells of every pass: an attack on it is the attack on the model, bit for bit."""

    def __init__(
        self,
        model: Callable[[torch.Tensor], torch.Tensor],
        tell: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> None:
        self.__wrapped__ = model
        self.tell = tell

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        output = self.__wrapped__(x)
        self.tell(x.detach(), output.detach())
        return output


def attacked(subject: Subject, order: Order, tell: Callable[[Step | Result], None]) -> Result:
    """Attack the image, telling of every pass; what came of it."""
    x = order.image.tensor(subject.size)
    splits: list[float] = []

    def note(point: torch.Tensor, left: float) -> None:
        splits.append(left)
        # One pass looks at the model, one judges the last point.
        expected = max(len(splits), int(order.settings.get("steps", 1)) + 2)
        tell(Step(len(splits), expected, pixels_of(point), list(splits)))

    start = time.monotonic()
    adv, passes, doubts = _craft(subject, order, x, note)
    seconds = time.monotonic() - start
    judged = subject.pair(order.tokens)[1]
    looks = [class_attention(judged, seen) for seen in (x, adv)]
    maps = [look[0].numpy() for look in looks if look is not None]
    mean_square = float((adv - x).square().mean())
    return Result(
        order=order,
        exhibit=GalleryItem(0, 0, pixels_of(adv), pixels_of(x), maps or None),
        answers=_answers(subject, order, x, adv),
        psnr=-10 * math.log10(mean_square) if mean_square else math.inf,
        passes=passes,
        seconds=seconds,
        splits=splits,
        doubts=doubts,
    )


def _craft(
    subject: Subject, order: Order, x: torch.Tensor, note: Callable[[torch.Tensor, float], None]
) -> tuple[torch.Tensor, tuple[int, int], tuple[str, ...]]:
    """The attacked image, the forward and backward passes it took, and what makes it doubtful.

    The attacker wants the model to leave what it says to the clean image. Naming the judged model as
    the victim attacks to the full objective, so that budgets and tokens can be compared.
    """
    target, judged = (_view(model, order) for model in subject.pair(order.tokens))
    with torch.no_grad():
        clean = target(x)
    y = None if order.on_features else clean.argmax(1)

    def left(output: torch.Tensor) -> float:
        if y is None:
            return float(F.cosine_similarity(output, clean, dim=-1).mean())
        return float(output.softmax(1)[0, int(y)])

    watched = Watched(target, lambda point, output: note(point, left(output)))
    threat = Threat("linf", order.eps / 255)
    outcome = run(order.attack, watched, x, y, threat, victim=judged, eight_bit=True, **order.settings)
    return outcome.adv, (outcome.forward, outcome.backward), outcome.warnings


def _view(model: Model, order: Order) -> Callable[[torch.Tensor], torch.Tensor]:
    return model.features if order.on_features else model


@torch.no_grad()
def _answers(subject: Subject, order: Order, x: torch.Tensor, adv: torch.Tensor) -> list[Answer]:
    """What the model without tokens says and, unless they are off, the one with them."""
    scenarios = {"without tokens": subject.bare}
    if order.tokens != OFF and subject.hardened is not None:
        scenarios["with tokens"] = subject.hardened
    original = subject.bare.features(x)
    answers = []
    for scenario, model in scenarios.items():
        top, near = [], []
        for seen in (x, adv):
            near.append(float(F.cosine_similarity(model.features(seen), original, dim=-1).mean()))
            top.append(_top(model(seen)[0], subject.classes) if subject.classes else [])
        answers.append(Answer(scenario, top[0], top[1], (near[0], near[1])))
    return answers


def _top(logits: torch.Tensor, names: list[str]) -> list[tuple[str, float]]:
    """The five likeliest classes."""
    values, places = logits.softmax(0).topk(min(5, len(names)))
    return [(names[place], value) for place, value in zip(places.tolist(), values.tolist(), strict=True)]


def swept(subject: Subject, order: Order, tell: Callable[[Sweep], None]) -> Sweep:
    """Confidence in the class of the clean image, or without classes the cosine of features, by budget."""
    x = order.image.tensor(subject.size)
    lines: dict[str, list[tuple[float, float]]] = {}
    first = _answers(subject, order, x, x)
    measure = f"confidence in {first[0].clean[0][0]!r}" if subject.classes else "cosine of features"
    scenarios = [subject.bare, subject.hardened][: len(first)]
    with torch.no_grad():
        original = subject.bare.features(x)
        label = int(subject.bare(x).argmax(1)) if subject.classes else 0

    @torch.no_grad()
    def add(eps: float, seen: torch.Tensor) -> Sweep:
        for answer, model in zip(first, scenarios, strict=True):
            assert model is not None
            if subject.classes:
                left = float(model(seen).softmax(1)[0, label])
            else:
                left = float(F.cosine_similarity(model.features(seen), original, dim=-1).mean())
            lines.setdefault(answer.scenario, []).append((eps, left))
        return Sweep(measure, {name: list(points) for name, points in lines.items()})

    so_far = add(0, x)
    for eps in SWEPT:
        tell(so_far)
        adv, _, _ = _craft(subject, replace(order, eps=eps), x, lambda *_, now=so_far: tell(now))
        so_far = add(eps, adv)
    return so_far
