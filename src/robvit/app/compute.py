"""The computing behind a request: one image attacked, judged and shown, or attacked at many budgets."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from robvit.app.models import OFF, PlaygroundModel
from robvit.app.request import AttackRequest, PatchMap, Prediction, Result, Step, Sweep
from robvit.attacks import run
from robvit.attention import class_attention
from robvit.backbones.model import Model
from robvit.certification.maps import draw_place
from robvit.certification.patches import PatchDefense
from robvit.drawing.images import pixels
from robvit.report.gallery import GalleryItem
from robvit.threat import Threat

SWEEP_EPS = (1, 2, 4, 8, 16)  # grey levels
PATCHES = 8  # a patch that is certified has this share of the image's side

Forward = Callable[[torch.Tensor], torch.Tensor]


class ObservedModel:
    """A model that reports every pass: an attack on it is the attack on the model, bit for bit."""

    def __init__(self, model: Forward, observe: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
        self.__wrapped__ = model
        self.observe = observe

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        output = self.__wrapped__(x)
        self.observe(x.detach(), output.detach())
        return output


def run_attack(
    model: PlaygroundModel, request: AttackRequest, update: Callable[[Step | Result], None]
) -> Result:
    """Attack the image, with an update for every pass; its result."""
    x = request.image.tensor(model.size)
    trace: list[float] = []

    def observe(point: torch.Tensor, value: float) -> None:
        trace.append(value)
        # One pass looks at the model, one judges the last point.
        expected = max(len(trace), int(request.settings.get("steps", 1)) + 2)
        update(Step(len(trace), expected, pixels(point[0]), list(trace)))

    start = time.monotonic()
    adv, passes, warnings = _adversarial(model, request, x, observe)
    seconds = time.monotonic() - start
    judged = model.pair(request.tokens)[1]
    attention = [class_attention(judged, image) for image in (x, adv)]
    maps = [one[0].numpy() for one in attention if one is not None]
    mean_square = float((adv - x).square().mean())
    return Result(
        request=request,
        item=GalleryItem(0, 0, pixels(adv[0]), pixels(x[0]), maps or None),
        predictions=_predictions(model, request, x, adv),
        psnr=-10 * math.log10(mean_square) if mean_square else math.inf,
        passes=passes,
        seconds=seconds,
        trace=trace,
        warnings=warnings,
    )


def _adversarial(
    model: PlaygroundModel,
    request: AttackRequest,
    x: torch.Tensor,
    observe: Callable[[torch.Tensor, float], None],
) -> tuple[torch.Tensor, tuple[int, int], tuple[str, ...]]:
    """The attacked image, the forward and backward passes it took, and what makes it doubtful.

    The attack moves the model away from its prediction for the clean image. Naming the judged model as
    the victim attacks to the full objective, so that budgets and tokens can be compared.
    """
    target, judged = (_forward(net, request) for net in model.pair(request.tokens))
    with torch.no_grad():
        clean = target(x)
    y = None if request.on_features else clean.argmax(1)

    def measure(output: torch.Tensor) -> float:
        if y is None:
            return float(F.cosine_similarity(output, clean, dim=-1).mean())
        return float(output.softmax(1)[0, int(y)])

    observed = ObservedModel(target, lambda point, output: observe(point, measure(output)))
    threat = Threat("linf", request.eps / 255)
    outcome = run(request.attack, observed, x, y, threat, victim=judged, eight_bit=True, **request.settings)
    return outcome.adv, (outcome.forward, outcome.backward), outcome.warnings


def _forward(net: Model, request: AttackRequest) -> Forward:
    return net.features if request.on_features else net


@torch.no_grad()
def _predictions(
    model: PlaygroundModel, request: AttackRequest, x: torch.Tensor, adv: torch.Tensor
) -> list[Prediction]:
    """Those of the model without tokens and, unless they are off, of the one with them."""
    scenarios = {"without tokens": model.undefended}
    if request.tokens != OFF and model.hardened is not None:
        scenarios["with tokens"] = model.hardened
    original = model.undefended.features(x)
    predictions = []
    for scenario, net in scenarios.items():
        top, cosine = [], []
        for image in (x, adv):
            cosine.append(float(F.cosine_similarity(net.features(image), original, dim=-1).mean()))
            top.append(_top(net(image)[0], model.classes) if model.classes else [])
        predictions.append(Prediction(scenario, top[0], top[1], (cosine[0], cosine[1])))
    return predictions


@torch.no_grad()
def run_certificate(model: PlaygroundModel, request: AttackRequest) -> PatchMap:
    """Where on the image no patch can change the label that the model gives it behind double masking."""
    start = time.monotonic()
    judged = model.pair(request.tokens)[1]
    defense = PatchDefense(judged, max(1, model.size // PATCHES))
    x = request.image.tensor(model.size)
    answers = defense.asked(x)
    label = defense.decide(answers).label
    safe = defense.safe_places(answers, label)[0].tolist()
    drawn = draw_place(x[0], safe, defense.cover)
    assert drawn.image is not None
    return PatchMap(
        label=model.classes[int(label)],
        side=defense.cover.patch,
        certified=all(safe),
        note=drawn.note,
        image=np.asarray(drawn.image),
        seconds=time.monotonic() - start,
    )


def _top(logits: torch.Tensor, names: list[str]) -> list[tuple[str, float]]:
    """The five likeliest classes."""
    values, indices = logits.softmax(0).topk(min(5, len(names)))
    return [(names[index], value) for index, value in zip(indices.tolist(), values.tolist(), strict=True)]


def run_sweep(model: PlaygroundModel, request: AttackRequest, update: Callable[[Sweep], None]) -> Sweep:
    """Confidence in the class of the clean image, or without classes the cosine of features, by budget."""
    x = request.image.tensor(model.size)
    lines: dict[str, list[tuple[float, float]]] = {}
    clean = _predictions(model, request, x, x)
    measure = f"confidence in {clean[0].clean[0][0]!r}" if model.classes else "cosine of features"
    nets = [model.undefended, model.hardened][: len(clean)]
    with torch.no_grad():
        original = model.undefended.features(x)
        label = int(model.undefended(x).argmax(1)) if model.classes else 0

    @torch.no_grad()
    def add(eps: float, image: torch.Tensor) -> Sweep:
        for prediction, net in zip(clean, nets, strict=True):
            assert net is not None
            if model.classes:
                value = float(net(image).softmax(1)[0, label])
            else:
                value = float(F.cosine_similarity(net.features(image), original, dim=-1).mean())
            lines.setdefault(prediction.scenario, []).append((eps, value))
        return Sweep(measure, {name: list(points) for name, points in lines.items()})

    sweep = add(0, x)
    for eps in SWEEP_EPS:
        update(sweep)
        adv, _, _ = _adversarial(model, replace(request, eps=eps), x, lambda *_, now=sweep: update(now))
        sweep = add(eps, adv)
    return sweep
