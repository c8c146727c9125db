"""The processes that share a long job, and the device of this one."""

from __future__ import annotations

import torch
from accelerate import PartialState

# accelerate joins processes without a GPU only if it is told that there is none; else each would work alone.
CPU_ONLY = not torch.accelerator.is_available()


def processes() -> PartialState:
    """How many there are, which this is, and its device."""
    return PartialState(cpu=CPU_ONLY)
