"""What a training will cost, from a few real images on this machine."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from robvit.attacks import Count
from robvit.processes import processes
from robvit.training.adapters import TrainableAdapters
from robvit.training.computing import image_size, lowered, settled
from robvit.training.inner_attack import InnerAttack
from robvit.training.job import Job, prepare
from robvit.training.losses import Loss, make_loss
from robvit.training.recipe import Recipe
from robvit.training.schedule import budget
from robvit.training.splits import Splits
from robvit.training.stream import Sharing, Stream
from robvit.training.tora import AdapterTrainer, backbone_of

FEW = 8  # images that are really trained on, without keeping the result
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Cost:
    """What one training of the common loop costs: operations of a pass, passes and seconds of a step."""

    steps: int
    flops: int
    passes: float
    seconds: float
    compute: str
    total: int
    trained: int
    held: float


def forecast(job: Job) -> dict[str, str]:
    """Parameters, operations, time and memory, in words; the model takes steps that nobody keeps."""
    recipe = job.recipe
    if isinstance(job.model, nn.Module):  # its own weights are what is trained later
        job = replace(job, model=copy.deepcopy(job.model))
    model, splits = prepare(job)
    costs = [_cost(module, splits, one) for module, one in _trainings(job, model, splits)]
    most = max(costs, key=lambda cost: cost.passes)
    steps, seconds = sum(c.steps for c in costs), sum(c.steps * c.seconds for c in costs)
    share = recipe.batch // (processes().num_processes * recipe.accumulation)
    state, held = max(_state_bytes(c, recipe) for c in costs), max(c.held for c in costs) * share
    learning = f"learns from {len(splits.train)} images, held out {len(splits.validation)}"
    phases = f"{len(costs)} trainings, " if len(costs) > 1 else ""
    trained = max(c.trained for c in costs)
    return {
        "images": learning + (f", extra {len(splits.extra)}" if splits.extra else ""),
        "parameters": f"{most.total / 1e6:.2f} million, {trained / 1e6:.2f} million of them trained",
        "operations": f"{most.flops / 1e9:.3g} GFLOPs an image and pass, "
        f"{most.flops * most.passes / 1e9:.3g} an image and step",
        "steps": f"{phases}{steps} of {recipe.batch} images, {share} at a time in a process",
        "time": f"about {timedelta(seconds=round(seconds))} in {most.compute} for the steps alone, "
        f"{seconds / steps:.2g} s a step, from {min(FEW, recipe.batch)} images",
        "memory": f"about {(state + held) / 2**30:.2g} GiB a process, "
        f"of which {held / 2**30:.2g} for what the backward pass needs",
    }


def _trainings(job: Job, model: nn.Module, splits: Splits) -> list[tuple[nn.Module, Recipe]]:
    """Every module that the common loop will train, with its recipe."""
    if job.recipe.adapters is None:
        return [(model, job.recipe)]
    trainer = AdapterTrainer(backbone_of(model), splits, job.recipe, Path())
    return [
        (TrainableAdapters(trainer.model, trainer.start(phase), phase.answers, phase.learns), phase.recipe)
        for phase in trainer.phases
    ]


def _cost(model: nn.Module, splits: Splits, recipe: Recipe) -> Cost:
    """What a training costs, from a step on a few images."""
    device, sharing = processes().device, _sharing(recipe)
    model.to(device).train()
    loss = make_loss(recipe.loss, model, splits.train, recipe.loss_settings).to(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and loss.trains(name))
    stream = Stream(splits.train, recipe, splits.extra)
    size = image_size(model, splits.train)
    x, y = next(iter(stream.loader(range(1), sharing, size)))
    x, y = x[:FEW].to(device), y[:FEW].to(device)
    with FlopCounterMode(display=False) as single:  # it cannot follow CaiT's class token without gradients
        model(x[:1])
    times = 2 if recipe.awp else 1  # AWP computes the loss once more
    compute = settled(model, splits.train, recipe, stream.steps)
    for _ in range(2):  # the first is slow, as first times are
        start = time.perf_counter()
        with lowered(compute, model):
            passes = times * _step(model, loss, x, y, recipe)
        seconds = (time.perf_counter() - start) * times / len(x) * recipe.batch / sharing.processes
    numbers = [(p.numel(), p.requires_grad) for p in _parameters(model)]
    return Cost(
        steps=stream.steps,
        flops=single.get_total_flops(),
        passes=passes,
        seconds=seconds,
        compute=str(compute),
        total=sum(count for count, _ in numbers),
        trained=sum(count for count, learns in numbers if learns),
        held=_activations(model, x) / len(x),
    )


def _sharing(recipe: Recipe) -> Sharing:
    return Sharing(processes().num_processes, processes().process_index, recipe.accumulation)


def _parameters(model: nn.Module) -> list[nn.Parameter]:
    """All parameters that a pass uses, those of a backbone behind adapters too."""
    whole = model.backbone[0] if isinstance(model, TrainableAdapters) else model
    return list(whole.parameters())


def _step(model: nn.Module, loss: Loss, x: torch.Tensor, y: torch.Tensor, recipe: Recipe) -> float:
    """One step, not kept; what it costs in passes forward, a way back to the pixels counting one more.

    The way back to the weights counts two: it computes the gradients of layers and of weights.
    """
    attack = InnerAttack(recipe.inner, *budget(recipe, recipe.epochs), seed=0)
    counted: Any = Count(model)
    value = loss(counted, x, y, attack)
    inner = counted.backward
    value.backward()
    return float(counted.forward + inner + 2 * (counted.backward - inner)) / len(x)


def _state_bytes(cost: Cost, recipe: Recipe) -> float:
    """Weights, gradients, what the optimiser remembers, and the average."""
    moments = 2 if recipe.optimizer == "adamw" else 1
    return FLOAT * (cost.total * (2 if recipe.ema else 1) + cost.trained * (1 + moments))


def _activations(model: nn.Module, x: torch.Tensor) -> float:
    """Bytes that one pass keeps for the way back, each storage once, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in _parameters(model)}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # itself, it would keep the graph that keeps it, and nothing would be freed

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    assert output.requires_grad
    return float(sum(kept.values()))
