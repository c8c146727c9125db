"""What gradients look like: a perturbation as a grey image, and a class drawn by its gradient alone."""

from __future__ import annotations

from typing import Any

import torch

from robvit.attacks.core import Model, frozen, gradient
from robvit.attacks.losses import cross_entropy
from robvit.backbones.model import Model as Robvit
from robvit.errors import InputError, Unsupported, check_images, check_labels
from robvit.explanation.drawing import Row, grid, photo
from robvit.explanation.subject import SHOWN, Subject, figure
from robvit.threat import Threat

LUMA = (0.299, 0.587, 0.114)  # how bright red, green and blue look
FAR = Threat("l2", 15.0)  # the distance that the gradient may travel from its start
REACH = 0.25  # in a figure: the same, as the root mean square of a value's change
TARGETS, STEPS = 5, 60


def rescaled_perturbation(x: torch.Tensor, adv: torch.Tensor, *, eps: float | None = None) -> torch.Tensor:
    """The perturbation as a colour image, -eps..eps to 0..1: (B 3 H W) twice -> (B 3 H W).

    Without `eps` each image's own largest change fills the range; no change is mid-grey.
    """
    check_images(x)
    if adv.shape != x.shape:
        raise InputError(f"both images must be of one shape, got {tuple(x.shape)} and {tuple(adv.shape)}")
    if eps is not None and not eps > 0:
        raise InputError(f"eps must be above zero, got {eps}; leave it out to use the largest change")
    delta = adv - x
    reach = delta.abs().amax((1, 2, 3), keepdim=True) if eps is None else torch.full_like(delta[:1], eps)
    return ((delta / reach.clamp_min(1e-12) + 1) / 2).clamp(0, 1)


def grey_perturbation(x: torch.Tensor, adv: torch.Tensor, *, eps: float | None = None) -> torch.Tensor:
    """The perturbation's intensity, `rescaled_perturbation` without its colours: (B 1 H W) in [0,1]."""
    weights = torch.tensor(LUMA, device=x.device, dtype=x.dtype).view(1, 3, 1, 1)
    return (rescaled_perturbation(x, adv, eps=eps) * weights).sum(1, keepdim=True).clamp(0, 1)


def accumulate_gradient(
    model: Model,
    target: torch.Tensor,
    *,
    start: torch.Tensor,
    steps: int = 100,
    step_size: float | None = None,
    threat: Threat = FAR,
) -> torch.Tensor:
    """Images that the model takes for `target` (B,), by steepest ascent from `start` (B 3 H W), noise say.

    Every step of `step_size` (2.5 eps / steps if left out) raises the target's probability and stays in
    [0,1] and within the threat around the start. What of it people recognise is what the gradient means.
    """
    check_images(start)
    check_labels(target, len(start))
    if steps < 1:
        raise InputError(f"steps must be 1 or more, got {steps}")
    size = 2.5 * threat.eps / steps if step_size is None else step_size
    target = target.to(start.device)
    point = start.detach().clone()
    with torch.inference_mode(False), torch.no_grad(), frozen(model):
        for _ in range(steps):
            _, _, slope = gradient(model, point, lambda output: -cross_entropy(output, target))
            point = threat.project(start, point + threat.steepest(slope, size))
    return point


def noise(count: int, size: tuple[int, int], *, seed: int = 0) -> torch.Tensor:
    """Uniformly random images (count 3 rows columns), where `accumulate_gradient` starts."""
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(seed))


@figure(
    "perturbation",
    title="Perturbations, rescaled to grey",
    caption="See whether the object's shape shows in the perturbation, as for a robust model, or mere grain.",
)
def perturbation(subject: Subject) -> dict[str, Any]:
    """Each image, as the attack on each model left it, and what the attack added."""
    attacked = {
        name: subject.adv if model is subject.model else subject.attacked(model)
        for name, model in subject.models().items()
    }
    rows = []
    for place in range(min(SHOWN, len(subject.x))):
        x = subject.x[place : place + 1]
        tiles, notes = [photo(x[0])], [subject.names[place]]
        for name, adv in attacked.items():
            one = adv[place : place + 1]
            tiles += [photo(one[0]), photo(grey_perturbation(x, one)[0])]
            notes += [_said(subject, subject.models()[name], one), ""]
        rows.append(Row("", tiles, notes))
    heads = [head for name in attacked for head in (f"attacked, {name}", f"perturbation, {name}")]
    return {"image": grid(rows, ["image", *heads])}


def _said(subject: Subject, model: Robvit, x: torch.Tensor) -> str:
    """What the model takes the image for, if it knows classes."""
    if subject.task != "classes":
        return ""
    return f"seen as {subject.class_name(int(subject.said(model, x)[0]))}"


@figure(
    "accumulation",
    title="A class, drawn from noise by its gradient",
    caption="See whether the gradient draws anything of the class that people recognise, or mere grain.",
)
def accumulation(subject: Subject) -> dict[str, Any]:
    """The same noise and the same targets for the model and for the one beside it."""
    if subject.task != "classes":
        raise Unsupported(f"{subject.model.name} tells no classes apart; give it a classifier with --head")
    count = min(TARGETS, subject.model.classes)
    order = torch.randperm(subject.model.classes, generator=torch.Generator().manual_seed(subject.seed))
    target = order[:count].sort().values.to(subject.x.device)
    start = noise(1, subject.model.input_size, seed=subject.seed).to(subject.x).expand(count, -1, -1, -1)
    reach = Threat("l2", REACH * start[0].numel() ** 0.5)
    rows = []
    for name, model in subject.models().items():
        made = accumulate_gradient(model, target, start=start, steps=STEPS, threat=reach)
        with torch.no_grad():
            sure = model(made).softmax(1).gather(1, target[:, None])[:, 0].tolist()
        notes = ["", *(f"{share:.0%} sure" for share in sure)]
        rows.append(Row(name, [photo(start[0]), *map(photo, made)], notes))
    return {"image": grid(rows, ["the noise", *(subject.class_name(int(t)) for t in target)])}
