"""The processes that share a long job, and the device of this one."""

from __future__ import annotations

import os

import torch
from accelerate import PartialState
from accelerate.utils import reduce

from robvit.errors import InputError


def processes() -> PartialState:
    """How many there are, which this is, and its device."""
    return PartialState(cpu=on_cpu())


def on_cpu() -> bool:
    """Whether work is done without a GPU: because $ROBVIT_DEVICE says cpu, or because there is none.

    accelerate joins processes without a GPU only if it is told so; else each would work alone.
    """
    wanted = os.environ.get("ROBVIT_DEVICE", "auto")
    there = torch.accelerator.is_available()
    if wanted == "cuda" and not there:
        raise InputError("expected a GPU for the device cuda, torch finds none; take cpu or auto")
    return wanted == "cpu" or not there


def device_name(device: torch.device | None = None) -> str:
    """Where work is done, for people: this process's device, or the one that is given."""
    where = device or processes().device
    if where.type == "cpu":
        return f"cpu, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    return f"{where} ({torch.cuda.get_device_name(where)})" if where.type == "cuda" else str(where)


def mean_of_all(value: torch.Tensor) -> torch.Tensor:
    """The mean of a value over all processes; each of them must ask."""
    processes()  # before accelerate looks for GPUs itself
    mean: torch.Tensor = reduce(value, "mean")
    return mean
