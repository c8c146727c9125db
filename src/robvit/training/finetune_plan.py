"""What fits into so many minutes: a probe of the real model on this machine, and a tuning made to measure."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from robvit.backbones.families import patch_side
from robvit.backbones.model import Model
from robvit.data import ImageDataset
from robvit.errors import InputError
from robvit.files import parse_json, read_text, write_json
from robvit.processes import mean_of_all, processes
from robvit.training.computing import lowered, settled
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import make_loss
from robvit.training.tuning import Tuning, make_learner, split

PLAN = "plan.json"
PROBED = 8  # images in the probe's step
LEAST_STEPS = 20  # fewer teach nothing
GOOD_STEPS = 100  # below it smaller batches, and so more steps, are worth more
FEWER = ((3, 16), (2, 8))  # validations and their images, where judging would take too much of the time
SPARE = 0.95  # of the time is planned; loading and saving take the rest
PLANNED = ("steps", "batch", "validations", "held_out")
LEAST_SIZE = 32  # pixels; smaller images are not proposed


@dataclass(frozen=True)
class Cost:
    """Seconds of a step and of a validation, both for one image."""

    step: float
    validation: float

    def total(self, tuning: Tuning) -> float:
        """Seconds of a whole tuning; original and result are judged once more at its end."""
        judged = (tuning.validations + 2) * tuning.held_out
        return self.step * tuning.steps * tuning.batch + self.validation * judged


def planned(model: Model, images: ImageDataset, tuning: Tuning, minutes: float, out: Path) -> Tuning:
    """The tuning with steps, batch and validations for so many minutes.

    The plan is kept in `out`: a resumed run, and the other processes of this one, would measure otherwise.
    One of another tuning is made anew.
    """
    if tuning.steps != Tuning.steps:
        raise InputError(
            f"minutes decide the steps, got {tuning.steps} steps and {minutes:g} minutes; give one"
        )
    path = out / PLAN
    plan = _read(path)
    asked = json.loads(json.dumps({"minutes": minutes} | asdict(tuning)))  # as it is read again
    processes().wait_for_everyone()  # all have looked before one writes
    if plan.get("asked") != asked:
        made = fitted(
            tuning, probe(model, images, tuning), minutes, (model.input_size[0], patch_side(model.net) or 1)
        )
        if processes().is_main_process:
            write_json(path, {"asked": asked} | {name: getattr(made, name) for name in PLANNED})
        processes().wait_for_everyone()
        plan = _read(path)
    return replace(tuning, **{name: plan[name] for name in PLANNED})


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    plan = parse_json(read_text(path, "a plan"), path, "a plan")
    if not isinstance(plan, dict) or not all(type(plan.get(name)) is int for name in PLANNED):
        raise InputError(f"{path} is damaged: it must tell {', '.join(PLANNED)}; remove it")
    return plan


def fitted(tuning: Tuning, cost: Cost, minutes: float, size: tuple[int, int] = (0, 1)) -> Tuning:
    """The tuning with as many steps as the time allows, in smaller batches where those would be few.

    Where even those are too few, `size`, of the images and of their patches, tells what smaller to propose.
    """
    if not minutes > 0:
        raise InputError(f"minutes must be above 0, got {minutes:g}")
    seconds = SPARE * 60 * minutes
    for batch in (tuning.batch, tuning.batch // 2, tuning.batch // 4):
        made = replace(tuning, batch=max(1, batch), steps=1)
        for validations, held in ((tuning.validations, tuning.held_out), *FEWER):
            made = replace(made, validations=validations, held_out=min(held, tuning.held_out))
            left = seconds - (cost.total(made) - cost.step * made.batch)
            if left > 0.85 * seconds:  # judging shall not take more than the rest
                break
        made = replace(made, steps=max(1, int(left / (cost.step * made.batch))))
        if made.steps >= GOOD_STEPS:
            break
    if made.steps < LEAST_STEPS:
        least = cost.total(replace(made, steps=LEAST_STEPS)) / 60 / SPARE
        raise InputError(
            f"{minutes:g} minutes are {made.steps} steps of {made.batch} images here, too few to learn; give "
            f"{math.ceil(least)} minutes or more{_smaller(size, minutes / least)}"
        )
    return made


def _smaller(size: tuple[int, int], share: float) -> str:
    """The image size at which a step takes this share of the time, in words; work grows with the area."""
    side = int(size[0] * math.sqrt(share) / size[1]) * size[1]
    return f", or smaller images (--img-size {side})" if side >= LEAST_SIZE else ""


def probe(model: Model, images: ImageDataset, tuning: Tuning) -> Cost:
    """The time of a step on a few images, which nobody keeps; judging is counted in passes of it."""
    device = processes().device
    train = split(images, tuning).train
    recipe = tuning.recipe(len(train))
    learner = make_learner(model, tuning).to(device)
    loss = make_loss(recipe.loss, learner, train, recipe.loss_settings).to(device)
    trained = [p for p in learner.parameters() if p.requires_grad]
    some = [train[i % len(train)] for i in range(PROBED)]
    x = torch.stack([image for image, _ in some]).to(device)
    y = torch.tensor([label for _, label in some], device=device)
    compute = settled(learner, train, recipe, tuning.steps)
    seconds = 0.0
    for part in (x[:2], x):  # the first is slow, as first times are
        start = time.perf_counter()
        attack = InnerAttack(recipe.inner, recipe.inner.eps, tuning.step * recipe.inner.eps, seed=0)
        with lowered(compute, learner):
            torch.autograd.grad(loss(learner, part, y[: len(part)], attack), trained)
        seconds = (time.perf_counter() - start) / len(part)
    clean = tuning.clean_weight > 0 or tuning.clean_cosine is not None or tuning.loss == "trades"
    inner = tuning.attack_steps
    passes = (not tuning.supervised) + 2 * inner + 3 * (1 + clean)  # a way back to the weights counts two
    judging = 2 * (inner + math.prod(tuning.long_attack)) + 4
    seconds = float(mean_of_all(torch.tensor(seconds, device=device))) / processes().num_processes
    return Cost(seconds, seconds / passes * judging / tuning.keep)
