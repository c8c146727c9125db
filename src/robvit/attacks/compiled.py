"""Models compiled by torch.compile: the same numbers up to rounding, in fewer and larger kernels."""

from __future__ import annotations

import warnings

import torch

from robvit.attacks.core import Model
from robvit.errors import Unsupported
from robvit.registry import unknown

PADDED = "/padded"  # after a compiler: batches of few sizes
SMALLEST = 8  # size that is padded to: smaller ones take a GPU as long, and each would be compiled for itself
SHAPES = 64  # that torch may compile a model for before it gives up and compiles no more; its own limit is 8


def check_compiler(name: str) -> None:
    """Refuse a name that torch.compile does not know."""
    known = torch.compiler.list_backends(exclude_tags=())
    if name.removesuffix(PADDED) not in known:
        raise unknown("compiler", name, known)


def bucket(count: int) -> int:
    """The size that a batch of so many images is padded to: the next power of two, at least the smallest."""
    return max(SMALLEST, 1 << (count - 1).bit_length()) if count else 0


class Compiled:
    """A model compiled by one of torch's backends, such as "inductor"; the first passes take a while.

    With "/padded" after the name, a batch is filled up to a power of two with copies of its last image, so
    that the shrinking batches of an attack have few shapes, each compiled once for itself, with gradients and
    without. On a GPU inductor then replays CUDA graphs ("reduce-overhead"; unmeasured).
    """

    def __init__(self, model: Model, backend: str) -> None:
        check_compiler(backend)
        self.__wrapped__ = model
        self.padded = backend.endswith(PADDED)
        self.backend = backend.removesuffix(PADDED)
        self.graphs = self.padded and self.backend == "inductor" and torch.cuda.is_available()
        torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)
        self._compiled = torch.compile(
            lambda x: model(x),
            backend=self.backend,
            dynamic=False if self.padded else None,
            mode="reduce-overhead" if self.graphs else None,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        count = len(x)
        if self.padded and (missing := bucket(count) - count):
            x = torch.cat([x, x[-1:].detach().expand(missing, *x.shape[1:])])
        if self.graphs and x.requires_grad:
            x = x.clone()
            x.register_hook(torch.clone)  # the next pass overwrites what a graph returned
        try:
            with warnings.catch_warnings():  # torch looks for a gradient, which a padded batch does not have
                warnings.filterwarnings("ignore", message="The .grad attribute")
                output: torch.Tensor = self._compiled(x)[:count]
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = " ".join(str(error).split())[:200]
            raise Unsupported(
                f"{self.backend} can't compile this model: {reason} ...; inductor needs a C++ compiler and, "
                "on a GPU, triton; without compiling the result is the same"
            ) from error
        return output.clone() if self.graphs else output
