"""A class, drawn from noise by its gradient alone: what of it people recognise is what the gradient means."""

from __future__ import annotations

import torch

from robvit.attacks.core import Model, frozen, gradient
from robvit.attacks.losses import cross_entropy
from robvit.drawing.grid import Grid, Row, Tile
from robvit.drawing.images import photo
from robvit.errors import InputError, Unsupported, check_images, check_labels
from robvit.explanation.subject import Subject, figure
from robvit.report.figure import Figure
from robvit.threat import Threat

FAR = Threat("l2", 15.0)  # the distance that the gradient may travel from its start
REACH = 0.25  # in a figure: the same, as the root mean square of a value's change
TARGETS, STEPS = 5, 60


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
            _, _, grad = gradient(model, point, lambda output: -cross_entropy(output, target))
            point = threat.project(start, point + threat.steepest(grad, size))
    return point


def noise(count: int, size: tuple[int, int], *, seed: int = 0) -> torch.Tensor:
    """Uniformly random images (count 3 rows columns), where `accumulate_gradient` starts."""
    return torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(seed))


@figure(
    title="A class, drawn from noise by its gradient",
    caption="See whether the gradient draws anything of the class that people recognise, or mere grain.",
    order=90,
)
def accumulation(subject: Subject) -> Figure:
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
            shares = model(made).softmax(1).gather(1, target[:, None])[:, 0].tolist()
        tiles = [Tile(photo(x), f"{share:.0%} sure") for x, share in zip(made, shares, strict=True)]
        rows.append(Row([Tile(photo(start[0])), *tiles], name))
    return Figure(Grid(rows, ["the noise", *(subject.class_name(int(t)) for t in target)]))
