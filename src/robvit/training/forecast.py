"""What a training will cost, from a few real images on this machine."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from robvit.attacks import Count
from robvit.processes import processes
from robvit.training.inner_attack import InnerAttack
from robvit.training.losses import Loss, make_loss
from robvit.training.recipe import Recipe
from robvit.training.schedule import budget
from robvit.training.stream import Sharing, Stream
from robvit.training.train import Job, prepare

FEW = 8  # images that are really trained on, without keeping the result
FLOAT = 4  # bytes


def forecast(job: Job) -> dict[str, str]:
    """Parameters, operations, time and memory, in words; the model takes steps that nobody keeps."""
    recipe = job.recipe
    device = processes().device
    model, splits = prepare(job)
    model.to(device).train()
    loss = make_loss(recipe.loss, model, splits.train, recipe.loss_settings).to(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(loss.trains(name))
    stream = Stream(splits.train, recipe, splits.extra)
    sharing = Sharing(processes().num_processes, processes().process_index, recipe.accumulation)
    x, y = next(iter(stream.loader(range(1), sharing, model.input_size[0])))
    x, y = x[:FEW].to(device), y[:FEW].to(device)

    with FlopCounterMode(display=False) as single:  # it cannot follow CaiT's class token without gradients
        model(x[:1])
    times = 2 if recipe.awp else 1  # AWP computes the loss once more
    for _ in range(2):  # the first is slow, as first times are
        start = time.perf_counter()
        passes = times * _step(model, loss, x, y, recipe)
        seconds = (time.perf_counter() - start) * times / len(x) * recipe.batch / sharing.processes
    share = recipe.batch // (sharing.processes * recipe.accumulation)
    held = _activations(model, x) / len(x) * share
    total = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    learning = f"learns from {len(splits.train)} images, held out {len(splits.validation)}"
    return {
        "images": learning + (f", extra {len(splits.extra)}" if splits.extra else ""),
        "parameters": f"{total / 1e6:.2f} million, {trained / 1e6:.2f} million of them trained",
        "operations": f"{single.get_total_flops() / 1e9:.3g} GFLOPs an image and pass, "
        f"{single.get_total_flops() * passes / 1e9:.3g} an image and step",
        "steps": f"{stream.steps} of {recipe.batch} images, {share} at a time in a process",
        "time": f"about {timedelta(seconds=round(seconds * stream.steps))} on {device} for the steps alone, "
        f"{seconds:.2g} s a step, from {len(x)} images",
        "memory": f"about {(_state_bytes(total, trained, recipe) + held) / 2**30:.2g} GiB a process, "
        f"of which {held / 2**30:.2g} for what the backward pass needs",
    }


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


def _state_bytes(total: int, trained: int, recipe: Recipe) -> float:
    """Weights, gradients, what the optimiser remembers, and the average."""
    moments = 2 if recipe.optimizer == "adamw" else 1
    return FLOAT * (total * (2 if recipe.ema else 1) + trained * (1 + moments))


def _activations(model: nn.Module, x: torch.Tensor) -> float:
    """Bytes that one pass keeps for the way back, each storage once, weights not counted."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    assert output.requires_grad
    return float(sum(kept.values()))
